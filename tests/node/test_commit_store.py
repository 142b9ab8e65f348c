"""The stored commit index: it is written periodically and at the end, and a damaged file is ignored."""

import os
import threading
from pathlib import Path

import pytest
import trio

from bridge.node.raft import commit_store
from bridge.node.raft.commit_store import FILE_NAME, keep_commit_index, read_commit_index
from tests.effort import each_case


@pytest.fixture
def short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a period of 10 ms in real time: a thread writes the files, and a simulated clock would not wait for it."""
    monkeypatch.setattr(commit_store, "NOTE_PERIOD_SECONDS", 0.01)


async def wait_stored(directory: Path, index: int) -> None:
    with trio.fail_after(60):
        while read_commit_index(directory) != index:  # noqa: ASYNC110 - a file does not report its changes
            await trio.sleep(0.005)


@pytest.mark.usefixtures("short_period")
async def test_applied_index_is_stored_each_period_or_at_end(tmp_path: Path) -> None:
    applied = [7]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_commit_index, tmp_path, lambda: applied[0])
        await wait_stored(tmp_path, 7)
        applied[0] = 9
        nursery.cancel_scope.cancel()
    assert read_commit_index(tmp_path) == 9


@pytest.mark.usefixtures("short_period")
async def test_unwritable_directory_does_not_stop_node(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with trio.move_on_after(0.1) as span:
        await keep_commit_index(missing, lambda: 5)
    assert span.cancelled_caught
    assert read_commit_index(missing) is None


@pytest.mark.usefixtures("short_period")
async def test_hung_disk_does_not_delay_loop_or_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, hangs = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def hang(_: int) -> None:
        token.run_sync_soon(hangs.set)
        answers.wait(60)

    monkeypatch.setattr(os, "fsync", hang)
    try:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_commit_index, tmp_path, lambda: 7)
                await hangs.wait()
                nursery.cancel_scope.cancel()
    finally:
        answers.set()


@each_case("content", ["", "{", "[]", '{"committed": "7"}', '{"committed": true}', '{"committed": -1}'])
def test_damaged_file_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    assert read_commit_index(tmp_path) is None
