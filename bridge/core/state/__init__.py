"""The state that results from the farm's log, and log time."""
