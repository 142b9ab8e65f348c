"""Replication of entries from the leader to the followers: appended by the leader, or fetched by the followers."""
