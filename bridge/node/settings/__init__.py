"""What a node is told at its start."""
