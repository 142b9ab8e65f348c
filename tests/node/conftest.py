"""Fixtures of the tests of a node in simulated time.

A simulated clock does not wait for threads, so it would advance while a thread reads or writes a file. The work of
threads therefore runs in the event loop. The machine's clock must advance with the simulated clock, because the
farm compares both.

A module requests them with `pytestmark = pytest.mark.usefixtures("machine_clock")`.
"""

from collections.abc import Callable

import pytest
import trio

from bridge.node.raft import applied_state
from tests.node.farm_stage import clock_now_ms


@pytest.fixture
def disk_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the work of threads in the event loop."""

    async def run_sync(function: Callable[..., object], *arguments: object) -> object:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
def machine_clock(monkeypatch: pytest.MonkeyPatch, disk_in_no_time: None) -> None:  # noqa: ARG001 - for its effect
    monkeypatch.setattr(applied_state, "clock_ms", clock_now_ms)
