"""The view of a farm, built from the descriptions of the parts of a node."""
