"""One running Raft server, for any protocol of its messages."""
