"""The owner task, the executor, storage and transports around the Raft core."""
