"""Formation of one farm by nodes that discovered each other."""
