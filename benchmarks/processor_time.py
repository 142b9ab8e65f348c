"""What a block of code takes by the clock and of processors, of this process and of all that it started.

The processor time of a process that has ended counts in its parent's, which is why all four times of the system are
added: own and children's, in user mode and in the kernel.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil


@dataclass(slots=True)
class Took:
    """How long something took, by the clock and of the processors."""

    seconds: float = 0.0
    processor_s: float = 0.0


@contextmanager
def measured() -> Iterator[Took]:
    """What the block takes of this process and of all that it started."""
    took = Took()
    began, spent_s = time.perf_counter(), _processor_s()
    yield took
    took.seconds, took.processor_s = time.perf_counter() - began, _processor_s() - spent_s


def _processor_s() -> float:
    """Seconds of a processor that this process and its descendants have had, those that ended included."""
    spent_s = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            spent_s += sum(process.cpu_times()[:4])
    return spent_s
