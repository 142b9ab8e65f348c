"""What commands share that serve until they are stopped: output that never waits, and an end in time."""
