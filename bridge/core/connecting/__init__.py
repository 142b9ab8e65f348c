"""The decisions of a client: the order of leaves, timeouts, and the check of received structures."""
