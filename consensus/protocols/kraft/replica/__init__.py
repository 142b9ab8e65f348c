"""A voter or an observer of a quorum: its requests, its services, and its state."""
