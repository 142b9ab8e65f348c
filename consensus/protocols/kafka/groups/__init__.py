"""Consumer groups: the rules of one group without I/O, the groups of a coordinator, and their service."""
