"""Identities and servers of the farm, as the log decides and the leader proposes."""
