"""The farm over time, and from the perspective of each node: documents, and their sources in a view."""
