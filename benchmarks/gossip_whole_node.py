"""The memory of a whole farm node whose gossip has thirty peers and a directory of ten thousand.

    garlicfarm run  ══ gossip of the farm, sealed with its key ══  30 peers in this process, which list 10,000 others
       └─ TLS, Raft, log, farm's state, publisher, control socket: all in use in a farm of three servers

The node is an operator's process with one changed setting: `capacity` in `[gossip]` is half of the required directory.
A directory has room for at least twice the maximum number of peers, and most of the capacity stays unused. The peers
are genuine: they join with tokens, reply to the node's pings, and list members in samples as every member does. The
others are signed descriptions with metadata as in a farm, so the farm's own member directory stores them too. Their
addresses are unused on loopback.

Resident memory includes shared pages, such as the interpreter's code; private memory does not.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import trio

from benchmarks.child import BenchmarkError
from benchmarks.farm import Server, running_farm, with_timing
from benchmarks.figures import Figure
from benchmarks.gossip_load import PEERS, answer_pings, introduce, invented_infos, peers_of
from benchmarks.job import Job
from bridge.core.formation.member import NodeMetadata, RoleHint
from bridge.node.control.client import ControlClient
from bridge.node.local.farm_files import LOOPBACK
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.node.security.key_files import load_farm_key
from bridge.node.settings.choices import Timing
from bridge.wire.membership.metadata import encode_metadata

DIRECTORY = 10_000
CAPACITY = (DIRECTORY + 10 * PEERS) // 2
SETTLED_S = 5.0
ANNOUNCEMENTS = 2
"""The number of times that each member is sent, since a full socket loses datagrams."""

MB = 1_000_000
GOAL_MB = 75
GROUP = "memory of a whole node of a farm: Raft, TLS, publisher and gossip in one process"
_KINDS = {
    "resident": re.compile(r"^Rss:\s+(\d+) kB", re.MULTILINE),
    "its own": re.compile(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", re.MULTILINE),
}


async def memory(job: Job) -> list[Figure]:
    """Measure a restarted node: idle, with 30 peers, with the directory, and after a request for its whole view.

    The first start also loads modules that create the certificate.
    """
    moments: dict[str, dict[str, float]] = {}
    capacities = iter([f"\ncapacity = {CAPACITY}", "", ""])

    def change(settings: str) -> str:
        return with_timing(settings, "gossip", Timing.LAN, next(capacities))

    async with running_farm(job.directory, Timing.LAN, change) as farm:
        server = farm.servers[0]
        await farm.restart()
        await trio.sleep(SETTLED_S)
        moments["restarted, idle"] = sizes_of(server)
        key = load_farm_key(farm.files.directory / "farm.key")
        with peers_of(f"{LOOPBACK}:{server.node.gossip_port}", key.key_ring, metadata=_router(key.cluster)) as peers:
            node = [peer.join() for peer in peers][-1]
            await trio.to_thread.run_sync(answer_pings, peers, SETTLED_S)
            moments[f"{PEERS} peers"] = sizes_of(server)
            infos = await trio.to_thread.run_sync(invented_infos, DIRECTORY, _router(key.cluster))
            for _ in range(ANNOUNCEMENTS):
                await trio.to_thread.run_sync(introduce, peers, node, infos)
            await trio.to_thread.run_sync(answer_pings, peers, SETTLED_S)
            moments[f"{PEERS} peers, directory of {DIRECTORY:,}"] = sizes_of(server)
            # This is last, because a view of ten thousand members needs memory itself.
            known = await _known(server)
            await trio.to_thread.run_sync(answer_pings, peers, SETTLED_S)
            moments["after a query of its view"] = sizes_of(server)
    if known < DIRECTORY:
        raise BenchmarkError(f"the node lists {known} members of {DIRECTORY}, so the figures would be of another node")
    note = f"{known} members known; goal below {GOAL_MB} MB"
    return [
        Figure(GROUP, f"{moment}: {kind}", "MB", (size,), note if kind == "resident" else "")
        for moment, sizes in moments.items()
        for kind, size in sizes.items()
    ]


def sizes_of(server: Server) -> dict[str, float]:
    """Return the memory of a node (Linux) in megabytes, by kind."""
    return sizes_mb(Path(f"/proc/{server.process.pid}/smaps_rollup").read_text(encoding="ascii"))


def sizes_mb(rollup: str) -> dict[str, float]:
    """Return a process's memory on Linux (`smaps_rollup`) in megabytes, by kind."""
    return {kind: sum(int(size) for size in sizes.findall(rollup)) * 1024 / MB for kind, sizes in _KINDS.items()}


async def _known(server: Server) -> int:
    async with ControlClient(server.node.directory / SOCKET_NAME) as client:
        return len((await client.view()).members)


def _router(cluster: str) -> Callable[[int], bytes]:
    """Return the metadata of a node that is not one of the farm's servers."""

    def metadata(number: int) -> bytes:
        name = f"router-{number}"
        endpoint = f"tcp://{LOOPBACK}:{1 + number % 65_000}"
        fingerprint = os.urandom(32)
        return encode_metadata(NodeMetadata(cluster, name, RoleHint.OBSERVER, None, endpoint, fingerprint))

    return metadata
