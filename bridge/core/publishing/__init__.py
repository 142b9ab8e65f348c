"""The choice of the publisher, and of the published leaves with their costs."""
