"""The router of a node, and the host's own figures."""
