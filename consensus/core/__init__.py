"""The pure floor of consensus: no disk, no sockets, no clock, no global randomness."""
