"""Exactly-once execution of clients' requests (Raft section 8)."""
