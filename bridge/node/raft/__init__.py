"""This node's Raft server, its connections, and the state that it applies."""
