"""The trio agent around the gossip core."""
