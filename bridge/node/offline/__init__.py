"""State directories of stopped nodes: read, recovered, written."""
