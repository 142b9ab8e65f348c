"""KRaft over TCP: connections, a listener, a voter or an observer of a quorum, and what clients of a topic ask."""
