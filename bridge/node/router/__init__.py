"""The router behind a node, and what the host says of itself."""
