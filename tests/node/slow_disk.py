"""A disk whose first write is slow."""

from collections.abc import Callable

import pytest
import trio


def hold_first_write(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Run the work of threads in the event loop; the first call waits for the returned event."""
    is_free, calls = trio.Event(), list[Callable[..., object]]()

    async def run_sync(function: Callable[..., object], *arguments: object) -> object:
        calls.append(function)
        if len(calls) == 1:
            await is_free.wait()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    return is_free
