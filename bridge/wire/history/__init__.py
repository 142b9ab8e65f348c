"""The bytes of a node's history file (`docs/reference/history.md`)."""
