"""Stories told by text files, with the exact effects."""
