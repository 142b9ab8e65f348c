"""Trials of whole farms: `python -m tests.simulation.farm --seeds 0:10000 --jobs 2 --resume build/farm-trials.json`.

    --seed N, and other options     one trial, or a few: `tests.simulation.farm.searching` has all options
    --seeds FROM:TO --jobs N        chunks of seeds in several processes; `--resume FILE` records each finished chunk
    --idle-hours H                  a farm without faults for H hours, to measure the speed

Each chunk runs in a separate process, so that memory is bounded. An interrupted run loses at most one chunk per job.
The record has the failed seeds and the version of each chunk. The exit status is 1 if a seed has failed.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

import trio

from tests.simulation.farm import searching
from tests.simulation.farm.world import World, simulate

CHUNK_SEEDS: Final = 10


@dataclass(frozen=True, slots=True)
class Chunk:
    """A finished chunk of seeds."""

    first: int
    version: str
    """The commit of the simulated product, with the suffix `-dirty` if files were changed."""
    failed: tuple[int, ...]
    """The failed seeds."""
    virtual_hours: float


@dataclass(slots=True)
class ChunkProgress:
    """The finished chunks of a run; `path` is the file that keeps them."""

    path: Path | None
    chunks: list[Chunk] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None) -> "ChunkProgress":
        if path is None or not path.exists():
            return cls(path)
        stored = json.loads(path.read_text(encoding="utf-8")).get("chunks")
        if stored is None:
            raise SystemExit(f"{path} is from a version that did not record failed seeds; delete it to begin again")
        return cls(path, [Chunk(**each | {"failed": tuple(each["failed"])}) for each in stored])

    @property
    def failed(self) -> list[int]:
        return sorted(seed for each in self.chunks for seed in each.failed)

    @property
    def virtual_hours(self) -> float:
        return sum(each.virtual_hours for each in self.chunks)

    def add(self, chunk: Chunk) -> None:
        """Record a finished chunk."""
        self.chunks.append(chunk)
        if self.path is not None:
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps({"chunks": [asdict(each) for each in self.chunks]}), encoding="utf-8")
            new.replace(self.path)


def chunks(seeds: str) -> Iterator[tuple[int, int]]:
    first, end = map(int, seeds.split(":"))
    for begin in range(first, end, CHUNK_SEEDS):
        yield begin, min(begin + CHUNK_SEEDS, end)


def version() -> str:
    """Return the commit of the working tree, or the version of the installed package without a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return metadata.version("garlicfarm")


def output_of(first: int, end: int, more: list[str]) -> str:
    """Run the trials of a chunk in a process; return its output."""
    command = [sys.executable, "-m", "tests.simulation.farm.searching", "--seeds", f"{first}:{end}", *more]
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout


def run_chunks(seeds: str, jobs: int, progress: ChunkProgress, search: Callable[[int, int], str]) -> None:
    """Run the unfinished chunks, `jobs` at the same time, and record each one at its end."""

    def run(first: int, end: int) -> tuple[int, str, str]:
        before = version()
        return first, before, search(first, end)

    finished = {each.first for each in progress.chunks}
    pool = ThreadPoolExecutor(jobs)
    try:
        for each in as_completed([pool.submit(run, *each) for each in chunks(seeds) if each[0] not in finished]):
            first, before, output = each.result()
            sys.stdout.write(output)
            sys.stdout.flush()
            summary = searching.read_summary(output)
            if summary is None:
                sys.exit(f"the process of the seeds from {first} has ended without a summary")
            progress.add(Chunk(first, before, *summary))
    finally:
        pool.shutdown(cancel_futures=True)


def run_idle(seed: int, nodes: int, hours: float) -> None:
    """Run a farm without faults, and print the speed."""

    async def main() -> None:
        async with World.open(seed, nodes) as world:
            await world.start_all()
            await trio.sleep(3600 * hours)

    began_s = time.process_time()
    simulate(seed, main)
    spent_s = time.process_time() - began_s
    sys.stdout.write(
        f"{hours:g} idle hours of {nodes} nodes: {spent_s:.1f} s of processor time,"
        f" {3600 * hours / spent_s:.0f} virtual seconds per second\n"
    )


def main() -> None:
    """Run the trials or the idle farm of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seeds", metavar="FROM:TO")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--idle-hours", type=float)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options, more = parser.parse_known_args()
    if options.idle_hours is not None:
        run_idle(options.seed, options.nodes or 3, options.idle_hours)
    elif options.seeds is not None and (options.jobs is not None or options.resume is not None):
        progress = ChunkProgress.read(options.resume)
        run_chunks(options.seeds, options.jobs or 1, progress, lambda first, end: output_of(first, end, more))
        failed = f" ({' '.join(map(str, progress.failed))})" if progress.failed else ""
        sys.stdout.write(
            f"{len(progress.chunks)} chunks, {len(progress.failed)} seeds failed{failed},"
            f" {progress.virtual_hours:.1f} virtual hours\n"
        )
        sys.exit(1 if progress.failed else 0)
    else:
        searching.main()


if __name__ == "__main__":
    main()
