"""The settings of a node, read at its start."""
