"""Parts of orders that only the leader can carry out: its leadership, the feature level, and a new era of keys."""
