"""What a node's Kafka listener gives consumers, and what it takes of memory.

    kraft-consumers   one farm node, 256-byte entries, librdkafka ─┬ cold: the node was just started again
                                                                   └ cached: the newest entries again and again
                      beside it the same consumer on a broker of Kafka 4.1 alone, with the same values
    kraft-memory      two farms, one without and one with `[kafka]` on every node: idle, and after consumers have read

*Cold* means that a record batch is made of entries that come from the log. The files may be in the page cache, as they
are for the broker, which sends them as they lie on the disk. The consumer shares the machine with what serves it.
"""

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import trio

from benchmarks.child import Child
from benchmarks.client import connect, entry
from benchmarks.farm import BenchmarkError, Farm, Server, running_farm
from benchmarks.figures import Figure
from benchmarks.kraft_reader import Reading
from bridge.node.settings.choices import Timing
from consensus import Outcome
from tests.interop.kafka.jvm import JvmServers, listening_ports, running_jvm_servers

ENTRY_BYTES: Final = 256
COLD_ENTRIES: Final = 100_000
CACHED_ENTRIES: Final = 20_000
CACHED_PASSES: Final = 9
TOPIC: Final = "farm-log"
GOAL_CACHED: Final = 100_000
GOAL_COLD: Final = 40_000
GOAL_MEMORY_MB: Final = 20.0
MB: Final = 1_000_000
SETTLED_S: Final = 5.0
_HOST: Final = "127.0.0.1"
_BATCH: Final = 100
_CLIENTS: Final = 8
_READ_TIMEOUT_S: Final = 600.0


async def rates(directory: Path, runs: int, no_jvm: str | None) -> list[Figure]:
    """Records a second; `no_jvm` says why no broker can stand beside."""
    where = f"Kafka consumers, {ENTRY_BYTES}-byte entries, librdkafka, one node"
    [port] = listening_ports(1)
    async with running_farm(directory / "farm", Timing.LAN, first_server=_table(port)) as farm:
        await _fill(farm, COLD_ENTRIES)
        cold, cached = await _of_farm(farm, f"{_HOST}:{port}", directory, runs)
    figures = [
        Figure(where, "garlicfarm: cold, after a start", "/s", cold, f"{COLD_ENTRIES:,} entries; goal {GOAL_COLD:,}"),
        Figure(where, "garlicfarm: cached", "/s", cached, f"the newest {CACHED_ENTRIES:,}; goal {GOAL_CACHED:,}"),
    ]
    if no_jvm is not None:
        print(f"a broker of Kafka beside it: left out: {no_jvm}", flush=True)
        return figures
    async with running_jvm_servers(directory / "jvm") as servers:
        cold, cached = await _of_broker(servers, directory, runs)
    return [
        *figures,
        Figure(where, "Kafka 4.1: cold, after a start", "/s", cold, f"{COLD_ENTRIES:,} records"),
        Figure(where, "Kafka 4.1: the newest again", "/s", cached, f"the newest {CACHED_ENTRIES:,}"),
    ]


async def _of_farm(farm: Farm, address: str, directory: Path, runs: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    server, cold = farm.servers[0], list[float]()
    for _ in range(runs):
        server.kill()
        await farm.settle()
        await trio.sleep(SETTLED_S)
        cold += await _read(address, TOPIC, await _applied(server), COLD_ENTRIES, 1, directory)
    end = await _applied(server)
    # The first pass fills the cache.
    _, *cached = await _read(address, TOPIC, end, CACHED_ENTRIES, CACHED_PASSES + 1, directory)
    return tuple(cold), tuple(cached)


async def _of_broker(servers: JvmServers, directory: Path, runs: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    broker = await servers.add(1, roles="broker,controller", options=())
    await servers.format_static(broker, [broker.voter])
    await servers.start(broker)
    await servers.leader()
    tools, address = await servers.tools(), f"{_HOST}:{broker.broker_port}"
    properties = {"bootstrap.servers": address}
    await tools.do("create-topic", topic=TOPIC, properties=properties)
    await tools.do("produce", topic=TOPIC, count=COLD_ENTRIES, size=ENTRY_BYTES, properties=properties)
    cold: list[float] = []
    for _ in range(runs):
        await servers.kill(broker)
        await servers.start(broker)
        await servers.leader()
        await trio.sleep(SETTLED_S)
        cold += await _read(address, TOPIC, COLD_ENTRIES, COLD_ENTRIES, 1, directory)
    _, *cached = await _read(address, TOPIC, COLD_ENTRIES, CACHED_ENTRIES, CACHED_PASSES + 1, directory)
    return tuple(cold), tuple(cached)


async def memory(directory: Path) -> list[Figure]:
    """What a node takes more with the listener: the leader beside the leader, and each follower beside a follower."""
    without, _ = await _resident(directory / "off", {})
    ports = listening_ports(3)
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


async def _resident(directory: Path, ports: dict[int, int]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """In MB, the leader first: with the same entries in both farms, before and after consumers have read them."""
    tables: Iterator[str] = itertools.chain(map(_table, ports.values()), itertools.repeat(""))
    async with running_farm(directory, Timing.LAN, change=lambda settings: settings + next(tables)) as farm:
        await _fill(farm, CACHED_ENTRIES)
        await farm.settle()
        await trio.sleep(SETTLED_S)
        idle = await _by_role(farm)
        for place, port in ports.items():
            end = await _applied(farm.servers[place])
            await _read(f"{_HOST}:{port}", TOPIC, end, CACHED_ENTRIES, 1, directory)
        return idle, await _by_role(farm)


async def _by_role(farm: Farm) -> tuple[float, ...]:
    leader = await farm.leader()
    ranked = sorted(farm.servers, key=lambda server: server is not leader)
    return tuple(server.resident_bytes() / MB for server in ranked)


async def _fill(farm: Farm, count: int) -> None:
    """Have so many entries committed, and applied everywhere."""
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
        raise BenchmarkError(f"{server.node.name} does not say what it has applied")
    return view.raft.applied_index


async def _read(address: str, topic: str, end: int, count: int, passes: int, directory: Path) -> list[float]:
    """Records a second, of each pass."""
    asked = Reading(address, topic, end, count, passes)
    child = await Child.start_module("a consumer", "benchmarks.kraft_reader", asdict(asked), directory / "reader.log")
    try:
        told = await child.hear_document(_READ_TIMEOUT_S)
    finally:
        await child.end()
    return [found["records"] / found["seconds"] for found in told["passes"]]


def _table(port: int) -> str:
    return f'\n[kafka]\nlisten = "{_HOST}:{port}"\ntopic = "{TOPIC}"\n'
