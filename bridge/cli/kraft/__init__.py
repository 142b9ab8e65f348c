"""`garlicfarm kraft`: the commands that speak KRaft, Kafka's Raft."""
