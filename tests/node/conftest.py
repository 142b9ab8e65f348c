"""Fixtures of the tests of a node: simulated time, and small segments.

A simulated clock does not wait for threads, so it would advance while a thread reads or writes a file. The work of
threads therefore runs in the event loop. The machine's clock must advance with the simulated clock, because the
farm compares both.

A module requests them with `pytestmark = pytest.mark.usefixtures("machine_clock")`.
"""

from collections.abc import Callable
from functools import partial

import pytest
import trio

from bridge.node.raft import applied_state
from consensus.storage import StorageOptions
from tests.node.farm_stage import clock_now_ms


@pytest.fixture
def threads_in_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the work of threads in the event loop."""

    async def run_sync(function: Callable[..., object], *arguments: object) -> object:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
def machine_clock(monkeypatch: pytest.MonkeyPatch, threads_in_event_loop: None) -> None:  # noqa: ARG001 - for its effect
    monkeypatch.setattr(applied_state, "clock_ms", clock_now_ms)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small segments: a server writes the next one in advance, and 64 MB take longer than most tests."""
    small = partial(StorageOptions, segment_bytes=256 * 1024)
    monkeypatch.setattr("consensus.protocols.kraft.replica.open_voter.StorageOptions", small)
    monkeypatch.setattr("consensus.protocols.zmq_raft.peer.open_peer.StorageOptions", small)
