"""Memory that a piece of code needs, without what the interpreter allocates by chance.

`tracemalloc` counts all allocations of the process. A table of the interpreter, such as its interned strings,
doubles at some moment and takes megabytes then. It does so in one run at most, so the lower peak of two runs counts.
"""

import tracemalloc
from collections.abc import Callable


def peak_bytes(work: Callable[[], object]) -> int:
    """Run `work` twice; return the lower peak of the memory allocated in a run."""
    return min(_peak_of_run(work), _peak_of_run(work))


def _peak_of_run(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
