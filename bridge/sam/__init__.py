"""Clients and a loopback bridge of SAM v3, the protocol for streams through an I2P router."""
