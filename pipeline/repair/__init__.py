"""Repair of tables that do not fit their log: examination, reading again, and a new checkpoint."""
