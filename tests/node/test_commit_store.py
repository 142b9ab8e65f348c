"""How far a log is committed is noted now and then and at the end, and a note that is damaged says nothing."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.node.raft.commit_store import FILE_NAME, NOTE_PERIOD_SECONDS, keep_commit_index, read_commit_index


async def test_what_was_applied_is_noted_every_half_minute_and_when_the_node_stops(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    del autojump_clock
    applied = [7]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_commit_index, tmp_path, lambda: applied[0])
        await trio.sleep(NOTE_PERIOD_SECONDS / 2)
        assert read_commit_index(tmp_path) is None
        await trio.sleep(NOTE_PERIOD_SECONDS)
        assert read_commit_index(tmp_path) == 7
        applied[0] = 9
        nursery.cancel_scope.cancel()
    assert read_commit_index(tmp_path) == 9


async def test_a_directory_that_cannot_be_written_stops_no_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    del autojump_clock
    gone = tmp_path / "gone"
    with trio.move_on_after(NOTE_PERIOD_SECONDS * 3) as span:
        await keep_commit_index(gone, lambda: 5)
    assert span.cancelled_caught
    assert read_commit_index(gone) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"committed": "7"}', '{"committed": true}', '{"committed": -1}'])
def test_a_damaged_note_is_no_note(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    assert read_commit_index(tmp_path) is None
