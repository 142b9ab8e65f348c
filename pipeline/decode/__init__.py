"""From the bytes of an entry to columns."""
