"""Processor time of single steps of the core: this tree and an earlier tree, in turns.

    each side: a process of consensus_step_driver in its own tree ─▶ calls of each step, then its time, turn by turn

Without disk, network and event loop, only the core's work for a step is left. A turn takes some ten milliseconds, the
sides alternate, and a ratio pairs the turns of one round. So a busy moment of the machine affects all sides. The number
of calls of Python functions does not depend on the machine. The earlier tree is a checkout or a commit (`--base`),
which git writes out.
"""

import subprocess
import sys
import tarfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from benchmarks.child import Child, ChildError
from benchmarks.figures import Figure, ratios
from benchmarks.job import Job

TREE = Path(__file__).parents[1]
DRIVER = Path(__file__).with_name("consensus_step_driver.py")
BASE, HERE = "before", "this tree"
TURNS_A_RUN = 10
GROUP = "consensus, one step of the core, without disk and network"


@dataclass(slots=True)
class Side:
    """One tree under measurement."""

    name: str
    child: Child
    calls: dict[str, float]
    turns: list[dict[str, float]] = field(default_factory=list)


async def measure(job: Job) -> list[Figure]:
    """Return the figures of all steps; print the reason for a missing comparison."""
    trees = {HERE: TREE}
    if job.base is None:
        print(f"{job.name}: no comparison, because --base does not name a checkout or a commit", flush=True)
    else:
        trees = {BASE: checkout(job.base, job.directory)} | trees
    async with AsyncExitStack() as stack:
        sides = [await _start(stack, job.directory, name, tree) for name, tree in trees.items()]
        for turn in range(job.runs * TURNS_A_RUN):
            for side in sides if turn % 2 else reversed(sides):
                side.turns.append(await side.child.request("turn"))
    return figures(sides)


def figures(sides: list[Side]) -> list[Figure]:
    """Return the time and the calls of each step on each side, and their ratios."""
    rows = []
    first = sides[0]
    for step in first.calls:
        for side in sides:
            times = tuple(turn[step] for turn in side.turns)
            rows.append(Figure(GROUP, f"{step}: {side.name}", "us", times, f"{side.calls[step]:g} calls in Python"))
        for side in sides[1:]:
            compared = ratios([turn[step] for turn in side.turns], [turn[step] for turn in first.turns])
            rows.append(Figure(GROUP, f"  {side.name} / {first.name}", "x", compared))
    return rows


def checkout(base: str, directory: Path) -> Path:
    """Return an earlier tree: an existing directory, or a commit, which git writes into `directory`."""
    if (Path(base) / "consensus").is_dir():
        return Path(base).resolve()
    archived = subprocess.run(  # noqa: S603 - the name is the command line's own
        ["git", "archive", "--format=tar", base, "consensus"],  # noqa: S607 - git is where PATH says
        cwd=TREE,
        capture_output=True,
        check=False,
    )
    if archived.returncode != 0:
        raise ChildError(f"--base: {base} is neither a checkout nor a commit: {archived.stderr.decode().strip()}")
    target = directory / "before"
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as archive:
        archive.extractall(target, filter="data")
    return target


async def _start(stack: AsyncExitStack, directory: Path, name: str, tree: Path) -> Side:
    # -P: the driver's own directory has modules with the names of packages.
    command = ["env", f"PYTHONPATH={tree}", sys.executable, "-P", str(DRIVER)]
    child = await stack.enter_async_context(await Child.start(name, command, directory / "driver.log"))
    return Side(name, child, await child.receive_document())
