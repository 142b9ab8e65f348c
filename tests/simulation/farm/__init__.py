"""Whole nodes of a farm in one process, on virtual time and on a network in memory (docs/reference/simulation.md)."""
