"""What the command line tells about itself: its documents, and to a shell what can come next."""
