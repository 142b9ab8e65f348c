"""Datagrams per second of a gossip node beside a bare trio UDP echo, and the memory of a node that knows ten thousand.

    30 peers in this process ══ datagrams over loopback ══▶ one node (or the echo) in another process

A datagram of a node is the whole journey: receive, open, decode, step, encode, seal, answer. The rates share the
machine with the askers and with whatever else runs; the processor time that the answering process spends on each
datagram does not, so the comparison with the echo is made by that time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from benchmarks.figures import Figure
from benchmarks.gossip_group import Member, processes
from benchmarks.gossip_load import PEERS, Asker, acquaint, ask, echo_askers, peers_of, strangers
from benchmarks.gossip_node import BENCHMARK_KEY
from gossip.wire.seal import KeyRing

QUESTIONS = 30_000
NEWS = 3
DIRECTORY = 10_000
PING_BYTES = 85
"""A sealed ping without news; the echo gets datagrams of that size."""

MIB = 1024 * 1024
GROUP = "gossip, datagrams over loopback: a ping in, its answer out"
ECHO = "bare trio echo"
NODES = {
    "sealed, nothing new": (True, 0),
    f"sealed, {NEWS} infos riding": (True, NEWS),
    "in clear, nothing new": (False, 0),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """What one run measured."""

    per_second: float
    processor_us: float


async def speed(runs: int, questions: int = QUESTIONS) -> list[Figure]:
    """The echo and each kind of node in turn, so that all of them see the same moods of the machine."""
    found: dict[str, list[Speed]] = {name: [] for name in (ECHO, *NODES)}
    for _ in range(runs):
        found[ECHO].append(await _echo(questions))
        for name, (sealed, news) in NODES.items():
            found[name].append(await _node(questions, sealed=sealed, news=news))
    figures = []
    for name, speeds in found.items():
        figures.append(Figure(GROUP, name, "/s", tuple(each.per_second for each in speeds)))
        shares = [echo.processor_us / each.processor_us for echo, each in zip(found[ECHO], speeds, strict=True)]
        note = "" if name == ECHO else f"{sorted(shares)[runs // 2]:.0%} of the echo; goal 50%"
        figures.append(
            Figure(GROUP, f"{name}: processor time of each", "us", tuple(each.processor_us for each in speeds), note)
        )
    return figures


async def _echo(questions: int) -> Speed:
    async with processes() as group:
        server = await group.start(program="udp_echo")
        with echo_askers(server.address, questions // PEERS, PING_BYTES) as askers:
            return await _timed(server, askers)


async def _node(questions: int, *, sealed: bool, news: int) -> Speed:
    async with processes() as group:
        server = await group.start(options=("--quiet", *(() if sealed else ("--insecure",))))
        with peers_of(server.address, KeyRing(BENCHMARK_KEY) if sealed else None) as peers:
            node = [peer.join() for peer in peers][-1]
            riding = tuple(strangers(news))
            for peer in peers:
                peer.prepare(node, questions // PEERS, riding)
            return await _timed(server, peers)


async def _timed(server: Member, askers: Sequence[Asker]) -> Speed:
    before_s = server.processor_seconds()
    answers, seconds = await trio.to_thread.run_sync(ask, askers)
    return Speed(answers / seconds, (server.processor_seconds() - before_s) / answers * 1e6)


async def memory() -> list[Figure]:
    """A node alone, with 30 peers, and with a directory of ten thousand beside them."""
    async with processes() as group:
        server = await group.start(options=("--quiet", "--directory-limit", str(2 * DIRECTORY)))
        resident = [server.resident_bytes() / MIB]
        with peers_of(server.address, KeyRing(BENCHMARK_KEY)) as peers:
            node = [peer.join() for peer in peers][-1]
            resident.append(server.resident_bytes() / MIB)
            infos = await trio.to_thread.run_sync(strangers, DIRECTORY)
            await trio.to_thread.run_sync(acquaint, peers, node, infos)
            (summary,) = await group.summaries()
            resident.append(server.resident_bytes() / MIB)
    known = f"{summary['members']} members known, {summary['peers']} of them peers; goal: a whole node below 80 MB"
    group_name = "gossip, memory of a node in a process of its own"
    return [
        Figure(group_name, "alone", "MiB", tuple(resident[:1])),
        Figure(group_name, f"{PEERS} peers", "MiB", tuple(resident[1:2])),
        Figure(group_name, f"{PEERS} peers and a directory of {DIRECTORY:,}", "MiB", tuple(resident[2:]), known),
    ]
