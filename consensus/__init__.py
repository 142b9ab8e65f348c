"""Raft: one pure core, storage that survives what disks do, and the wire protocols through which it speaks.

Three floors, and imports point only one way: `core` (pure decisions) <- `wire` (messages as bytes) <- `node` (trio).
"""
