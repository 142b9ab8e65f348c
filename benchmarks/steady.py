"""A client that begins a write every 20 ms, independent of earlier writes: it measures the time without a leader.

    python -m benchmarks.steady SPECIFICATION     (JSON: target, or etcd: endpoints, certificate)

    stdin: a time of the monotonic clock ─▶ stdout: seconds from it until a write begun after it is acknowledged

A client that waits for each write would also measure its own timeout for the dead server. Writes begun before the given
time do not count: the dead server may have acknowledged them. Writes to etcd take turns among all members, each on a
separate connection. There are also connections to all servers of Garlic Farm: each client begins with another server,
and keeps its connections.
"""

import json
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import trio

from benchmarks.client import cluster_target, connect, entry
from benchmarks.etcd_group import request
from consensus import Outcome
from consensus.protocols.garlic_farm import GarlicFarmClient

PERIOD_S = 0.02
ATTEMPT_S = 10.0
UNDER_WAY_MAX = 200
KEPT = 1024
CLIENTS = 8
_THREADS = trio.CapacityLimiter(UNDER_WAY_MAX)


@dataclass(slots=True)
class Acknowledged:
    """The start and end of the latest acknowledged writes."""

    _writes: list[tuple[float, float]] = field(default_factory=list)

    def add(self, began_s: float, ended_s: float) -> None:
        """Record a write."""
        self._writes.append((began_s, ended_s))
        del self._writes[:-KEPT]

    def first(self, since_s: float) -> float | None:
        """Return the time of acknowledgment of the first write begun since then, or None."""
        return min((ended_s for began_s, ended_s in self._writes if began_s >= since_s), default=None)


def main() -> None:
    """Run as `python -m benchmarks.steady`."""
    trio.run(_run, json.loads(sys.argv[1]))


async def _run(document: dict[str, Any]) -> None:
    acknowledged = Acknowledged()
    async with trio.open_nursery() as nursery:
        if "etcd" in document:
            write: Callable[[int], Awaitable[bool]] = partial(
                _write_to_etcd, document["etcd"]["endpoints"], Path(document["etcd"]["certificate"])
            )
        else:
            clients = [connect(cluster_target(document["target"])) for _ in range(CLIENTS)]
            for client in clients:
                await nursery.start(client.run)
            write = partial(_write_to_farm, clients)
        nursery.start_soon(_write, write, acknowledged)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            since_s = float(line)
            while (found := acknowledged.first(since_s)) is None:  # noqa: ASYNC110 - as often as writes begin
                await trio.sleep(PERIOD_S)
            print(json.dumps({"seconds": found - since_s}), flush=True)
        nursery.cancel_scope.cancel()


async def _write_to_farm(clients: list[GarlicFarmClient], number: int) -> bool:
    submission = await clients[number % CLIENTS].submit((entry(number, 256),), timeout_s=ATTEMPT_S)
    return submission.outcome is Outcome.COMMITTED


async def _write_to_etcd(endpoints: list[str], certificate: Path, number: int) -> bool:
    body = {"key": b64encode(b"benchmark/steady").decode(), "value": b64encode(b"x" * 230).decode()}
    endpoint = endpoints[number % len(endpoints)]
    call = partial(request, endpoint, "kv/put", body, certificate, ATTEMPT_S)
    try:
        await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=_THREADS)
    except (OSError, HTTPException):
        return False
    return True


async def _write(write: Callable[[int], Awaitable[bool]], acknowledged: Acknowledged) -> None:
    limit = trio.CapacityLimiter(UNDER_WAY_MAX)

    async def attempt(number: int) -> None:
        async with limit:
            began_s = time.monotonic()
            if await write(number):
                acknowledged.add(began_s, time.monotonic())

    async with trio.open_nursery() as nursery:
        number = 0
        while True:
            number += 1
            if limit.available_tokens:
                nursery.start_soon(attempt, number)
            await trio.sleep(PERIOD_S)


if __name__ == "__main__":
    main()
