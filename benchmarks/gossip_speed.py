"""Datagrams per second of a gossip node, compared with a bare trio UDP echo.

    30 peers in this process ══ datagrams over loopback ══▶ one node (or the echo) in another process

The path of a datagram is complete: receive, open, decode, step, encode, seal, reply. The rates depend on the pinging
processes and on all other load of the machine. The replying process's processor time per datagram does not, so the
comparison with the echo uses that time.

There are two loads. *Many in flight*: each peer has two pings in flight, 60 together, so some always wait; this
measures the capacity of the node. *One in flight*: a single ping at a time, as in an idle group, with one turn of the
event loop per datagram. This measures the cost of a single datagram. The echo gets the same loads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from benchmarks.child import BenchmarkError, Child
from benchmarks.figures import Figure
from benchmarks.gossip_group import processes
from benchmarks.gossip_load import (
    OUTSTANDING,
    PEERS,
    Asker,
    echo_askers,
    invented_infos,
    peers_of,
    run_askers,
)
from benchmarks.gossip_node import BENCHMARK_KEY
from benchmarks.job import Job
from gossip import Keyring

QUESTIONS = 30_000
NEWS = 3
PATIENCE_S = 1.0
"""Seconds without a reply that end a run; a busy machine may delay a process for half of that."""
PING_BYTES = 85
"""The size of a sealed ping without infos, and of the datagrams for the echo."""

GROUP = "gossip, datagrams over loopback: a ping and its reply"


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a node."""

    in_flight: int
    goal: float
    """The goal, as a share of the echo's speed."""
    sealed: bool = True
    news: int = 0


MANY = OUTSTANDING * PEERS
ECHOES = {MANY: f"bare trio echo, {MANY} in flight", 1: "bare trio echo, one in flight"}
NODES = {
    f"sealed, without infos, {MANY} in flight": Load(MANY, 0.6),
    f"sealed, with {NEWS} infos, {MANY} in flight": Load(MANY, 0.5, news=NEWS),
    f"in clear, without infos, {MANY} in flight": Load(MANY, 0.6, sealed=False),
    "sealed, without infos, one in flight": Load(1, 0.4),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """The figures of one run."""

    per_second: float
    processor_us: float


async def speed(job: Job, questions: int = QUESTIONS) -> list[Figure]:
    """Measure the echoes and each kind of node in turn, under the same load of the machine."""
    found: dict[str, list[Speed]] = {name: [] for name in (*ECHOES.values(), *NODES)}
    for _ in range(job.runs):
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
    return f"{median:.0%} of the echo ({shares[0]:.0%} to {shares[-1]:.0%}); goal {load.goal:.0%}"


async def _echo(questions: int, in_flight: int) -> Speed:
    async with processes() as group:
        server = await group.start(program="udp_echo")
        with echo_askers(server.address, questions // PEERS, PING_BYTES) as askers:
            return await _timed(server.child, askers, in_flight)


async def _node(questions: int, load: Load) -> Speed:
    async with processes() as group:
        server = await group.start(options=("--quiet", *(() if load.sealed else ("--insecure",))))
        with peers_of(server.address, Keyring.of(BENCHMARK_KEY) if load.sealed else None) as peers:
            node = [peer.join() for peer in peers][-1]
            riding = tuple(invented_infos(load.news))
            for peer in peers:
                peer.prepare(node, questions // PEERS, riding)
            return await _timed(server.child, peers, load.in_flight)


async def _timed(server: Child, askers: Sequence[Asker], in_flight: int) -> Speed:
    before_s = server.processor_seconds()
    answers, seconds = await trio.to_thread.run_sync(
        lambda: run_askers(askers, PATIENCE_S, one_in_flight=in_flight == 1)
    )
    if not answers:
        raise BenchmarkError(f"no answer within {PATIENCE_S} s: the machine is too busy to be measured, try again")
    return Speed(answers / seconds, (server.processor_seconds() - before_s) / answers * 1e6)
