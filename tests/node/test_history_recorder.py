"""The history of a node: recorded over restarts and kills, repaired, and never a reason for the node to stop."""

import fcntl
import logging
import os
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.observations.history import HistoryAnswer
from bridge.api.view import FarmView
from bridge.core.formation.member import MemberStatus
from bridge.core.history.changes import Changes
from bridge.core.history.records import MINUTE_MS, RowKind, SeriesKind
from bridge.node.history import recorder as recorder_module
from bridge.node.history.history_file import ASIDE, FILE_NAME, HistoryFile, HistoryFileError, read_history
from bridge.node.history.recorder import RETRY_S, HistoryEvent, HistoryRecorder
from bridge.wire.history.ring import FILE_BYTES
from consensus import Histogram
from tests.operator_views import NOW_MS
from tests.spec.test_verdict import healthy, with_status

HEALTHY = healthy(1)
DOWN = with_status(HEALTHY, node_3=MemberStatus.DEAD)


pytestmark = pytest.mark.usefixtures("threads_in_event_loop")


class RecordedNode:
    """A recorder whose clock is simulated time, with an offset."""

    def __init__(self, state_dir: Path, offset_ms: int = 0) -> None:
        self.commits = Histogram()
        self.offset_ms = offset_ms
        self.recorder = HistoryRecorder("oslo", state_dir, self.clock_ms, self.commits)

    def clock_ms(self) -> int:
        return NOW_MS + self.offset_ms + int(trio.current_time() * 1000)

    async def observe(self, view: FarmView, seconds: int) -> None:
        for _ in range(seconds):
            self.recorder.take(view)
            await trio.sleep(1)

    @property
    def failures(self) -> int:
        return self.recorder.counters[HistoryEvent.FAILED]


async def during(node: RecordedNode, story: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.recorder.run)
        await trio.testing.wait_all_tasks_blocked()
        await story()
        nursery.cancel_scope.cancel()


async def test_view_before_the_file_is_open_is_recorded(tmp_path: Path, autojump_clock: MockClock) -> None:
    node = RecordedNode(tmp_path)
    node.recorder.take(HEALTHY)

    async def story() -> None:
        await trio.sleep(0.5)
        verdict = next(row for row in (await node.recorder.page(1)).rows if row.kind is RowKind.VERDICT)
        assert [span.text for span in verdict.spans] == [HEALTHY.verdict.text]

    await during(node, story)


def spans_of(answer: HistoryAnswer, kind: RowKind, name: str | None = None) -> list[tuple[int, str]]:
    """Return the length in seconds and the text of each span of a row."""
    row = next((each for each in answer.rows if (each.kind, each.name) == (kind, name)), None)
    spans = () if row is None else row.spans
    return [(round((each.end_ms - each.start_ms) / 1000), each.text) for each in spans]


async def test_history_records_changes(tmp_path: Path, autojump_clock: MockClock) -> None:
    node = RecordedNode(tmp_path)

    async def story() -> None:
        await node.observe(HEALTHY, 100)
        await node.observe(DOWN, 50)
        node.commits.observe(0.25)
        await node.observe(HEALTHY, 100)
        answer = await node.recorder.page(24)
        assert spans_of(answer, RowKind.NODE, "node-3") == [(100, "alive"), (50, "dead"), (100, "alive")]
        lags = [each for each in answer.series if each.kind is SeriesKind.COMMIT_LAG]
        assert [value for value in lags[0].values if value is not None] == [250.0]

    await during(node, story)


async def test_history_survives_restart(tmp_path: Path, autojump_clock: MockClock) -> None:
    await during(first := RecordedNode(tmp_path), lambda: first.observe(DOWN, 30))
    second = RecordedNode(tmp_path)

    async def story() -> None:
        await trio.sleep(100)
        await second.observe(HEALTHY, 30)
        answer = await second.recorder.page(1)
        lengths = spans_of(answer, RowKind.NODE, "node-3")
        assert lengths == [(29, "dead"), (30, "alive")], "a gap while the node did not run"

    await during(second, story)


async def test_history_page_is_cached_for_seconds(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, reads = RecordedNode(tmp_path), [0]
    content = HistoryFile.content

    def counted(self: HistoryFile) -> object:
        reads[0] += 1
        return content(self)

    monkeypatch.setattr(HistoryFile, "content", counted)

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(node.recorder.page, 24)
        assert reads == [1]
        await trio.sleep(recorder_module.PAGE_AGE_S + 1)
        await node.recorder.page(24)
        assert reads == [2]

    await during(node, story)


async def test_history_torn_tail_is_counted(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    await during(first := RecordedNode(tmp_path), lambda: first.observe(DOWN, 130))
    path = tmp_path / FILE_NAME
    data = path.read_bytes()
    path.write_bytes(data.rstrip(b"\0")[:-3] + bytes(FILE_BYTES))
    second = RecordedNode(tmp_path)
    await during(second, lambda: second.observe(DOWN, 2))
    assert second.recorder.counters[HistoryEvent.CUT_OFF] == 1
    assert "1 damaged places" in caplog.text
    assert path.stat().st_size == FILE_BYTES


@pytest.mark.parametrize("foreign", ["text", "directory", "link", "pipe"])
async def test_history_foreign_file_is_set_aside(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, foreign: str
) -> None:
    path, target = tmp_path / FILE_NAME, tmp_path / "target"
    target.write_text("of another program")
    match foreign:
        case "text":
            path.write_text("of another program")
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(target)
        case _:
            os.mkfifo(path)
    node = RecordedNode(tmp_path)

    async def story() -> None:
        await node.observe(HEALTHY, 2)
        assert spans_of(await node.recorder.page(1), RowKind.NODE, "node-1")

    await during(node, story)
    assert f"is not a history of this version: {'' if foreign == 'text' else 'not a regular file'}" in caplog.text
    assert (tmp_path / ASIDE).lstat()
    assert target.read_text() == "of another program"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_history_full_disk_does_not_stop_node(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = RecordedNode(tmp_path)
    write = HistoryFile.write

    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    async def story() -> None:
        monkeypatch.setattr(HistoryFile, "write", full)
        await node.observe(DOWN, int(4 * RETRY_S))
        assert 2 <= node.failures <= 5
        assert f"{tmp_path / FILE_NAME} cannot be written: No space left on device" in caplog.text
        monkeypatch.setattr(HistoryFile, "write", write)
        await node.observe(DOWN, int(2 * RETRY_S))
        assert spans_of(await node.recorder.page(1), RowKind.NODE, "node-3")

    await during(node, story)


async def test_history_unwritable_directory_is_reported_once(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    node = RecordedNode(tmp_path / "missing")
    with caplog.at_level(logging.WARNING):
        await during(node, lambda: node.observe(HEALTHY, int(3 * RETRY_S)))
    assert node.failures >= 3
    assert caplog.text.count("nothing is recorded") == 1


async def test_history_slow_disk_drops_records(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = RecordedNode(tmp_path)

    async def story() -> None:
        monkeypatch.setattr(recorder_module, "PENDING_MAX", 3)
        async with node.recorder._disk:
            await node.observe(HEALTHY, 1)
            await node.observe(DOWN, 1)
        assert node.failures == 1
        monkeypatch.setattr(recorder_module, "PENDING_MAX", 2_000)
        await node.observe(HEALTHY, int(2 * RETRY_S))
        assert spans_of(await node.recorder.page(1), RowKind.NODE, "node-3")

    await during(node, story)


async def test_history_second_process_does_not_write(tmp_path: Path, autojump_clock: MockClock) -> None:
    first, second = RecordedNode(tmp_path), RecordedNode(tmp_path)

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.recorder.run)
            await first.observe(HEALTHY, 2)
            assert second.failures == 1
            assert not (tmp_path / ASIDE).exists()
            nursery.cancel_scope.cancel()

    await during(first, story)


async def test_history_of_stopped_node_is_readable(tmp_path: Path, autojump_clock: MockClock) -> None:
    await during(node := RecordedNode(tmp_path), lambda: node.observe(DOWN, 5))
    assert read_history(tmp_path).parts
    (tmp_path / FILE_NAME).write_text("x")
    with pytest.raises(HistoryFileError, match="not a history of this version"):
        read_history(tmp_path)


async def test_history_clock_back_keeps_recording(tmp_path: Path, autojump_clock: MockClock) -> None:
    node = RecordedNode(tmp_path)

    async def story() -> None:
        await node.observe(HEALTHY, 900)
        node.offset_ms = -10 * MINUTE_MS
        await node.observe(DOWN, 120)
        answer = await node.recorder.page(1)
        assert spans_of(answer, RowKind.NODE, "node-3") == [(300, "alive"), (120, "dead")]

    await during(node, story)


def test_history_of_killed_process_is_complete(tmp_path: Path) -> None:
    """The test kills a real process; the system then has every record written before the kill."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.close(reader)
            _record_until_killed(tmp_path, writer)
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as report:
        assert b"200\n" in iter(report.readline, b""), "the process ended early"
        os.kill(child, 9)
        os.waitpid(child, 0)
        last = max(200, *(int(line) for line in report.read().split(b"\n")[:-1]), 0)
    descriptor = os.open(tmp_path / FILE_NAME, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    found = read_history(tmp_path)
    assert found.parts[0][-1].time_ms >= NOW_MS + last
    assert found.cut_off <= 1


def _record_until_killed(directory: Path, report: int) -> None:
    from bridge.core.history.records import Row, State, StateRecord  # noqa: PLC0415 - in the child alone
    from bridge.node.history.history_file import open_history  # noqa: PLC0415

    file, _ = open_history(directory)
    number = 0
    while True:
        number += 1
        file.write([StateRecord(NOW_MS + number, Row(RowKind.NODE, f"node-{number % 7}"), State(f"{number}", 0))])
        os.write(report, f"{number}\n".encode())


def test_unchanged_view_costs_little() -> None:
    """If the recorder receives an equal view again, it does not make a record."""
    node = HistoryRecorder("oslo", Path("unused"), lambda: NOW_MS, Histogram())
    node._changes = Changes()
    node.take(HEALTHY)
    count = len(node._pending)
    for _ in range(100):
        node.take(replace(HEALTHY))
    assert len(node._pending) == count
