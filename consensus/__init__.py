"""Raft: one pure core, storage that survives the faults of disks, and the protocols between servers.

    async with open_server(ServerParts(path=path, transport=transport, …)) as server:
        answer = await server.propose((b"command",))

Imports point one way only: `core` (pure decisions) <- `storage`, `sessions` <- `server` (trio) <- `net` <- `protocols`.
`bridge` and `benchmarks` import from here, from `consensus.sessions`, `consensus.storage` and `consensus.net`, and from
the packages of `consensus.protocols`, never from further inside. Public names are imported at first use, so that a
program with its own I/O gets the pure `Raft` without trio.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
