"""The decisions of a client: the order of the leaves, the timeout of a reply, and the acceptance of a structure."""
