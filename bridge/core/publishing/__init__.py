"""Which server publishes, and what: the choice, the leaves, their costs."""
