"""The rate of a node's Kafka listener for consumers, and its memory.

    kraft-consumers   one farm node, 256-byte entries, librdkafka ─┬ cold: the node has just restarted
                                                                   └ cached: the newest entries, repeatedly
                      for comparison the same consumer on a single Kafka 4.1 broker, with the same values
    kraft-memory      two farms, one without and one with `[kafka]` on every node: idle, and after consumers have read

If hypothesis is installed, as for the tests, kio loads it and uses 13 MB more. So `kraft-memory` prevents the import:
production nodes do not have hypothesis.

*Cold* means that record batches are built from entries of the log. The files may be in the page cache, as for the
broker, which sends them unchanged from the disk. The consumer shares the machine with the server.
"""

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import trio

from benchmarks.child import BenchmarkError, Child
from benchmarks.client import connect, entry
from benchmarks.farm import Farm, Server, running_farm, with_tables
from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.kraft_reader import Reading
from bridge.node.settings.choices import Timing
from consensus import Outcome
from tests.interop.kafka.jvm import JvmServers, running_jvm_servers
from tests.interop.kafka.tool_jvm import missing
from tests.processes import free_ports

ENTRY_BYTES: Final = 256
COLD_ENTRIES: Final = 100_000
CACHED_ENTRIES: Final = 10_000
"""The number of cached entries: fewer than the 4 MiB of batches in a node's cache."""
CACHED_PASSES: Final = 10
TOPIC: Final = "farm-log"
OURS: Final = "garlicfarm"
GOAL_CACHED: Final = 100_000
GOAL_COLD: Final = 40_000
GOAL_MEMORY_MB: Final = 20.0
MB: Final = 1_000_000
SETTLED_S: Final = 5.0
_HOST: Final = "127.0.0.1"
_BATCH: Final = 100
_CLIENTS: Final = 8
_READ_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class _Passes:
    """Records per second, cold and cached, and records per second of the server's processor time."""

    cold: tuple[float, ...]
    cached: tuple[float, ...]
    cold_per_processor_s: tuple[float, ...]
    cached_per_processor_s: tuple[float, ...]

    def figures(self, where: str, name: str) -> list[Figure]:
        is_ours = name == OURS
        notes = (f"; goal {GOAL_COLD:,}", f"; goal {GOAL_CACHED:,}") if is_ours else ("", "")
        return [
            Figure(where, f"{name}: cold", "/s", self.cold, f"{COLD_ENTRIES:,} after a start{notes[0]}"),
            Figure(where, f"{name}: cold, per second of its processor time", "/s", self.cold_per_processor_s),
            Figure(where, f"{name}: cached", "/s", self.cached, f"the newest {CACHED_ENTRIES:,} again{notes[1]}"),
            Figure(where, f"{name}: cached, per second of its processor time", "/s", self.cached_per_processor_s),
        ]


async def rates(job: Job) -> list[Figure]:
    """Return records per second; print the reason for a missing broker."""
    directory, runs = job.directory, job.runs
    where = f"Kafka consumers, {ENTRY_BYTES}-byte entries, librdkafka, one node"
    [port] = free_ports(1)
    async with running_farm(directory / "farm", Timing.LAN, with_tables(_table(port))) as farm:
        await _fill(farm, COLD_ENTRIES)
        figures = (await _of_farm(farm, f"{_HOST}:{port}", directory, runs)).figures(where, OURS)
    if (why := missing()) is not None:
        print(f"a broker of Kafka: left out: {why}", flush=True)
        return figures
    async with running_jvm_servers(directory / "jvm") as servers:
        return figures + (await _of_broker(servers, directory, runs)).figures(where, "Kafka 4.1")


async def _of_farm(farm: Farm, address: str, directory: Path, runs: int) -> _Passes:
    server = farm.servers[0]

    async def again() -> tuple[int, Callable[[], float]]:
        server.kill()
        await farm.settle()
        return await _applied(server), server.processor_seconds

    return await _passes(again, address, directory, runs)


async def _of_broker(servers: JvmServers, directory: Path, runs: int) -> _Passes:
    broker = await servers.add(1, roles="broker,controller", options=())
    await servers.format_static(broker, [broker.voter])
    await servers.start(broker)
    await servers.leader()
    tools, address = await servers.tools(), f"{_HOST}:{broker.broker_port}"
    properties = {"bootstrap.servers": address}
    await tools.do("create-topic", topic=TOPIC, properties=properties)
    await tools.do("produce", topic=TOPIC, count=COLD_ENTRIES, size=ENTRY_BYTES, properties=properties)

    async def again() -> tuple[int, Callable[[], float]]:
        await servers.kill(broker)
        await servers.start(broker)
        await servers.leader()
        if broker.child is None:
            raise BenchmarkError("the broker does not run")
        return COLD_ENTRIES, broker.child.processor_seconds

    return await _passes(again, address, directory, runs)


async def _passes(
    again: Callable[[], Awaitable[tuple[int, Callable[[], float]]]], address: str, directory: Path, runs: int
) -> _Passes:
    """Return the records per second; `again` restarts the server, and returns the topic's end and a processor clock."""
    cold: list[float] = []
    cold_cost: list[float] = []
    cached: list[float] = []
    cached_cost: list[float] = []
    for _ in range(runs):
        end, used_s = await again()
        await trio.sleep(SETTLED_S)
        before_s = used_s()
        cold += await _read(address, end, COLD_ENTRIES, 1, directory)
        cold_cost.append(COLD_ENTRIES / (used_s() - before_s))
        # The first pass fills the cache.
        await _read(address, end, CACHED_ENTRIES, 1, directory)
        before_s = used_s()
        cached += await _read(address, end, CACHED_ENTRIES, CACHED_PASSES, directory)
        cached_cost.append(CACHED_ENTRIES * CACHED_PASSES / (used_s() - before_s))
    return _Passes(tuple(cold), tuple(cached), tuple(cold_cost), tuple(cached_cost))


async def memory(job: Job) -> list[Figure]:
    """Return the extra cost of the listener: leader against leader, and each follower against a follower."""
    directory = job.directory
    ports = free_ports(3)
    with _without_hypothesis(directory):
        without, _ = await _resident(directory / "off", {})
        idle, read = await _resident(directory / "on", dict(enumerate(ports)))
    where = "memory of a node with a Kafka listener, three nodes"
    more_idle, more_read = (
        tuple(one - other for one, other in zip(found, without, strict=True)) for found in (idle, read)
    )
    return [
        Figure(where, "without the listener, idle", "MB", without, "leader and followers"),
        Figure(where, "with it, idle", "MB", idle),
        Figure(where, "with it, after a consumer has read", "MB", read, f"{CACHED_ENTRIES:,} entries from each"),
        Figure(where, "more, idle", "MB", more_idle, f"goal at most {GOAL_MEMORY_MB:g}"),
        Figure(where, "more, after a consumer has read", "MB", more_read, f"goal at most {GOAL_MEMORY_MB:g}"),
    ]


@contextmanager
def _without_hypothesis(directory: Path) -> Iterator[None]:
    """Prevent its import in processes started within the block."""
    hidden = directory / "hidden"
    hidden.mkdir(parents=True)
    (hidden / "hypothesis.py").write_text('raise ImportError("hidden")\n', encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(hidden), before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


async def _resident(directory: Path, ports: dict[int, int]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return MB, leader first: with the same entries in both farms, before and after consumers have read them."""
    async with running_farm(directory, Timing.LAN, with_tables(*map(_table, ports.values()))) as farm:
        await _fill(farm, CACHED_ENTRIES)
        await farm.settle()
        await trio.sleep(SETTLED_S)
        idle = await _by_role(farm)
        for place, port in ports.items():
            end = await _applied(farm.servers[place])
            await _read(f"{_HOST}:{port}", end, CACHED_ENTRIES, 1, directory)
        return idle, await _by_role(farm)


async def _by_role(farm: Farm) -> tuple[float, ...]:
    leader = await farm.leader()
    ranked = sorted(farm.servers, key=lambda server: server is not leader)
    return tuple(server.resident_bytes() / MB for server in ranked)


async def _fill(farm: Farm, count: int) -> None:
    """Commit `count` entries, and wait until every server has applied them."""
    client = connect(farm.target())
    left = iter(range(0, count, _BATCH))

    async def submit() -> None:
        for first in left:
            entries = [entry(first + each, ENTRY_BYTES) for each in range(_BATCH)]
            submission = await client.submit(entries)
            if submission.outcome is not Outcome.COMMITTED:
                raise BenchmarkError(f"entries were not committed: {submission.reason}")

    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        async with trio.open_nursery() as submitting:
            for _ in range(_CLIENTS):
                submitting.start_soon(submit)
        nursery.cancel_scope.cancel()
    await farm.settle()


async def _applied(server: Server) -> int:
    view = await server.view()
    if view is None or view.raft.applied_index is None:
        raise BenchmarkError(f"{server.node.name} does not report its applied index")
    return view.raft.applied_index


async def _read(address: str, end: int, count: int, passes: int, directory: Path) -> list[float]:
    """Return records per second of each pass. A single pass is timed from its first records, so without connecting."""
    reading, log = asdict(Reading(address, TOPIC, end, count, passes)), directory / "reader.log"
    result = await Child.run_module("a consumer", "benchmarks.kraft_reader", reading, log, _READ_TIMEOUT_S)
    if passes == 1:
        [found] = result["passes"]
        return [(found["records"] - found["first_records"]) / (found["seconds"] - found["first_s"])]
    return [found["records"] / found["seconds"] for found in result["passes"]]


def _table(port: int) -> str:
    return f'\n[kafka]\nlisten = "{_HOST}:{port}"\ntopic = "{TOPIC}"\n'
