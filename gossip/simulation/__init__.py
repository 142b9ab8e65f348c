"""Groups of production cores under virtual time: for tests, and for `garlicfarm simulate gossip`."""
