"""One client process: so many concurrent clients, each of which submits an entry, waits until it is committed, again.

    parent ──specification (JSON)──▶ connect, warm up ──"ready"──▶ parent ──"go"──▶ load ──result (JSON)──▶ parent

It speaks the Garlic Farm protocol through `GarlicFarmClient`, like any client: TLS with pinned certificates, Digest
upgrade, redirects to the leader. A latency runs from the call of `submit` to its return with "committed"; nothing else
counts as an entry. The clients are closed loops, so that at N clients at most N entries are under way.
"""

import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from random import Random

import trio

from consensus.core.effects import Outcome
from consensus.core.position import ServerId
from consensus.node.garlic_farm_client import ClientTuning, GarlicFarmClient
from consensus.node.garlic_farm_dial import Dialer, PeerAddress
from consensus.wire.garlic_farm.digest import Credentials
from consensus.wire.garlic_farm.upgrade import Identity
from consensus.wire.garlic_farm.upgrade_client import Caller

READY = "ready"
GO = "go"
WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """One server's address and certificate."""

    server_id: int
    host: str
    port: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """How to reach the servers of one farm."""

    cluster: str
    username: str
    password: str
    servers: tuple[ServerTarget, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What one client process does."""

    clients: int
    connections: int
    seconds: float
    entry_bytes: int


@dataclass(frozen=True, slots=True)
class Result:
    """What one client process found."""

    elapsed_s: float
    processor_s: float
    latencies_us: list[int]
    failures: dict[str, int]


def connect(target: ClusterTarget, tuning: ClientTuning | None = None) -> GarlicFarmClient:
    """A client of the farm; its `run` must be started."""
    addresses = {
        ServerId(server.server_id): PeerAddress(server.host, server.port, bytes.fromhex(server.fingerprint))
        for server in target.servers
    }
    credentials = Credentials(target.username, target.password)
    caller = Caller(target.cluster, lambda: (credentials,), Identity, os.urandom)
    return GarlicFarmClient(Dialer(caller), addresses.get, list(addresses), random=Random(), tuning=tuning)


def entry(number: int, size_bytes: int) -> bytes:
    """An application entry of just that size: one JSON object, which the farm keeps and reports as foreign."""
    head = f'{{"benchmark":{number},"padding":"'
    return f'{head}{"x" * (size_bytes - len(head) - 2)}"}}'.encode()


def main() -> None:
    """Run as `python -m benchmarks.client`, with the specification as the first line of standard input."""
    document = json.loads(sys.stdin.readline())
    servers = tuple(ServerTarget(**server) for server in document["target"].pop("servers"))
    target = ClusterTarget(**document["target"], servers=servers)
    print(json.dumps(asdict(trio.run(_run, target, Load(**document["load"])))))


def specification(target: ClusterTarget, load: Load) -> str:
    """The line that `main` reads."""
    return json.dumps({"target": asdict(target), "load": asdict(load)}) + "\n"


async def _run(target: ClusterTarget, load: Load) -> Result:
    latencies_us: list[int] = []
    failures: Counter[str] = Counter()
    async with trio.open_nursery() as nursery:
        connections = [connect(target) for _ in range(load.connections)]
        for connection in connections:
            await nursery.start(connection.run)
        clients = [connections[number % load.connections] for number in range(load.clients)]
        await _load(clients, load.entry_bytes, WARM_UP_S, [], Counter())
        print(READY, flush=True)
        if (await trio.to_thread.run_sync(sys.stdin.readline)).strip() != GO:
            raise SystemExit("the benchmark was given up")
        started = time.perf_counter()
        processor = time.process_time()
        await _load(clients, load.entry_bytes, load.seconds, latencies_us, failures)
        elapsed_s = time.perf_counter() - started
        nursery.cancel_scope.cancel()
    return Result(elapsed_s, time.process_time() - processor, latencies_us, dict(failures))


async def _load(
    clients: list[GarlicFarmClient],
    entry_bytes: int,
    seconds: float,
    latencies_us: list[int],
    failures: Counter[str],
) -> None:
    deadline = time.perf_counter() + seconds

    async def one(client: GarlicFarmClient, number: int) -> None:
        while (began := time.perf_counter()) < deadline:
            number += len(clients)
            submission = await client.submit((entry(number, entry_bytes),))
            if submission.outcome is Outcome.COMMITTED:
                latencies_us.append(round((time.perf_counter() - began) * 1e6))
            else:
                failures[f"{submission.outcome.name.lower()}: {submission.reason}"] += 1

    async with trio.open_nursery() as nursery:
        for number, client in enumerate(clients):
            nursery.start_soon(one, client, number)


if __name__ == "__main__":
    main()
