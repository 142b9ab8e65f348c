"""What the farm's log says, as values: records, the state that they make, log time."""
