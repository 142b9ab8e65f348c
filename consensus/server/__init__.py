"""One Raft server at work, whatever protocol carries its messages."""
