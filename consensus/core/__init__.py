"""The pure core of consensus: no disk, no sockets, no clock, no global randomness."""
