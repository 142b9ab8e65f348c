"""The memory of an endpoint for ØMQ Raft clients: a farm's nodes, one of them with `[zmq]`.

    node 1, with [zmq] ◀── 20 clients, each reads the whole log 20 times     memory before and after
    nodes 2 and 3, without                                                   memory at the same times

All three run in one farm and have applied the same log, so they differ only by the endpoint and the leadership.
"""

from contextlib import aclosing
from typing import Final

import trio

from benchmarks.farm import Server, running_farm, with_tables
from benchmarks.figures import Figure
from benchmarks.gossip_whole_node import sizes_of
from benchmarks.job import Job
from bridge.node.local.farm_files import LOOPBACK
from bridge.node.settings.choices import Timing
from consensus.protocols.zmq_raft import connect
from tests.processes import free_ports

GROUP: Final = "memory of a node with an endpoint for ØMQ Raft clients, compared with nodes without"
SETTLED_S: Final = 5.0
CLIENTS: Final = 20
READS: Final = 20
GOAL_MB: Final = 8
_IDENT: Final = "benchmark"


async def measure(job: Job) -> list[Figure]:
    """Resident and private memory, idle and after clients have read."""
    url, broadcast = (f"tcp://{LOOPBACK}:{port}" for port in free_ports(2))
    settings = f'[zmq]\nlisten = "{url}"\nbroadcast = "{broadcast}"\nident = "{_IDENT}"\n'
    async with running_farm(job.directory, Timing.LAN, with_tables(settings)) as farm:
        await trio.sleep(SETTLED_S)
        found = _figures("idle", farm.servers)
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(_read, url)
        return found + _figures(f"after {CLIENTS} clients have read", farm.servers)


async def _read(url: str) -> None:
    async with connect([url], _IDENT) as client:
        for _ in range(READS):
            async with aclosing(client.entries(0)) as entries:
                async for _ in entries:
                    pass


def _figures(moment: str, servers: list[Server]) -> list[Figure]:
    endpoint, *others = [sizes_of(server) for server in servers]
    return [
        figure
        for kind, size in endpoint.items()
        for figure in (
            Figure(GROUP, f"{moment}: {kind}, with", "MB", (size,)),
            Figure(GROUP, f"{moment}: {kind}, without", "MB", tuple(each[kind] for each in others)),
            Figure(
                GROUP,
                f"{moment}: {kind}, more",
                "MB",
                tuple(size - each[kind] for each in others),
                f"goal: at most {GOAL_MB} MB" if kind == "resident" else "",
            ),
        )
    ]
