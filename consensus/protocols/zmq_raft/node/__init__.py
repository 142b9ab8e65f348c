"""ØMQ Raft at work: sockets under trio, the way to the peers, what clients are answered, and a client."""
