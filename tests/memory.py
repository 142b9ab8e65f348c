"""The peak memory of a piece of code.

`tracemalloc` counts all allocations of the process, including reference cycles that the garbage collector has not yet
freed.
"""

import gc
import tracemalloc
from collections.abc import Callable


def peak_bytes(work: Callable[[], object]) -> int:
    """Run `work`; return the peak of the memory allocated by it."""
    assert gc.isenabled(), "an earlier test of this process disabled the garbage collector"
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
