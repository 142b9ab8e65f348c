"""The memory of a long-running process: returned to the system when it is freed, and not searched again for garbage.

By default, glibc gives each large block its own mapping. But each time such a block is freed, glibc raises the minimum
size of a large block, up to 32 MiB. Later blocks below that size, such as the buffers of incomplete requests, then grow
by copies within one heap. The process holds more than twice their size, and keeps the heap while a small object is at
its end. With fixed sizes, each large block has its own mapping, and the process unmaps the freed block. Each new
mapping costs page faults: smaller sizes would double the time for messages of 100 KB to 1 MB. Threads share one arena,
because each arena keeps freed memory.

Environment variables of a service unit would do the same, but not for a node started by hand.
"""

import gc
from ctypes import CDLL
from typing import Final

_ARENA_MAX: Final = -8
_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
"""Numbers of `mallopt` in glibc's malloc.h."""
_MAPPED_FROM_BYTES: Final = 2**20
_KEPT_BYTES: Final = 2 * 2**20
"""The free end of the heap that the process keeps. With glibc's default, 128 KiB, each message costs page faults."""


def bound_malloc() -> None:
    """Bound the memory kept by glibc's `malloc`. Call this before the first thread starts, which gets its own arena."""
    # musl and macOS do not have this function.
    mallopt = getattr(CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def exclude_modules_from_collections() -> None:
    """Exclude all present objects from collections of garbage: each full one would stop the event loop for 40 ms."""
    gc.freeze()
