"""Deterministic simulations: production cores under faults that one seed decides."""
