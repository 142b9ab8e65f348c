"""Weakly consistent group membership: SWIM over datagrams, with bounded peer capacity.

    async with gossip.open_group("192.168.1.5", key=secret, seeds=("192.168.1.4:7946",)) as group:
        async for numbered in group.events(): ...

Three layers, with imports in one direction only: `core` (pure decisions) <- `wire` (messages as bytes) <- `node`
(trio). Other packages import from here and from `gossip.wire`, `gossip.node` and `gossip.simulation`, never from deeper
modules. Names are loaded lazily, so that callers with their own I/O get the pure `Swim` without trio and cryptography.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
