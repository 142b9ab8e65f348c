"""The store of the last published timestamp: it remains after the process ends."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.core.log.records import Publication, Report
from bridge.node.tasks.published_store import FILE_NAME, MASTERS_MAX, PublishedStore
from tests.node.farm_stage import MASTER, NOW_S, Stage
from tests.node.slow_disk import hold_first_write

ONE, OTHER = b"1" * 32, b"2" * 32


async def test_stored_second_is_loaded_after_restart(tmp_path: Path) -> None:
    store = PublishedStore(tmp_path)
    assert store.second(ONE) == 0
    await store.note(ONE, 7)
    await store.note(OTHER, 8)
    await store.note(ONE, 9)
    later = PublishedStore(tmp_path)
    assert (later.second(ONE), later.second(OTHER)) == (9, 8)


@pytest.mark.parametrize("content", [b"", b"{", b'{"seconds": {"00": -1}}', b"\xff" * 100_000])
async def test_damaged_file_is_ignored(content: bytes, tmp_path: Path) -> None:
    await trio.Path(tmp_path / FILE_NAME).write_bytes(content)
    store = PublishedStore(tmp_path)
    assert store.second(ONE) == 0
    await store.note(ONE, 5)
    assert PublishedStore(tmp_path).second(ONE) == 5


async def test_failed_write_keeps_older_file(tmp_path: Path) -> None:
    store = PublishedStore(tmp_path / "missing")
    await store.note(ONE, 5)
    assert store.second(ONE) == 5
    assert PublishedStore(tmp_path / "missing").second(ONE) == 0


@pytest.mark.parametrize("node_ends", [False, True])
async def test_second_of_other_master_remains_after_slow_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, node_ends: bool
) -> None:
    store, disk_is_free = PublishedStore(tmp_path), hold_first_write(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.note, ONE, 5)
        await wait_all_tasks_blocked()
        nursery.start_soon(store.note, OTHER, 6)
        await wait_all_tasks_blocked()
        if node_ends:
            nursery.cancel_scope.cancel()
        disk_is_free.set()
    later = PublishedStore(tmp_path)
    assert (later.second(ONE), later.second(OTHER)) == (5, 6)


async def test_store_is_bounded_and_drops_oldest_master() -> None:
    store = PublishedStore(None)
    for number in range(MASTERS_MAX + 1):
        await store.note(number.to_bytes(32), number + 1)
    assert store.second((0).to_bytes(32)) == 0
    assert store.second(MASTERS_MAX.to_bytes(32)) == MASTERS_MAX + 1


@pytest.mark.usefixtures("machine_clock")
async def test_publication_after_restart_is_later_than_stored_one(autojump_clock: MockClock) -> None:
    store = PublishedStore(None)
    await store.note(MASTER.destination.hash, NOW_S + 25)
    stage = Stage(published=store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.background_tasks.run)
        await trio.sleep(6)
        nursery.cancel_scope.cancel()
    first = next(record for _, record in stage.records(Report) if isinstance(record, Report))
    assert first.masters[0].last_published_time_ms == (NOW_S + 25) * 1000
    published = next(record for _, record in stage.records(Publication) if isinstance(record, Publication))
    assert published.published_s == NOW_S + 26
    assert store.second(MASTER.destination.hash) == NOW_S + 26
