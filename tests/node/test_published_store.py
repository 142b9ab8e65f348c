"""The second of the last structure outlives the process that handed it over."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.core.log.records import Publication, Report
from bridge.node.tasks.published_store import FILE_NAME, MASTERS_MAX, PublishedStore
from tests.node.farm_stage import MASTER, NOW_S, Stage, machine_clock

ONE, OTHER = b"1" * 32, b"2" * 32


async def test_what_was_noted_is_known_to_the_next_life(tmp_path: Path) -> None:
    note = PublishedStore(tmp_path)
    assert note.second(ONE) == 0
    await note.note(ONE, 7)
    await note.note(OTHER, 8)
    await note.note(ONE, 9)
    later = PublishedStore(tmp_path)
    assert (later.second(ONE), later.second(OTHER)) == (9, 8)


@pytest.mark.parametrize("content", [b"", b"{", b'{"seconds": {"00": -1}}', b"\xff" * 100_000])
async def test_a_damaged_file_is_no_note(content: bytes, tmp_path: Path) -> None:
    await trio.Path(tmp_path / FILE_NAME).write_bytes(content)
    note = PublishedStore(tmp_path)
    assert note.second(ONE) == 0
    await note.note(ONE, 5)
    assert PublishedStore(tmp_path).second(ONE) == 5


async def test_a_disk_that_takes_nothing_leaves_the_older_note(tmp_path: Path) -> None:
    note = PublishedStore(tmp_path / "gone")
    await note.note(ONE, 5)
    assert note.second(ONE) == 5
    assert PublishedStore(tmp_path / "gone").second(ONE) == 0


async def test_it_is_bounded_and_the_master_longest_unpublished_makes_room() -> None:
    note = PublishedStore(None)
    for number in range(MASTERS_MAX + 1):
        await note.note(number.to_bytes(32), number + 1)
    assert note.second((0).to_bytes(32)) == 0
    assert note.second(MASTERS_MAX.to_bytes(32)) == MASTERS_MAX + 1


async def test_what_was_published_alone_before_a_restart_is_reported_and_outdone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert autojump_clock.rate == 0
    machine_clock(monkeypatch)
    note = PublishedStore(None)
    await note.note(MASTER.destination.hash, NOW_S + 25)
    stage = Stage(published=note)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.background_tasks.run)
        await trio.sleep(6)
        nursery.cancel_scope.cancel()
    first = next(record for _, record in stage.records(Report) if isinstance(record, Report))
    assert first.masters[0].last_published_time_ms == (NOW_S + 25) * 1000
    published = next(record for _, record in stage.records(Publication) if isinstance(record, Publication))
    assert published.published_s == NOW_S + 26
    assert note.second(MASTER.destination.hash) == NOW_S + 26
