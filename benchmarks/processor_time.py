"""The elapsed time and the processor time of a block of code, in a process and its descendants.

The system adds the time of an ended process to its parent only if the parent waits for it. Parents of Spark's workers
end before the workers, so that time would be lost. Therefore the times of every process are read several times a
second. The last reading counts: for an ended process, at most `SAMPLE_S` is missed.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

SAMPLE_S = 0.2


@dataclass(slots=True)
class Took:
    """The elapsed time and the processor time, in seconds."""

    seconds: float = 0.0
    processor_s: float = 0.0


@contextmanager
def measured(pid: int | None = None) -> Iterator[Took]:
    """Measure the processor time of a process and its descendants during the block; without `pid`, of this process."""
    took, ended = Took(), threading.Event()
    before_s = processor_times(pid)
    seen_s = dict(before_s)

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            seen_s.update(processor_times(pid))

    watcher = threading.Thread(target=watch, name="processor time")
    began = time.perf_counter()
    watcher.start()
    try:
        yield took
    finally:
        took.seconds = time.perf_counter() - began
        ended.set()
        watcher.join()
    seen_s.update(processor_times(pid))
    took.processor_s = sum(had_s - before_s.get(process, 0.0) for process, had_s in seen_s.items())


def processor_times(pid: int | None) -> dict[tuple[int, float], float]:
    """Return the processor seconds of each of these processes itself, by number and start."""
    spent_s: dict[tuple[int, float], float] = {}
    with suppress(psutil.NoSuchProcess):
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                spent_s[process.pid, process.create_time()] = times.user + times.system
    return spent_s
