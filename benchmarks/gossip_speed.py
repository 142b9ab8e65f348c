"""Datagrams per second of a gossip node beside a bare trio UDP echo, and the memory of a node that knows ten thousand.

    30 peers in this process ══ datagrams over loopback ══▶ one node (or the echo) in another process

A datagram of a node is the whole way: receive, open, decode, step, encode, seal, answer. The rates share the
machine with the askers and with whatever else runs; the processor time that the answering process spends on each
datagram does not, so the comparison with the echo is made by that time.

Two loads. *Many in flight*: each peer has two questions under way, 60 together, so that some wait whenever the node
looks; this is how many datagrams it can take. *One in flight*: a single question at a time, as in a quiet group, where
the event loop turns once for each datagram; this is what a datagram costs that comes alone. The echo gets the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from benchmarks.figures import Figure
from benchmarks.gossip_group import GroupError, Member, processes
from benchmarks.gossip_load import OUTSTANDING, PEERS, Asker, ask, echo_askers, introduce, peers_of, strangers
from benchmarks.gossip_node import BENCHMARK_KEY
from gossip import Keyring

QUESTIONS = 30_000
NEWS = 3
DIRECTORY = 10_000
PATIENCE_S = 1.0
"""A run ends after so long without an answer; a busy machine may keep a process waiting for half of that."""
PING_BYTES = 85
"""A sealed ping without news; the echo gets datagrams of that size."""

MIB = 1024 * 1024
GROUP = "gossip, datagrams over loopback: a ping in, its answer out"


@dataclass(frozen=True, slots=True)
class Load:
    """What a node is asked."""

    in_flight: int
    sealed: bool = True
    news: int = 0


MANY = OUTSTANDING * PEERS
ECHOES = {MANY: f"bare trio echo, {MANY} in flight", 1: "bare trio echo, one in flight"}
GOALS = {MANY: 0.5, 1: 0.3}
"""Of the echo's speed."""
NODES = {
    f"sealed, nothing new, {MANY} in flight": Load(MANY),
    f"sealed, {NEWS} infos riding, {MANY} in flight": Load(MANY, news=NEWS),
    f"in clear, nothing new, {MANY} in flight": Load(MANY, sealed=False),
    "sealed, nothing new, one in flight": Load(1),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """What one run measured."""

    per_second: float
    processor_us: float


async def speed(runs: int, questions: int = QUESTIONS) -> list[Figure]:
    """Measure the echoes and each kind of node in turn, so that all of them see the same load of the machine."""
    found: dict[str, list[Speed]] = {name: [] for name in (*ECHOES.values(), *NODES)}
    for _ in range(runs):
        for in_flight, name in ECHOES.items():
            found[name].append(await _echo(questions, in_flight))
        for name, load in NODES.items():
            found[name].append(await _node(questions, load))
    figures = []
    for name, speeds in found.items():
        figures.append(Figure(GROUP, name, "/s", tuple(each.per_second for each in speeds)))
        note = _share(NODES[name], found, speeds) if name in NODES else ""
        figures.append(
            Figure(GROUP, "  processor time of each", "us", tuple(each.processor_us for each in speeds), note)
        )
    return figures


def _share(load: Load, found: dict[str, list[Speed]], speeds: list[Speed]) -> str:
    echoes = found[ECHOES[load.in_flight]]
    shares = sorted(echo.processor_us / each.processor_us for echo, each in zip(echoes, speeds, strict=True))
    median = shares[len(shares) // 2]
    return f"{median:.0%} of the echo ({shares[0]:.0%} to {shares[-1]:.0%}); goal {GOALS[load.in_flight]:.0%}"


async def _echo(questions: int, in_flight: int) -> Speed:
    async with processes() as group:
        server = await group.start(program="udp_echo")
        with echo_askers(server.address, questions // PEERS, PING_BYTES) as askers:
            return await _timed(server, askers, in_flight)


async def _node(questions: int, load: Load) -> Speed:
    async with processes() as group:
        server = await group.start(options=("--quiet", *(() if load.sealed else ("--insecure",))))
        with peers_of(server.address, Keyring.of(BENCHMARK_KEY) if load.sealed else None) as peers:
            node = [peer.join() for peer in peers][-1]
            riding = tuple(strangers(load.news))
            for peer in peers:
                peer.prepare(node, questions // PEERS, riding)
            return await _timed(server, peers, load.in_flight)


async def _timed(server: Member, askers: Sequence[Asker], in_flight: int) -> Speed:
    before_s = server.processor_seconds()
    answers, seconds = await trio.to_thread.run_sync(lambda: ask(askers, PATIENCE_S, one_in_flight=in_flight == 1))
    if not answers:
        raise GroupError(f"no answer within {PATIENCE_S} s: the machine is too busy to be measured, try again")
    return Speed(answers / seconds, (server.processor_seconds() - before_s) / answers * 1e6)


async def memory() -> list[Figure]:
    """Measure a node alone, with 30 peers, and with these and a directory of ten thousand members."""
    async with processes() as group:
        server = await group.start(options=("--quiet", "--directory-limit", str(2 * DIRECTORY)))
        resident = [server.resident_bytes() / MIB]
        with peers_of(server.address, Keyring.of(BENCHMARK_KEY)) as peers:
            node = [peer.join() for peer in peers][-1]
            resident.append(server.resident_bytes() / MIB)
            infos = await trio.to_thread.run_sync(strangers, DIRECTORY)
            await trio.to_thread.run_sync(introduce, peers, node, infos)
            (summary,) = await group.summaries()
            resident.append(server.resident_bytes() / MIB)
    known = f"{summary['members']} members known, {summary['peers']} of them peers; goal: a whole node below 80 MB"
    group_name = "gossip, memory of a node in a separate process"
    return [
        Figure(group_name, "alone", "MiB", tuple(resident[:1])),
        Figure(group_name, f"{PEERS} peers", "MiB", tuple(resident[1:2])),
        Figure(group_name, f"{PEERS} peers and a directory of {DIRECTORY:,}", "MiB", tuple(resident[2:]), known),
    ]
