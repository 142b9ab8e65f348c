"""Experiments with simulated groups that print figures: `python -m tests.simulation gossip-experiments`."""
