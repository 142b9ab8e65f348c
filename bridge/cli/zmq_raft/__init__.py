"""`garlicfarm zmq-raft`: the commands that speak ØMQ Raft."""
