"""The endpoints for clients of other protocols: ØMQ Raft (`[zmq]`) and Kafka (`[kafka]`).

    settings ──▶ [zmq]?   ──▶ extra installed? ──▶ `bridge.node.zmq.endpoint`    ─┐
             ──▶ [kafka]? ──▶ extra installed? ──▶ `bridge.node.kafka.endpoint`  ─┴─▶ bound, before gossip ──▶ serve

An endpoint is bound first, so that a node whose port is in use ends before other nodes count this start. The view shows
the address and the counters of each, under the name of its table of settings.

An endpoint needs some megabytes of memory and the packages of an extra. A node without the endpoint's table must not
need them. So this module imports the endpoint's module only if the settings have the table, and does so in a thread.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Protocol

import trio
from msgspec import Struct

from bridge.node.events.alarms import NodeStopped
from bridge.node.founded_farm import CurrentFarm
from bridge.node.local_node import LocalNode
from consensus import CountedReason


class ClientEndpoint(Protocol):
    """The interface of an endpoint for the node."""

    @property
    def url(self) -> str:
        """The address that clients connect to."""

    @property
    def counters(self) -> Mapping[CountedReason, int]:
        """The counts since the process started."""

    async def serve(self) -> None:
        """Serve clients until canceled."""


ClientEndpoints = Mapping[str, ClientEndpoint]
"""Endpoints by the name of their table of settings."""


class Extra(Struct, frozen=True):
    """The extra of a protocol: the table of settings that needs it, and its packages by module."""

    table: str
    packages: Mapping[str, str]

    @property
    def remedy(self) -> str:
        """The advice to an operator whose installation lacks the extra."""
        return f"install the extra (pip install 'garlicfarm[{self.table}]'), or remove [{self.table}] from the settings"

    def missing(self) -> str | None:
        """Return the name of a missing package; None if all are installed."""
        return next((package for module, package in self.packages.items() if find_spec(module) is None), None)


ZMQ: Final = Extra("zmq", {"zmq": "pyzmq"})
KAFKA: Final = Extra("kafka", {"kio": "kio", "cramjam": "cramjam"})


@asynccontextmanager
async def client_endpoints(local: LocalNode, current: CurrentFarm) -> AsyncIterator[ClientEndpoints]:
    """Bind the endpoints while the block lasts. Raise `NodeStopped` and `KeyFileError`."""
    found: dict[str, ClientEndpoint] = {}
    async with AsyncExitStack() as stack:
        for extra, settings in ((ZMQ, local.configuration.zmq), (KAFKA, local.configuration.kafka)):
            if settings is None:
                continue
            missing = extra.missing()
            if missing is not None:
                raise NodeStopped(f"{extra.table}.listen needs the package {missing}: {extra.remedy}")
            module = await trio.to_thread.run_sync(import_module, f"bridge.node.{extra.table}.endpoint")
            found[extra.table] = await stack.enter_async_context(module.open_endpoint(local, settings, current))
        yield found


async def serve_clients(endpoints: ClientEndpoints) -> None:
    """Serve the clients of all endpoints until canceled."""
    async with trio.open_nursery() as nursery:
        for each in endpoints.values():
            nursery.start_soon(each.serve)
