"""Trials of whole farms: `python -m tests.simulation.farm --seeds 0:10000 --jobs 2 --resume build/farm-trials.json`.

    --seed N, and other options     one trial, or a few: `tests.simulation.farm.searching` has all options
    --seeds FROM:TO --jobs N        chunks of seeds in several processes; `--resume` keeps the finished chunks
    --idle-hours H                  a farm without faults for so long, to measure the speed

Each chunk has its process, so that memory is bounded and an interrupted run loses at most one chunk per job.
The exit status is 1 if a seed has failed.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from tests.simulation.farm import searching
from tests.simulation.farm.world import World, simulate

CHUNK_SEEDS: Final = 10
_SUMMARY: Final = re.compile(r"^(\d+) seeds, (\d+) failed, ([\d.]+) virtual hours", re.MULTILINE)


@dataclass(slots=True)
class ChunkProgress:
    """The finished chunks of a run, and their sums; `path` is the file that keeps them."""

    path: Path | None
    finished: list[int] = field(default_factory=list)
    """First seeds of the finished chunks."""
    failed: int = 0
    virtual_hours: float = 0.0

    @classmethod
    def read(cls, path: Path | None) -> "ChunkProgress":
        if path is None or not path.exists():
            return cls(path)
        return cls(path, **json.loads(path.read_text(encoding="utf-8")))

    def add(self, first: int, failed: int, virtual_hours: float) -> None:
        """Record a finished chunk."""
        self.finished.append(first)
        self.failed += failed
        self.virtual_hours += virtual_hours
        if self.path is not None:
            content = {"finished": self.finished, "failed": self.failed, "virtual_hours": self.virtual_hours}
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(content), encoding="utf-8")
            new.replace(self.path)


def chunks(seeds: str) -> Iterator[tuple[int, int]]:
    first, end = map(int, seeds.split(":"))
    for begin in range(first, end, CHUNK_SEEDS):
        yield begin, min(begin + CHUNK_SEEDS, end)


def run_chunks(seeds: str, jobs: int, progress: ChunkProgress, more: list[str]) -> None:
    """Run the unfinished chunks in `jobs` processes."""

    def run(chunk: tuple[int, int]) -> tuple[int, str]:
        command = [sys.executable, "-m", "tests.simulation.farm.searching", "--seeds", f"{chunk[0]}:{chunk[1]}", *more]
        return chunk[0], subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout

    waiting = [each for each in chunks(seeds) if each[0] not in progress.finished]
    with ThreadPoolExecutor(jobs) as pool:
        for first, output in pool.map(run, waiting):
            sys.stdout.write(output)
            sys.stdout.flush()
            found = _SUMMARY.search(output)
            if found is None:
                sys.exit(f"the process of the seeds from {first} has ended without a summary")
            progress.add(first, int(found[2]), float(found[3]))


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
    elif options.jobs is not None and options.seeds is not None:
        progress = ChunkProgress.read(options.resume)
        run_chunks(options.seeds, options.jobs, progress, more)
        sys.stdout.write(
            f"{len(progress.finished)} chunks, {progress.failed} seeds failed,"
            f" {progress.virtual_hours:.1f} virtual hours\n"
        )
        sys.exit(1 if progress.failed else 0)
    else:
        searching.main()


if __name__ == "__main__":
    main()
