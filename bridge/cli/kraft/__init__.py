"""`garlicfarm kraft`: the commands for quorums of KRaft, Kafka's Raft."""
