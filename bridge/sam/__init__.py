"""Clients and a loopback bridge of SAM v3, the protocol by which programs open streams through an I2P router."""
