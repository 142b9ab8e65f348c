"""Private files, keys in use, and trusted users of this machine."""
