"""Histograms of durations: counting, and a format that Prometheus accepts."""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from bridge.node.control.metrics import exposition
from bridge.node.events.alarms import Alarms
from bridge.node.events.durations import SLOW_BOUNDS_S, TEXTS, Durations, MeasuredDisk, MeasuredStateMachine
from bridge.node.events.event_log import EventLog
from bridge.node.raft.notices import RaftNotices
from consensus import Entry, Histogram, Index, LogId, Role, RoleChanged
from consensus.storage import DiskOperation, DiskReader, StorageReadResult
from consensus.storage.disk import SyncFile
from tests.operator_views import farm_view

PROMTOOL = shutil.which("promtool")


@given(st.lists(st.floats(-1, 100)))
def test_histogram_counts_duration_in_each_bound_above_it(seconds: list[float]) -> None:
    histogram = Histogram(SLOW_BOUNDS_S)
    for each in seconds:
        histogram.observe(each)
    counts = dict(histogram.cumulative())
    assert histogram.count == len(seconds) == counts[float("inf")]
    for bound_s in SLOW_BOUNDS_S:
        assert counts[bound_s] == sum(max(0.0, each) <= bound_s for each in seconds)
    assert histogram.total_s == pytest.approx(sum(max(0.0, each) for each in seconds))


def test_histograms_are_written_with_their_meaning() -> None:
    durations = Durations(Histogram())
    durations.commit.observe(0.004)
    durations.take_over.observe(1.2)
    text = exposition(farm_view(), durations).decode()
    for name, meaning in TEXTS.items():
        assert f"# HELP garlicfarm_{name}_seconds {meaning}" in text
    assert 'garlicfarm_commit_seconds_bucket{le="0.005"} 1.0' in text
    assert 'garlicfarm_commit_seconds_bucket{le="0.0025"} 0.0' in text
    assert 'garlicfarm_take_over_seconds_bucket{le="+Inf"} 1.0' in text
    assert "garlicfarm_take_over_seconds_sum 1.2" in text


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
async def test_promtool_accepts_metrics() -> None:
    checked = await trio.run_process(
        [str(PROMTOOL), "check", "metrics"],
        stdin=exposition(farm_view(), Durations(Histogram())),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    output = (checked.stdout + checked.stderr).decode()
    assert checked.returncode in (0, 3), output
    assert "error" not in output.lower(), output


class Slow:
    """A disk and a state machine with delays of seconds."""

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        del operations, start
        await trio.sleep(1)

    def begin(self, operations: Sequence[DiskOperation], ended: Callable[[Exception | None], None]) -> None:
        """Wait a second, and fail if there are operations."""

        async def perform() -> None:
            await trio.sleep(1)
            ended(OSError(5, "Input/output error") if operations else None)

        trio.lowlevel.spawn_system_task(perform)

    async def ask(self, question: Callable[[DiskReader], StorageReadResult]) -> StorageReadResult:
        """Fail the test: reads are not timed."""
        raise AssertionError(question)

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        """Wait two seconds."""
        del first, entries
        await trio.sleep(2)

    def snapshot(self) -> Iterator[bytes]:
        return iter([b"state"])

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """Wait five seconds."""
        del last, state
        await trio.sleep(5)


async def result_of(disk: MeasuredDisk, operations: Sequence[DiskOperation]) -> Exception | None:
    ends, done = list[Exception | None](), trio.Event()

    def ended(error: Exception | None) -> None:
        ends.append(error)
        done.set()

    disk.begin(operations, ended)
    await done.wait()
    return ends[0]


async def test_disk_or_state_machine_is_timed(autojump_clock: trio.testing.MockClock) -> None:
    assert autojump_clock is not None
    disk, applied = Histogram(), Histogram()
    measured = MeasuredDisk(Slow(), disk)
    await measured.perform_all(())
    assert await result_of(measured, ()) is None
    assert isinstance(await result_of(measured, (SyncFile("log"),)), OSError)
    machine = MeasuredStateMachine(Slow(), applied)
    await machine.apply(1, ())
    chunks = machine.snapshot()
    assert isinstance(chunks, Iterator)
    assert [*chunks] == [b"state"]
    assert disk.count == 2
    assert disk.total_s == pytest.approx(2)
    assert applied.count == 1
    assert applied.total_s == pytest.approx(2)


def test_takeover_is_timed_except_first_election(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("bridge.node.raft.notices.now_ms", lambda: now[0])
    trace, take_overs = EventLog("node-1", lambda: 0), Histogram(SLOW_BOUNDS_S)
    notices = RaftNotices(trace, Alarms(trace), lambda _: None, take_overs)
    now[0] = 5_000
    notices.observe(RoleChanged(Role.FOLLOWER, 1, 2))
    assert take_overs.count == 0
    now[0] = 60_000
    notices.observe(RoleChanged(Role.FOLLOWER, 2, None))
    now[0] = 61_500
    notices.observe(RoleChanged(Role.LEADER, 3, 1))
    assert take_overs.count == 1
    assert take_overs.total_s == pytest.approx(1.5)
