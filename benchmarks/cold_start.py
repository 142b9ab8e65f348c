"""From `garlicfarm up` in an empty directory to a valid structure of every destination on disk.

    the command ─▶ its processes run ─▶ every node has started ─▶ the farm is created ─▶ a leader ─▶ published

Each event, and the file, has its own time by this machine's clock, so the polling interval of the command does not
matter. The command prints the path of the file when it has verified the structure.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.child import BenchmarkError
from benchmarks.farm import SERVERS
from benchmarks.figures import Figure
from benchmarks.job import Job

TIMEOUT_S = 60
DAY_S = 24 * 3600
GOAL = "goal: 2.5 s"
STEPS = {
    "every process of a node runs": ("process-started", SERVERS),
    "every node has started": ("node-started", SERVERS),
    "the farm is created": ("farm-founded", 1),
    "a server leads": ("leader-elected", 1),
}
"""The kind of event of each step, and the required number of events."""
PUBLISHED = "the Meta LeaseSet2 is on disk"
_LINE = re.compile(r"(\d\d):(\d\d):(\d\d\.\d{3}) (?:\S+ )?([a-z]+(?:-[a-z]+)*)(?=[: ])")


def measure(job: Job) -> list[Figure]:
    """Run the command as a user does; the time includes the start of the interpreter and the creation of all keys."""
    times: dict[str, list[float]] = {step: [] for step in (*STEPS, PUBLISHED)}
    for _ in range(job.runs):
        with tempfile.TemporaryDirectory(dir=job.directory) as state:
            began_s = time.time()
            *lines, path = _output(Path(state))
            times[PUBLISHED].append(Path(path).stat().st_mtime - began_s)
            for step, reached_s in steps(lines, began_s).items():
                times[step].append(reached_s)
    group = f"garlicfarm up --nodes {SERVERS}, empty directory"
    return [
        Figure(group, f"until {step}", "s", tuple(values), GOAL if step == PUBLISHED else "")
        for step, values in times.items()
    ]


def steps(lines: Iterable[str], began_s: float) -> dict[str, float]:
    """Return the time of each step, in seconds after `began_s`. Raise BenchmarkError if one is missing."""
    seen: dict[str, list[float]] = {}
    for line in lines:
        found = _LINE.match(line)
        if found is not None:
            hours, minutes, seconds, kind = found.groups()
            of_day_s = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
            seen.setdefault(kind, []).append((of_day_s - began_s) % DAY_S)
    reached = {}
    for step, (kind, count) in STEPS.items():
        times = sorted(seen.get(kind, []))
        if len(times) < count:
            raise BenchmarkError(f"garlicfarm up reported {kind} {len(times)} times, not {count}")
        reached[step] = times[count - 1]
    return reached


def _output(state: Path) -> list[str]:
    command = [*(sys.executable, "-m", "bridge.cli.main"), "up", "--nodes", str(SERVERS), "--state-dir", str(state)]
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [*command, "--exit-when-published"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"garlicfarm up took more than {TIMEOUT_S} s") from None
    lines = done.stdout.splitlines()
    if done.returncode != 0:
        raise BenchmarkError(f"garlicfarm up ended with {done.returncode}: {lines[-1] if lines else 'without output'}")
    return lines
