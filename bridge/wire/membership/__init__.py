"""Nodes' descriptions of themselves, and their durable state of formation."""
