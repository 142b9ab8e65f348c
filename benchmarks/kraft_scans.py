"""The latency of a commit of `garlicfarm kraft serve`, alone and concurrently with one client that only queries.

    voters ─▶ RECORDS old records with random times ─▶ rounds of: alone, then each scan

    writer    a process: one record of 64 bytes, committed before the next
    scan      a process: the next request is sent with the reply to the previous one

Neither a JVM nor librdkafka is needed: both processes use the protocol's own client, connected to the leader. A scan
queries the quorum's state, the offset of a random time, or 64 KiB of records from a random offset.
"""

import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from benchmarks.child import Child, ChildError
from benchmarks.figures import Figure, latencies, ratios
from benchmarks.job import Job
from benchmarks.kraft_quorum import VOTERS, OurVoters, led
from consensus.protocols.kafka import DialOptions, open_connection
from tests.interop.kafka.query_requests import (
    fix_versions,
    offset_of_time,
    produce_error,
    quorum_state,
    records_from,
    records_of_times,
)

RECORDS: Final = 100_000
RECORD_BYTES: Final = 64
FETCH_BYTES: Final = 64 * 1024
TIMES_MS: Final = 1_000_000_000
"""The times of old records are random below this."""
WRITES_S: Final = 4.0
GOAL: Final = 1.5
"""The largest ratio of the median latency with a scan to the latency without one."""
SCANS: Final = {
    "state": "DescribeQuorum",
    "times": "ListOffsets by time",
    "records": "Fetch of old records",
}
_HOST: Final = "127.0.0.1"
_BATCH: Final = 1_000

Ask = Callable[[Any], Awaitable[Any]]
"""`KafkaConnection.ask`."""


@dataclass(frozen=True, slots=True)
class Load:
    """The specification of a process."""

    port: int
    kind: str
    """`write`, or a scan."""
    seconds: float


async def measure(job: Job) -> list[Figure]:
    """Return the latencies and the rates of the scans."""
    directory = job.directory
    quorum = OurVoters(directory, {"controller.quorum.append.linger.ms": 0})
    microseconds: dict[str, list[list[int]]] = {kind: [] for kind in ("", *SCANS)}
    rates: dict[str, list[float]] = {kind: [] for kind in SCANS}
    shares: dict[str, list[float]] = {kind: [] for kind in ("", *SCANS)}
    try:
        for node_id in VOTERS:
            await quorum.start(node_id)
        leader = (await led(quorum)).leader
        port = quorum.ports()[leader]
        await _fill(port)
        first = {kind: (await _loads(directory, Load(port, kind, 1.0)))[0] for kind in ("write", *SCANS)}
        for _ in range(job.runs):
            for kind, found in microseconds.items():
                used_s = quorum.processor_seconds(leader)
                loads = [Load(port, each, WRITES_S) for each in ("write", kind) if each]
                results = await _loads(directory, *loads)
                found.append(results[0]["microseconds"])
                if kind:
                    rates[kind].append(results[1]["requests"] / WRITES_S)
                shares[kind].append(100 * (quorum.processor_seconds(leader) - used_s) / WRITES_S)
    finally:
        with trio.CancelScope(shield=True):
            await quorum.close()
    first_ms = float(first["times"]["first_ms"])
    figures = _figures(microseconds, rates, shares)
    note = "reads every record once"
    return [*figures, Figure(figures[0].group, "first ListOffsets by time after a start", "ms", (first_ms,), note)]


def _figures(
    microseconds: dict[str, list[list[int]]], rates: dict[str, list[float]], shares: dict[str, list[float]]
) -> list[Figure]:
    where = f"KRaft, one writer, {RECORDS:,} old records, three voters, linger 0 ms"
    times = {kind: latencies(where, SCANS.get(kind, "alone"), turns) for kind, turns in microseconds.items()}
    figures = []
    for kind, found in times.items():
        name = SCANS.get(kind, "alone")
        figures += [*found, Figure(where, f"{name}: the leader's processor time", "%", tuple(shares[kind]))]
        if kind:
            compared = ratios(found[0].values, times[""][0].values)
            figures += [
                Figure(where, f"{name}: latency p50 / alone", "x", compared, f"goal at most {GOAL:g}"),
                Figure(where, f"{name}: requests", "/s", tuple(rates[kind])),
            ]
    return figures


async def _loads(directory: Path, *loads: Load) -> list[dict[str, Any]]:
    """Run processes concurrently; return what each measured. They begin when all are connected."""
    children: list[Child] = []
    try:
        for load in loads:
            log = directory / f"{load.kind}.log"
            children.append(await Child.start_module(load.kind, "benchmarks.kraft_scans", asdict(load), log))
        for child in children:
            await child.receive_line()
        for child in children:
            await child.send_line("begin")
        return [await child.receive_document() for child in children]
    finally:
        for child in children:
            await child.end()


async def _fill(port: int) -> None:
    random = Random(1)
    async with open_connection(_HOST, port) as connection:
        fix_versions(connection)
        for _ in range(RECORDS // _BATCH):
            await _produce(connection.ask, [random.randrange(TIMES_MS) for _ in range(_BATCH)])


async def _produce(ask: Ask, times_ms: list[int]) -> None:
    error = produce_error(await ask(records_of_times(times_ms, RECORD_BYTES)))
    if error:
        raise ChildError(f"Produce failed with error {error}")


async def _write(ask: Ask, until_s: float) -> dict[str, Any]:
    found: list[int] = []
    while time.perf_counter() < until_s:
        began_ns = time.perf_counter_ns()
        await _produce(ask, [TIMES_MS])
        found.append((time.perf_counter_ns() - began_ns) // 1000)
    return {"microseconds": found}


async def _scan(ask: Ask, kind: str, until_s: float) -> dict[str, Any]:
    random, count, began_s, first_s = Random(2), 0, time.perf_counter(), 0.0
    requests: dict[str, Callable[[], Any]] = {
        "state": quorum_state,
        "times": lambda: offset_of_time(random.randrange(TIMES_MS)),
        "records": lambda: records_from(random.randrange(RECORDS), FETCH_BYTES),
    }
    while time.perf_counter() < until_s:
        await ask(requests[kind]())
        count += 1
        first_s = first_s or time.perf_counter() - began_s
    return {"requests": count, "first_ms": 1000 * first_s}


async def run(load: Load) -> dict[str, Any]:
    """Send the requests of a process for its time; return what it measured."""
    async with open_connection(_HOST, load.port, DialOptions(request_timeout_ms=30_000)) as connection:
        fix_versions(connection)
        print("connected", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        until_s = time.perf_counter() + load.seconds
        if load.kind == "write":
            return await _write(connection.ask, until_s)
        return await _scan(connection.ask, load.kind, until_s)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        print(json.dumps(trio.run(run, Load(**json.loads(sys.argv[1])))), flush=True)
