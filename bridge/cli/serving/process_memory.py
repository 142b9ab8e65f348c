"""The memory of a long-running process: returned to the system when it is freed, and not searched again for garbage.

By default `malloc` of glibc maps memory for each block above a limit, and raises this limit, up to 32 MiB, whenever
such a block is freed. Later large blocks, such as the buffers of incomplete requests, then grow by copies within one
heap. So the process holds more than twice their size, and keeps this heap while a small object is at its end. With a
fixed limit, the kernel moves a growing block without a copy and gets it back when it is freed. Threads share one
arena, because each arena keeps its freed memory. Environment variables of a service unit would do the same, but not
for a node started by hand.
"""

import gc
from ctypes import CDLL
from typing import Final

_ARENA_MAX: Final = -8
_MMAP_THRESHOLD: Final = -3
"""Numbers of `mallopt` in glibc's malloc.h."""
_MAPPED_FROM_BYTES: Final = 128 * 1024


def settle_memory() -> None:
    """Bound the memory kept by `malloc`, and exclude the objects of modules from collections of garbage.

    Otherwise each full collection stops the event loop for 40 ms. Call this after the imports, before any thread.
    """
    # Only glibc has this function.
    mallopt = getattr(CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
    gc.freeze()
