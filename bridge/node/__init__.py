"""The composition root of one router node and its ports to the outside."""
