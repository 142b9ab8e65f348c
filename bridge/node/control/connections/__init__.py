"""Connections of the client to a node: its address, and one request over a socket or TLS."""
