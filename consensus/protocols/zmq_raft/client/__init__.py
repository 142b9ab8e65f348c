"""A client of the peers: it finds the leader, reads and follows the log, and commits updates."""
