"""Weakly consistent group membership: SWIM over datagrams, with bounded peer capacity.

Three floors, and imports point only one way: `core` (pure decisions) <- `wire` (messages as bytes) <- `node` (trio).
"""
