"""What proven identities cost: `python -m benchmarks identity`, or one of its parts.

identity-cost         one handshake, with proofs and without; one report: signed, verified, its bytes
identity-replay       the state machine takes a log of signed reports, beside one that believes what they say
identity-throughput   opaque entries: a farm of this tree and one of another (`--base`), by the same clients, in turns

Everything is measured in one run and told as a ratio beside the figure itself, since the machine may be busy.
"""

import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import trio

from benchmarks import identity_cost, identity_replay, identity_throughput
from benchmarks.figures import Figure

PARTS = ("identity-cost", "identity-replay", "identity-throughput")
"""Run only when they are named: a million entries are signed and verified, and the last part needs a second tree."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says about these parts."""

    base: Path | None
    """Another checkout, of before the proofs."""
    count: int
    """Entries of the replay."""


async def measure(
    names: Collection[str],
    directory: Path,
    options: Options,
    runs: int,
    seconds: float,
    tell: Callable[[list[Figure]], None],
) -> None:
    """The parts that are asked for. Says how busy the machine is, and what is left out."""
    for name in (part for part in PARTS if part in names):
        where = directory / name
        where.mkdir(parents=True)
        sys.stdout.write(f"\n{name}: begins at a load of {os.getloadavg()[0]:.1f}\n")
        match name:
            case "identity-cost":
                tell(await trio.to_thread.run_sync(identity_cost.measure, where, runs))
            case "identity-replay":
                tell(await identity_replay.measure(where, options.count))
            case _ if options.base is None:
                sys.stdout.write("identity-throughput is left out: --base names a checkout to compare with\n")
            case _:
                tell(await identity_throughput.measure(where, options.base, runs, seconds))
        sys.stdout.write(f"{name}: ended at a load of {os.getloadavg()[0]:.1f}\n")
