"""Raft under simulated faults: production cores, one random source, invariants after every step, mutants."""
