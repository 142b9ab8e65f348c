"""Private files, keys in use, and which users of this machine are trusted."""
