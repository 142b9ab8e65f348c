"""One client process with concurrent clients: each submits an entry, waits until it is committed, and repeats.

The process uses the Garlic Farm protocol through `GarlicFarmClient`, like any client: TLS with pinned certificates,
Digest upgrade, redirects to the leader. `load` defines its messages to and from the parent. The clients of etcd
(in Go) and of the bare pipe measure in the same way.
"""

import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import trio

from benchmarks.child import READY, Child
from benchmarks.load import GO, WARM_UP_S, Load, Loop, Result
from consensus import Outcome, integer_id
from consensus.protocols.garlic_farm import (
    ClientOptions,
    Credentials,
    Dialer,
    GarlicFarmClient,
    Identity,
    Initiator,
    PeerAddress,
)


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """One server's address and certificate."""

    server_id: int
    host: str
    port: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """The addresses and credentials of one farm."""

    cluster: str
    username: str
    password: str
    servers: tuple[ServerTarget, ...]


def connect(target: ClusterTarget, options: ClientOptions | None = None) -> GarlicFarmClient:
    """Return a client of the farm; the caller starts its `run`."""
    addresses = {
        server.server_id: PeerAddress(server.host, server.port, bytes.fromhex(server.fingerprint))
        for server in target.servers
    }
    credentials = Credentials(target.username, target.password)
    caller = Initiator(target.cluster, lambda: (credentials,), Identity, os.urandom, None)
    return GarlicFarmClient(
        Dialer(caller),
        lambda server: addresses.get(integer_id(server)),
        list(addresses),
        random=Random(),
        options=options,
    )


def entry(number: int, size_bytes: int) -> bytes:
    """Return an application entry of exactly this size: a JSON object that the farm counts as foreign."""
    head = f'{{"benchmark":{number},"padding":"'
    return f'{head}{"x" * (size_bytes - len(head) - 2)}"}}'.encode()


def main() -> None:
    """Run as `python -m benchmarks.client`, with the specification as the only argument."""
    document = json.loads(sys.argv[1])
    print(json.dumps(asdict(trio.run(_run, cluster_target(document["target"]), Load(**document["load"])))))


def cluster_target(document: dict[str, Any]) -> ClusterTarget:
    """Return the target of a specification."""
    servers = tuple(ServerTarget(**server) for server in document["servers"])
    return ClusterTarget(**document | {"servers": servers})


async def start(target: ClusterTarget, load: Load | None, log: Path) -> Child:
    """Start a process with this load, or a process of steady writes."""
    document = {"target": asdict(target), "load": None if load is None else asdict(load)}
    return await Child.start_module("client", f"benchmarks.{'steady' if load is None else 'client'}", document, log)


async def _run(target: ClusterTarget, load: Load) -> Result:
    async with trio.open_nursery() as nursery:
        connections = [connect(target) for _ in range(load.connections)]
        for connection in connections:
            await nursery.start(connection.run)

        async def submit(client: int, number: int) -> str:
            entries = [entry(number * load.batch + each, load.entry_bytes) for each in range(load.batch)]
            submission = await connections[client % load.connections].submit(entries)
            if submission.outcome is Outcome.COMMITTED:
                return ""
            return f"{submission.outcome.name.lower()}: {submission.reason}"

        result = await measured(submit, load)
        nursery.cancel_scope.cancel()
    return result


async def measured(submit: Callable[[int, int], Awaitable[str]], load: Load) -> Result:
    """Measure `submit` (see `Loop`) under this load after the parent has sent "go"."""
    await _all(Loop(submit, load.clients), WARM_UP_S)
    print(READY, flush=True)
    if (await trio.to_thread.run_sync(sys.stdin.readline)).strip() != GO:
        raise SystemExit("the benchmark was canceled")
    loop = Loop(submit, load.clients)
    began_s, processor_s = time.perf_counter(), time.process_time()
    await _all(loop, load.seconds)
    return loop.result(began_s, processor_s)


async def _all(loop: Loop, seconds: float) -> None:
    async with trio.open_nursery() as nursery:
        for client in range(loop.clients):
            nursery.start_soon(loop.one, client, seconds)


if __name__ == "__main__":
    main()
