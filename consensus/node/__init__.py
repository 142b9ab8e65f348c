"""Around the Raft core: its turns, the executor, storage and transports."""
