"""Destinations of leaves for tests and benchmarks."""

from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.structures import Destination


def new_demo_leaf() -> Destination:
    """Make a destination at random without keeping its private key, since no client connects to the leaf."""
    return new_master_key().destination
