"""Raft's messages and records as bytes and back."""
