"""A command with all its processes: elapsed time, processor time, and the highest sum of their memory."""

from dataclasses import dataclass
from pathlib import Path

import psutil
import trio

from benchmarks.child import Child, ChildError
from benchmarks.processor_time import measured

SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Resident:
    """The memory of a process and its descendants, each page once."""

    java_bytes: int
    python_bytes: int
    others: int  # processes next to the JVM

    @property
    def total_bytes(self) -> int:
        """The memory of all processes."""
        return self.java_bytes + self.python_bytes


def resident_memory(pid: int) -> Resident:
    """Return the memory of a process and its descendants.

    This is not the sum of their resident memory. A JVM that starts a process exists twice for a moment, and workers
    share most of their pages with their parent.
    """
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return Resident(0, 0, 0)
    java_bytes = python_bytes = others = 0
    for process in family:
        try:
            resident_bytes = int(process.memory_full_info().pss)
            if process.name() == "java":
                java_bytes += resident_bytes
            else:
                python_bytes += resident_bytes
                others += 1
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return Resident(java_bytes, python_bytes, others)


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of a command."""

    seconds: float
    processor_s: float
    peak: Resident


async def run_measured(name: str, command: list[str], output_file: Path) -> Measured:
    """Run a command to its end. Raises ChildError if it fails."""
    peak = Resident(0, 0, 0)
    # It also ends if this process is interrupted or killed.
    async with await Child.start_foreign(name, command, output_file) as child:
        with measured(child.pid) as took:
            while child.running:
                peak = max(peak, resident_memory(child.pid), key=lambda each: each.total_bytes)
                await trio.sleep(SAMPLE_S)
        status = await child.receive_line()
    if status != "0":
        text = await trio.Path(output_file).read_text()
        raise ChildError(f"{name} ended with {status}: {text[-2000:]}")
    return Measured(took.seconds, took.processor_s, peak)
