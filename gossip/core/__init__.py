"""The pure floor of gossip: no sockets, no clock, no global randomness."""
