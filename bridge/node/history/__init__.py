"""The recent history of the farm as this node observes it, in a file of bounded size."""
