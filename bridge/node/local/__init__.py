"""A farm of several nodes on one machine."""
