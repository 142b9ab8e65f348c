"""The ØMQ Raft endpoint of a node. It binds before other nodes discover this node, and serves when the node runs.

    open_endpoint ──▶ keys readable? addresses free? ──▶ sockets bound ──▶ serve: a ClientEndpoint with a FarmLog
              └── otherwise `KeyFileError` or `NodeStopped`, as for the Raft port

This module needs pyzmq; `bridge.node.client_endpoints` imports it only if the settings have an endpoint.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from msgspec import Struct

from bridge.core.log.fields import ENTRY_LIMIT_BYTES
from bridge.node.events.alarms import Alarms, NodeStopped
from bridge.node.founded_farm import CurrentFarm
from bridge.node.local_node import LocalNode
from bridge.node.settings.clients import ZmqSettings, url_of
from bridge.node.zmq.farm_log import FarmLog
from bridge.node.zmq.listed_keys import ListedKeys, own_key, read_listed_keys
from bridge.node.zmq.updates import FarmUpdates
from bridge.wire.keys.curve_key import CurveKey, to_z85
from consensus import CountedReason
from consensus.protocols.zmq_raft import BoundEndpoint, EndpointAddress, ListedClients, bound_endpoint

LOG = logging.getLogger(__name__)
READ_BYTES: Final = 64 * 1024
"""Read requests have a few hundred bytes, and an ident."""
WRITE_BYTES: Final = ENTRY_LIMIT_BYTES + 4 * 1024
"""An entry, with the frames before it."""


class FarmEndpoint:
    """The bound endpoint of one node."""

    def __init__(
        self, bound: BoundEndpoint, settings: ZmqSettings, current: CurrentFarm, keys: ListedKeys | None, alarms: Alarms
    ) -> None:
        self._bound = bound
        self._keys = keys
        self._alarms = alarms
        self._updates = FarmUpdates(current, keys if settings.write else None, alarms)
        self._log = FarmLog(current, bound.url, settings.peers, bound.broadcast_url, self._updates)

    @property
    def url(self) -> str:
        """The address for clients."""
        return self._bound.url

    @property
    def counters(self) -> Counter[CountedReason]:
        """Counts for the view and the metrics: messages, drops and updates since the process started."""
        return Counter[CountedReason]() + self._bound.counts + self._updates.counters

    async def serve(self) -> None:
        """Serve clients until canceled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._updates.run)
            await nursery.start(self._bound.serve, self._log)
            if self._keys is not None:
                nursery.start_soon(self._keys.watch, self._alarms)


class EndpointKeys(Struct, frozen=True):
    """The keys of clients, and the endpoint's own."""

    listed: ListedKeys
    own: CurveKey


def _read_keys(path: Path, state_dir: Path) -> EndpointKeys:
    return EndpointKeys(ListedKeys(path, read_listed_keys(path)), own_key(state_dir))


@asynccontextmanager
async def open_endpoint(local: LocalNode, settings: ZmqSettings, current: CurrentFarm) -> AsyncIterator[FarmEndpoint]:
    """Bind the endpoint's sockets while the block lasts; raise `NodeStopped` and `KeyFileError`."""
    keys = None
    if settings.keys is not None:
        keys = await trio.to_thread.run_sync(_read_keys, settings.keys, local.configuration.state_dir)
    clients = None
    if keys is not None:
        clients = ListedClients(keys.own.secret, keys.listed.is_listed)
        LOG.info("ØMQ clients need this node's public key: %s", to_z85(keys.own.public))
    address = EndpointAddress(
        url=settings.url,
        ident=(settings.ident or local.farm_key.cluster).encode(),
        broadcast_url=None if settings.broadcast is None else url_of(settings.broadcast),
        clients=clients,
        max_message_bytes=WRITE_BYTES if settings.write else READ_BYTES,
    )
    with ExitStack() as stack:
        try:
            bound = stack.enter_context(bound_endpoint(address))
        except OSError as error:
            raise NodeStopped(
                f"[zmq]: {error.strerror or error}: choose an address of this machine and a port that no other process"
                " uses"
            ) from error
        LOG.info("ØMQ Raft clients are answered at %s, ident %s", bound.url, address.ident.decode())
        yield FarmEndpoint(bound, settings, current, None if keys is None else keys.listed, local.alarms)
