"""Experiments with simulated groups, which yield figures: `python -m tests.simulation gossip-experiments`."""
