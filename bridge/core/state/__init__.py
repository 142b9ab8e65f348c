"""The state that the farm's log makes, and log time."""
