"""The peak memory of a piece of code.

`tracemalloc` counts all allocations of the process, including reference cycles that the garbage collector has not yet
freed. So the collector has the threshold of a node here, not the higher one of the tests (`tests/conftest.py`).
"""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Final

YOUNG_OBJECTS: Final = 700
"""A garbage collection by default follows after so many new objects."""


def peak_bytes(work: Callable[[], object]) -> int:
    """Run `work`; return the peak of the memory allocated by it."""
    assert gc.isenabled(), "an earlier test of this process disabled the garbage collector"
    threshold = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, *threshold[1:])
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.set_threshold(*threshold)
