"""`garlicfarm zmq-raft`: the commands for clusters of ØMQ Raft."""
