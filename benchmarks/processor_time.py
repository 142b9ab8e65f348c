"""What a block of code takes by the clock and of processors, of this process and of all that it started.

The system adds the time of a process that ended to its parent's only if the parent waits for it. Spark's workers are
started by processes that end before them, so that what they had is in no sum any more. Therefore every process is read
several times a second by its own times, and counts with what it had when it was last seen: of one that ends, at most
`SAMPLE_S` is missed.
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
    """How long something took, by the clock and of the processors."""

    seconds: float = 0.0
    processor_s: float = 0.0


@contextmanager
def measured() -> Iterator[Took]:
    """Measure the processor time of this process and its children during the block."""
    took, ended = Took(), threading.Event()
    before_s = _processor_s()
    seen_s = dict(before_s)

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            seen_s.update(_processor_s())

    watcher = threading.Thread(target=watch, name="processor time")
    began = time.perf_counter()
    watcher.start()
    try:
        yield took
    finally:
        took.seconds = time.perf_counter() - began
        ended.set()
        watcher.join()
    seen_s.update(_processor_s())
    took.processor_s = sum(had_s - before_s.get(process, 0.0) for process, had_s in seen_s.items())


def _processor_s() -> dict[tuple[int, float], float]:
    """Seconds of a processor that each of these processes itself has had, by number and start."""
    spent_s: dict[tuple[int, float], float] = {}
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent_s[process.pid, process.create_time()] = times.user + times.system
    return spent_s
