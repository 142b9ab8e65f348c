"""From `garlicfarm up` in an empty directory to a structure on disk that verifies and names every destination."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.farm import SERVERS, BenchmarkError
from benchmarks.figures import Figure

TIMEOUT_S = 60


def measure(directory: Path, repetitions: int) -> list[Figure]:
    """Runs the command as a user does; the time includes the interpreter's start and the making of all keys."""
    taken = []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory(dir=directory) as state:
            began = time.perf_counter()
            taken.append(_until_published(Path(state), began))
    group = f"garlicfarm up --servers {SERVERS}, empty directory"
    return [Figure(group, "until the Meta LeaseSet2 is on disk", "s", tuple(taken))]


def _until_published(state: Path, began: float) -> float:
    command = [*(sys.executable, "-m", "bridge.cli.main"), "up", "--servers", str(SERVERS), "--state-dir", str(state)]
    with subprocess.Popen(  # noqa: S603 - our own program
        [*command, "--exit-when-published"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        if process.stdout is None:
            raise BenchmarkError("no output to read")
        last, taken_s = "it said nothing", None
        for line in process.stdout:
            last = line.strip()
            if taken_s is None and " published " in line:
                taken_s = time.perf_counter() - began
        if process.wait(TIMEOUT_S) != 0 or taken_s is None:
            raise BenchmarkError(f"garlicfarm up ended with {process.returncode}: {last}")
    return taken_s
