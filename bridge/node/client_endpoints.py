"""Where a node answers the clients of other protocols, if its settings say so: ØMQ Raft's and Kafka's.

    settings ──▶ [zmq]?   ──▶ `bridge.node.zmq.opening`    ─┐
             ──▶ [kafka]? ──▶ `bridge.node.kafka.opening`  ─┴─▶ bound, before the node is heard ──▶ serve

An endpoint is bound first, so that a node whose port is taken ends before others count a start of it. The view shows
where each is and what it has counted, under the name of its table of settings.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from bridge.node.founded_farm import CurrentFarm
from bridge.node.kafka.opening import kafka_listener
from bridge.node.local_node import LocalNode
from bridge.node.zmq.opening import read_zmq_keys, zmq_endpoint


class ClientEndpoint(Protocol):
    """What a node asks of an endpoint."""

    @property
    def url(self) -> str:
        """Where clients connect."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What it has counted since the process started."""

    async def serve(self) -> None:
        """Answer clients until cancelled."""


ClientEndpoints = Mapping[str, ClientEndpoint]
"""By the name of the table of settings."""


@asynccontextmanager
async def client_endpoints(local: LocalNode, current: CurrentFarm) -> AsyncIterator[ClientEndpoints]:
    """Have the endpoints bound while the block lasts. Raises `NodeStopped` and `KeyFileError`."""
    with zmq_endpoint(local, current, await read_zmq_keys(local)) as zmq:
        async with kafka_listener(local, current) as kafka:
            found: dict[str, ClientEndpoint | None] = {"zmq": zmq, "kafka": kafka}
            yield {name: each for name, each in found.items() if each is not None}


async def serve_clients(endpoints: ClientEndpoints) -> None:
    """Answer the clients of all until cancelled."""
    async with trio.open_nursery() as nursery:
        for each in endpoints.values():
            nursery.start_soon(each.serve)
