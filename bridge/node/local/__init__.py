"""A farm of several routers on one machine."""
