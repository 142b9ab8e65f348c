"""The consensus part of the benchmarks: `python -m benchmarks consensus`, or one of its parts.

consensus-throughput    the bare group, a pipe without consensus, and etcd, in turns
consensus-failover      SIGKILL of the leader, in the bare group and etcd in turns
consensus-restart       a log of a million entries: memory, verification, application
consensus-budget        the time of one entry, hop by hop
consensus-split         the processor time of an entry by kind of work, in the leader and in a follower
consensus-scale         the cost of an entry by the number of servers, up to 64
consensus-step          processor time of single steps of the core, compared with an earlier tree (`--base`)
"""

import os
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import (
    consensus_budget,
    consensus_failover,
    consensus_restart,
    consensus_scale,
    consensus_split,
    consensus_step,
    consensus_throughput,
)
from benchmarks.figures import Figure
from benchmarks.machine import Machine

SETTING = (
    "consensus                     3 bare servers: Garlic Farm protocol, TLS 1.3, fdatasync on, a state machine that",
    "                              counts; clients in other processes on this machine, over TLS to the leader;",
    "                              etcd: gRPC over TLS for clients and peers, fsync on, its own store, client in Go;",
    "                              the pipe: frames over the same TLS, fdatasync on, no Raft",
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line for these parts."""

    runs: Callable[[str], int]
    """The number of runs of a part."""
    seconds: float
    base: str | None = None
    """An earlier checkout or commit."""


PARTS: Final[dict[str, Callable[[Path, Machine, Options], Awaitable[tuple[list[Figure], list[str]]]]]] = {
    "consensus-throughput": lambda where, machine, options: consensus_throughput.measure(
        where, machine, options.runs("consensus-throughput"), options.seconds
    ),
    "consensus-failover": lambda where, _, options: consensus_failover.measure(
        where, options.runs("consensus-failover")
    ),
    "consensus-restart": lambda where, _, options: consensus_restart.measure(where, options.runs("consensus-restart")),
    "consensus-budget": lambda where, _, options: consensus_budget.measure(
        where, options.runs("consensus-budget"), options.seconds
    ),
    "consensus-split": lambda where, _, options: consensus_split.measure(
        where, options.runs("consensus-split"), options.seconds
    ),
    "consensus-scale": lambda where, _, options: consensus_scale.measure(
        where, options.runs("consensus-scale"), options.seconds
    ),
    "consensus-step": lambda where, _, options: consensus_step.measure(
        where, options.base, options.runs("consensus-step")
    ),
}
"""Each part returns its figures, and remarks about missing programs."""


async def measure(
    names: Collection[str],
    directory: Path,
    machine: Machine,
    options: Options,
    report: Callable[[list[Figure]], None],
) -> None:
    """Run the named parts. Report missing programs and the load of the machine."""
    if not set(names) & set(PARTS):
        return
    print("\n".join(SETTING), flush=True)
    home = directory / "consensus"
    for name in PARTS:
        if name not in names:
            continue
        where = home / name
        where.mkdir(parents=True)
        print(f"\n{name}: begins at a load of {os.getloadavg()[0]:.1f}", flush=True)
        figures, remarks = await PARTS[name](where, machine, options)
        report(figures)
        for remark in remarks:
            print(remark, flush=True)
        print(f"{name}: ended at a load of {os.getloadavg()[0]:.1f}", flush=True)
