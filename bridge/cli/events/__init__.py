"""What happens on nodes: the trace of one, the story of all, and small messages to all."""
