"""The composition root of one node and its ports to the outside."""
