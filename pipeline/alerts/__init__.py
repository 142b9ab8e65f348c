"""Alerts out of what the watch saw: which servers are down now, who is told, and what was delivered."""
