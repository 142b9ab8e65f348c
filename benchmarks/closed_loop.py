"""The measured part of a client process on trio: warm up, say "ready", wait for "go", load, report.

Both client processes of ours run it, the one that speaks the Garlic Farm protocol and the one of the bare pipe, so the
same code measures what is compared. etcd's client does the same on asyncio, which its library needs.
"""

import sys
import time
from collections.abc import Awaitable, Callable

import trio

from benchmarks.load import GO, READY, WARM_UP_S, Load, Loop, Result


async def measured(submit: Callable[[int, int], Awaitable[str]], load: Load) -> Result:
    """What `submit` (see `Loop`) achieves under this load, once the parent has said "go"."""
    await _all(Loop(submit, load.clients), WARM_UP_S)
    print(READY, flush=True)
    if (await trio.to_thread.run_sync(sys.stdin.readline)).strip() != GO:
        raise SystemExit("the benchmark was given up")
    loop = Loop(submit, load.clients)
    began_s, processor_s = time.perf_counter(), time.process_time()
    await _all(loop, load.seconds)
    return loop.result(began_s, processor_s)


async def _all(loop: Loop, seconds: float) -> None:
    async with trio.open_nursery() as nursery:
        for client in range(loop.clients):
            nursery.start_soon(loop.one, client, seconds)
