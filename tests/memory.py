"""Memory that a piece of code needs.

`tracemalloc` counts all allocations of the process, also those of reference cycles that wait for the garbage collector.
"""

import gc
import tracemalloc
from collections.abc import Callable


def peak_bytes(work: Callable[[], object]) -> int:
    """Run `work`; return the peak of the memory allocated in it."""
    assert gc.isenabled(), "an earlier test of this process disabled the garbage collector"
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
