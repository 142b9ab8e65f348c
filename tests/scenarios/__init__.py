"""Raft stories as text files, with the exact effects."""
