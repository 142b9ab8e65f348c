"""Several farms in one stream: separate offsets, fair shares of a batch, and changes of the file of farms.

An unresponsive farm is reported and does not delay the others.
"""

import json
import os
import pickle
import threading
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from bridge.node.offline import stored_farm_writer
from bridge.node.offline.stored_farm import StoredFarm, StoredFarmError
from bridge.node.raft.commit_store import write_commit_index
from consensus.storage import StorageOptions
from pipeline.load_model import EPOCH_MS
from pipeline.local import query as local_query
from pipeline.local.checkpoint import StoredCheckpoint
from pipeline.local.query import LocalQuery
from pipeline.output.documents import Document
from pipeline.repair.checkpoint import checkpoint_fault
from pipeline.run import ProblemReports, _entries_per_s, places, removed_in
from pipeline.schemas import ENTRIES, EVENTS
from pipeline.source import farm, farms, log_client
from pipeline.source.events import FarmEventsDataSource, FarmEventsStreamReader
from pipeline.source.farm import FarmDataSource, FarmStreamReader, Task
from pipeline.source.farms import ManyFarms, Unread
from pipeline.source.log_client import SHOWN_MAX, FarmLog, FarmLogError, FarmRefusedError, FarmSilentError, LogStatus
from pipeline.source.offsets import WHOLE_FARMS, Offset
from pipeline.source.ranges import NodeRanges
from pipeline.source.shares import SHARE_LEAST, TASKS_MAX, Span, fair_shares, fitting_demands, packed
from pipeline.source.traces import NodeTrace
from pipeline.tables import offset_shards
from pipeline.tables.batch_notes import BatchNotes, Range
from pipeline.tables.offset_shards import OffsetShards
from tests.pipeline.farm_log_server import MadeUpLog, serve_log, three_servers
from tests.pipeline.test_stored_log import clock, write_log
from tests.processes import END_S

ALL = ReadAllAvailable()


def write_farms(place: Path, names: dict[str, Path]) -> None:
    """Write the file of farms, with one socket per farm."""
    text = "".join(f"[farms.{name}]\nnodes = [{json.dumps(str(path))}]\n" for name, path in names.items())
    place.with_suffix(".new").write_text(text)
    place.with_suffix(".new").rename(place)


def a_farm(number: int, minutes: int = 1) -> MadeUpLog:
    log = three_servers(minutes)
    log.cluster_id = f"{number:032x}"
    return log


def stream_of(file: Path) -> FarmStreamReader:
    stream = FarmDataSource({"farms": str(file)}).streamReader(ENTRIES)
    assert isinstance(stream, FarmStreamReader)
    stream._offsets = OffsetShards(file.parent / "checkpoint")
    return stream


def read(stream: FarmStreamReader, start: Offset, end: Offset) -> dict[str, list[int]]:
    """Return the indexes of each farm in one batch. Stream and tasks are pickled, like for Spark's workers."""
    found: dict[str, list[int]] = {}
    for task in stream.partitions(start, end):
        copied = pickle.loads(pickle.dumps((stream, task)))  # noqa: S301 - our own
        for batch in copied[0].read(copied[1]):
            for row in batch.select(["farm_name", "index"]).to_pylist():
                found.setdefault(row["farm_name"], []).append(row["index"])
    return found


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Run a node that accepts connections and does not return its log."""
    ended = threading.Event()

    class Hanging(MadeUpLog):
        def page(self, first: int, limit: int) -> dict[str, object]:
            ended.wait(END_S)
            return super().page(first, limit)

    with serve_log(Hanging(), path):
        try:
            yield
        finally:
            ended.set()


@pytest.mark.parametrize("whole_farms", [WHOLE_FARMS, 0], ids=["whole", "shards"])
def test_farms_keep_offsets_when_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_farms: int
) -> None:
    monkeypatch.setattr(offset_shards, "WHOLE_FARMS", whole_farms)
    one, two, three = a_farm(1), a_farm(2, minutes=2), a_farm(3)
    file, sockets = tmp_path / "farms.toml", {name: tmp_path / f"{name}.sock" for name in ("one", "two", "three")}
    with ExitStack() as stack:
        for log, path in zip((one, two, three), sockets.values(), strict=True):
            stack.enter_context(serve_log(log, path))
        # given two farms
        write_farms(file, {name: sockets[name] for name in ("one", "two")})
        stream = stream_of(file)
        start = stream.initialOffset()
        first = stream.latestOffset(start, ALL)
        assert read(stream, start, first) == {
            "one": [*range(1, one.commit_index + 1)],
            "two": [*range(1, two.commit_index + 1)],
        }
        # when one farm leaves, another joins, and the first continues
        write_farms(file, {name: sockets[name] for name in ("one", "three")})
        last_one, last_two = one.commit_index, two.commit_index
        one.tick(10_000)
        two.tick(10_000)
        second = stream.latestOffset(first, ALL)
        assert read(stream, first, second) == {"one": [last_one + 1], "three": [*range(1, three.commit_index + 1)]}
        # a farm that left is not reported, because its lag would grow forever
        assert set((stream.reportLatestOffset() or {})["farms"]) == {one.cluster_id, three.cluster_id}
        # and without new entries the offset does not change
        assert stream.latestOffset(second, ALL) == second
        # then a new process repeats the same batch, and a farm listed again continues at its offset
        again = stream_of(file)
        assert read(again, first, second) == read(stream, first, second)
        write_farms(file, sockets)
        third = stream_of(file).latestOffset(second, ALL)
        assert read(stream_of(file), second, third) == {"two": [last_two + 1]}


def test_farm_joining_between_previews_begins_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch can be repeated: its end has the first entry of the new farm."""
    monkeypatch.setattr(local_query, "PREVIEW_S", 0.0)
    logs, file, previews = [a_farm(1), a_farm(2)], tmp_path / "farms.toml", list[int]()
    sockets = {"one": tmp_path / "one.sock", "two": tmp_path / "two.sock"}

    def write(rows: Iterable[pa.RecordBatch], number: int) -> None:
        assert sum(each.num_rows for each in rows) > 0
        logs[0].tick(10_000)
        if number == 1:
            query._ended.set()

    def preview(rows: Sequence[pa.RecordBatch]) -> None:
        previews.append(sum(each.num_rows for each in rows))
        write_farms(file, sockets)

    with serve_log(logs[0], sockets["one"]), serve_log(logs[1], sockets["two"]):
        write_farms(file, {"one": sockets["one"]})
        query = LocalQuery(stream_of(file), write, tmp_path / "checkpoint", 3600.0, preview)
        query.start()
        assert query.awaitTermination(int(END_S))
        assert query.exception() is None
        stored = StoredCheckpoint(tmp_path / "checkpoint")
        assert previews == [1]
        assert set(read(stream_of(file), stored.offset(0), stored.offset(1))) == {"one", "two"}


def test_farms_of_task_share_record_batches(tmp_path: Path) -> None:
    file, logs = tmp_path / "farms.toml", [a_farm(1), a_farm(2), a_farm(3)]
    sockets = {f"farm-{number}": tmp_path / f"{number}.sock" for number in range(3)}
    write_farms(file, sockets)
    with ExitStack() as stack:
        for log, path in zip(logs, sockets.values(), strict=True):
            stack.enter_context(serve_log(log, path))
        stream = stream_of(file)
        start = stream.initialOffset()
        (task,) = stream.partitions(start, stream.latestOffset(start, ALL))
        # A record batch takes milliseconds, even with one row.
        (batch,) = stream.read(task)
        farms = list(zip(*(batch.column(name).to_pylist() for name in ("farm", "farm_name")), strict=True))
        assert farms == [(log.cluster_id, name) for log, name in zip(logs, sockets, strict=True) for _ in log.entries]


def test_end_of_read_does_not_wait_for_unresponsive_farms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm, "READ_AT_ONCE", 2)
    monkeypatch.setattr(farm, "FARMS_PER_CALL", 1)
    began, replies = threading.Semaphore(0), threading.Event()
    threads: dict[int, threading.Thread] = {}

    def piece_of(number: int) -> Any:
        def rows(_: object) -> list[object]:
            threads[number] = threading.current_thread()
            began.release()
            assert number == 0 or replies.wait(END_S)
            return []

        return SimpleNamespace(name="", range=SimpleNamespace(cluster=str(number)), is_short=True, rows=rows)

    logs: Any = farm._logs([piece_of(number) for number in range(5)], Mock())
    try:
        assert next(logs)[0] == "0"
        assert all(began.acquire(timeout=END_S) for _ in range(3))
        # The interpreter does not join these threads at its exit.
        assert all(each.daemon for each in threads.values())
        logs.close()
    finally:
        replies.set()
    for each in threads.values():
        each.join(END_S)
        assert not each.is_alive()
    assert sorted(threads) == [0, 1, 2]


def test_interpreter_does_not_join_queries_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    daemons = list[bool]()

    def end(_: object) -> None:
        daemons.append(threading.current_thread().daemon)

    def status_of(_: FarmLog, address: str, *__: object) -> LogStatus:
        end(address)
        return LogStatus("a", 1, 1, address)

    monkeypatch.setattr(FarmLog, "_status_of", status_of)
    assert [each.address for each in FarmLog(("one", "two")).statuses()] == ["one", "two"]
    traces: Any = (SimpleNamespace(name="a", end=end),)
    assert FarmEventsStreamReader(traces)._ends({}) == {}
    assert daemons == [True, True, True]


def test_fault_in_query_of_one_farm_is_its_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_farms(tmp_path / "farms.toml", {"one": tmp_path / "one.sock"})
    monkeypatch.setattr(farms, "_poll", Mock(side_effect=ValueError("x")))
    found = ManyFarms(tmp_path / "farms.toml", 1_000)
    assert found.poll({}, thorough=True) == {}
    assert found.problems == {"one": "cannot be queried, because of a fault of the pipeline: ValueError('x')"}


def test_unresponsive_farm_is_reported_without_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farms, "FIRST_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(farms, "UNANSWERED_SECONDS", 0.0)
    monkeypatch.setattr(farms, "AGAIN_SECONDS", 1e-6)
    here, absent, file = a_farm(1), a_farm(2), tmp_path / "farms.toml"
    write_farms(file, {name: tmp_path / f"{name}.sock" for name in ("here", "gone", "hangs")})
    with serve_log(here, tmp_path / "here.sock"), hanging(tmp_path / "hangs.sock"):
        stream = stream_of(file)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ALL)
        assert list(read(stream, start, end)) == ["here"]
        offsets = stream.reportLatestOffset()
        assert offsets is not None
        assert offsets["farms"] == {here.cluster_id: here.commit_index + 1}
        assert set(offsets["problems"]) == {"gone", "hangs"}
        assert "is the farm running" in offsets["problems"]["gone"]
        with serve_log(absent, tmp_path / "gone.sock"):
            later = stream.latestOffset(end, ALL)
            assert list(read(stream, end, later)) == ["gone"]


def test_compacted_log_of_one_farm_does_not_block_others(tmp_path: Path) -> None:
    one, two, file = a_farm(1), a_farm(2), tmp_path / "farms.toml"
    write_farms(file, {name: tmp_path / f"{name}.sock" for name in ("one", "two")})
    one.first_index, one.entries = 8, one.entries[7:]
    with serve_log(one, tmp_path / "one.sock"), serve_log(two, tmp_path / "two.sock"):
        stream = stream_of(file)
        start: Offset = {"farms": {one.cluster_id: 3, two.cluster_id: 3}}
        end = stream.latestOffset(start, ALL)
        assert end["farms"] == {one.cluster_id: 3, two.cluster_id: two.commit_index + 1}
        offsets = stream.reportLatestOffset()
        assert offsets is not None
        assert "entries 3 to 7 were compacted away" in offsets["problems"]["one"]


def test_copy_with_newer_commit_index_does_not_block_others(tmp_path: Path) -> None:
    """The `committed.json` of a copied directory may name an entry that the copied log lacks."""
    directory, two, file = tmp_path / "one", a_farm(2), tmp_path / "farms.toml"
    write_log(directory, b"{}", b"{}")
    socket = tmp_path / "two.sock"
    file.write_text(f"[farms.one]\ndirectory = '{directory}'\n[farms.two]\nnodes = ['{socket}']\n")
    with serve_log(two, socket):
        stream = stream_of(file)
        start = stream.latestOffset(stream.initialOffset(), ALL)
        write_commit_index(directory, 9)
        two.report(1)
        end = stream.latestOffset(start, ALL)
        assert list(read(stream, start, end)) == ["two"]
        offsets = stream.reportLatestOffset()
        assert offsets is not None
        assert "should have entry 9, and ends before it" in offsets["problems"]["one"]


def test_damaged_segment_of_one_farm_does_not_block_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_farm_writer, "StorageOptions", partial(StorageOptions, 1024 * 1024))
    directory, two, file, socket = tmp_path / "one", a_farm(2), tmp_path / "farms.toml", tmp_path / "two.sock"
    write_log(directory, clock(EPOCH_MS + 1_000), *[b"x" * 400_000] * 6)
    damaged = min((directory / "raft").glob("*.segment"))
    damaged.write_bytes(damaged.read_bytes().replace(b'"id": 1', b'"id": 2'))
    file.write_text(f"[farms.one]\ndirectory = '{directory}'\n[farms.two]\nnodes = ['{socket}']\n")
    with serve_log(two, socket):
        stream = stream_of(file)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ALL)
        assert list(end["farms"]) == list(end["begins"]) == [two.cluster_id]
        assert list(read(stream, start, end)) == ["two"]
        offsets = stream.reportLatestOffset()
        assert offsets is not None
        assert "garlicfarm log verify" in offsets["problems"]["one"]


def test_damaged_snapshot_of_one_farm_does_not_block_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, two, file, socket = tmp_path / "one", a_farm(2), tmp_path / "farms.toml", tmp_path / "two.sock"
    write_log(directory, clock(EPOCH_MS + 1_000), b"{}")

    def fail(_: StoredFarm) -> None:
        raise StoredFarmError("the snapshot cannot be read")

    monkeypatch.setattr(StoredFarm, "_time_at_start", fail)
    file.write_text(f"[farms.one]\ndirectory = '{directory}'\n[farms.two]\nnodes = ['{socket}']\n")
    with serve_log(two, socket):
        stream = stream_of(file)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ALL)
        assert list(read(stream, start, end)) == ["two"]
        offsets = stream.reportLatestOffset()
        assert offsets is not None
        assert offsets["problems"] == {"one": "the snapshot cannot be read"}


def test_repeated_batch_without_its_farm_fails_with_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, file = a_farm(1), tmp_path / "farms.toml"
    write_farms(file, {"one": tmp_path / "one.sock"})
    end: Offset = {"farms": {log.cluster_id: 4}, "begins": {log.cluster_id: {"next": 1}}}
    monkeypatch.setattr(log_client, "SILENCE_SECONDS", -1.0)
    with pytest.raises(FarmSilentError, match=f"{log.cluster_id}, a farm of the batch, answers"):
        stream_of(file).partitions({"farms": {}}, end)


def test_problem_is_reported_once_until_solved() -> None:
    lines: list[str] = []
    reports = ProblemReports(lines.append)
    for problems in ({"blog": "silent"}, {"blog": "silent"}, {"blog": "silent", "shop": "gone"}, {"shop": "gone"}):
        reports.take(problems)
    assert lines == [
        "blog is not read, but the other farms are: silent",
        "shop is not read, but the other farms are: gone",
        "blog is read again",
    ]


def test_problems_of_many_farms_are_reported_in_few_lines() -> None:
    lines: list[str] = []
    reports = ProblemReports(lines.append)
    for problems in ({f"{number:05}": "silent" for number in range(1_000)}, {}):
        reports.take(problems)
    assert len(lines) == 2 * (SHOWN_MAX + 1)
    assert lines[0] == "00000 is not read, but the other farms are: silent"
    assert lines[SHOWN_MAX :: SHOWN_MAX + 1] == [f"and {1_000 - SHOWN_MAX} more"] * 2


def test_farm_removed_from_file_is_reported_as_unlisted() -> None:
    lines: list[str] = []
    reports = ProblemReports(lines.append)
    reports.take({"blog": "silent", "shop": "silent"})
    reports.take({}, Unread(waiting=("shop",), unlisted=("blog",)))
    reports.take({"shop": "still silent"}, Unread(unlisted=("blog",)))
    reports.take({}, Unread(unlisted=("blog",)))
    assert lines[2:] == ["blog is not listed any more", "shop is read again"]


def test_farm_with_edited_address_waits_for_reply(tmp_path: Path) -> None:
    file = tmp_path / "farms.toml"
    write_farms(file, {"dead": tmp_path / "one.sock"})
    farms = ManyFarms(file, 1_000)
    farms.poll({}, thorough=True)
    assert set(farms.problems) == {"dead"}
    write_farms(file, {"dead": tmp_path / "another.sock"})
    farms._read_again()
    assert (farms.problems, farms.unread) == ({}, Unread(waiting=("dead",)))
    write_farms(file, {"other": tmp_path / "another.sock"})
    farms._read_again()
    assert farms.unread == Unread(waiting=("other",), unlisted=("dead",))


def test_restored_file_with_old_times_is_read_again(tmp_path: Path) -> None:
    file, other = tmp_path / "farms.toml", tmp_path / "other.toml"
    write_farms(file, {"first": tmp_path / "one.sock"})
    farms = ManyFarms(file, 1_000)
    farms._read_again()
    write_farms(other, {"other": tmp_path / "one.sock"})
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    assert other.stat().st_size == file.stat().st_size
    other.replace(file)
    os.utime(file, ns=times)
    farms._read_again()
    assert farms.unread.waiting == ("other",)


def test_farm_with_two_names_is_read_once(tmp_path: Path) -> None:
    log, file = a_farm(1), tmp_path / "farms.toml"
    write_farms(file, {"one": tmp_path / "one.sock", "same": tmp_path / "one.sock"})
    with serve_log(log, tmp_path / "one.sock"):
        stream = stream_of(file)
        end = stream.latestOffset({"farms": {}}, ALL)
        assert list(read(stream, {"farms": {}}, end)) == ["one"]
        assert "name it once" in (stream.reportLatestOffset() or {})["problems"]["same"]


def test_invalid_file_keeps_current_farms(tmp_path: Path) -> None:
    log, file = a_farm(1), tmp_path / "farms.toml"
    write_farms(file, {"one": tmp_path / "one.sock"})
    with serve_log(log, tmp_path / "one.sock"):
        stream = stream_of(file)
        file.write_text("[farms.one")
        end = stream.latestOffset({"farms": {}}, ALL)
        assert end["farms"] == {log.cluster_id: log.commit_index + 1}
        assert "cannot be read" in (stream.reportLatestOffset() or {})["problems"][str(file)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "required field `farms`"),
        ('[[farm]]\ndirectory = "a"', r"field `farm`; each farm is a table \[farms.NAME\] with nodes or a directory"),
        ("[farms]", "does not name a farm"),
        ("[farms.a]", "needs either `nodes`"),
        ('[farms.a]\nnode = "x"', "unknown field `node`"),
        ('[farms.a]\nnodes = ["x"]\nstart = "soon"', "use oldest, snapshot or an index"),
        ('[farms.a]\nnodes = ["x"]\ntoken_file = "absent"', "absent cannot be read"),
        ("farms = 5", "Expected `object`"),
    ],
)
def test_unusable_file_error_names_cause(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "farms.toml").write_text(text)
    with pytest.raises(FarmLogError, match=words):
        stream_of(tmp_path / "farms.toml")


def test_backlog_uses_rest_of_batch(tmp_path: Path) -> None:
    long, short, file = a_farm(1, minutes=3), a_farm(2), tmp_path / "farms.toml"
    write_farms(file, {name: tmp_path / f"{name}.sock" for name in ("long", "short")})
    with serve_log(long, tmp_path / "long.sock"), serve_log(short, tmp_path / "short.sock"):
        end = stream_of(file).latestOffset({"farms": {}}, ReadMaxRows(short.commit_index + 30))
        assert end["farms"] == {long.cluster_id: 31, short.cluster_id: short.commit_index + 1}


@given(some.dictionaries(some.text("abcdef", min_size=1), some.integers(0, 10_000)), some.integers(1, 20_000))
def test_shares_are_fair_and_use_whole_limit(requested: dict[str, int], limit: int) -> None:
    shares = fair_shares(requested, limit)
    assert sum(shares.values()) == min(limit, sum(requested.values()))
    assert all(0 <= shares[farm] <= requested[farm] for farm in requested)
    least = min((shares[farm] for farm in requested if shares[farm] < requested[farm]), default=None)
    assert least is None or max(shares.values()) <= least + 1


def test_too_many_farms_for_a_batch_take_turns() -> None:
    demands = {f"{number:02}": 4 for number in range(10)} | {"long": 10**6}
    assert fitting_demands(demands, 4 * 10 + SHARE_LEAST, "03") == demands
    turns, after = list[list[str]](), ""
    for _ in range(4):
        chosen = fitting_demands(demands, 4 * 4, after)
        assert sum(fair_shares(chosen, 16).values()) == 16
        turns.append([*chosen])
        after = turns[-1][-1]
    assert turns == [["00", "01", "02", "03"], ["04", "05", "06", "07"], ["08", "09", "long"], ["00", "01", "02", "03"]]


@given(
    some.lists(some.tuples(some.integers(1, 10**6), some.integers(1, 400_000)), max_size=200),
    some.integers(1, 100_000),
)
def test_tasks_cover_each_entry_once_with_similar_size(ranges: list[tuple[int, int]], size: int) -> None:
    spans = [Span(f"{number:03}", first, first + count) for number, (first, count) in enumerate(ranges)]
    tasks = packed(spans, size)
    assert len(tasks) <= TASKS_MAX
    pieces = sorted(piece for task in tasks for piece in task)
    whole = [Span(span.farm, span.first, span.end) for span in spans]
    joined: list[Span] = []
    for piece in pieces:
        if joined and joined[-1].farm == piece.farm and joined[-1].end == piece.first:
            joined[-1] = Span(piece.farm, joined[-1].first, piece.end)
        else:
            joined.append(piece)
    assert joined == whole
    loads = [sum(piece.end - piece.first for piece in task) for task in tasks]
    assert not loads or max(loads) <= 2 * -(-sum(loads) // len(loads))


def test_large_range_is_split_and_small_ranges_are_packed() -> None:
    assert packed([Span("a", 1, 120_001)], 50_000) == [
        [Span("a", 1, 50_001)],
        [Span("a", 50_001, 100_001)],
        [Span("a", 100_001, 120_001)],
    ]
    tasks = packed([Span(f"{number:04}", 7, 12) for number in range(1_000)], 50_000)
    assert [len(task) for task in tasks].count(63) + [len(task) for task in tasks].count(62) == TASKS_MAX


def offset_of(count: int, entry: int = 7) -> Offset:
    return {"farms": {f"{number:032x}"[::-1]: entry for number in range(count)}}


def test_offset_of_many_farms_is_names_of_unchanged_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = offset_of(WHOLE_FARMS), offset_of(5 * WHOLE_FARMS)
    many |= {"begins": {"0" * 32: {"next": 3}}, "times": {"0" * 32: 1_767_225_600_000}}
    shards, synced = OffsetShards(tmp_path / "checkpoint"), list[Path]()
    assert shards.stored(few) == few
    with monkeypatch.context() as patched:
        patched.setattr(offset_shards, "sync", lambda *paths: synced.extend(paths))
        stored = shards.stored(many)
    # The names of the new directories are durable, too.
    assert synced == [tmp_path / "checkpoint", tmp_path]
    assert len(json.dumps(stored)) < 1_000
    assert len(stored["shards"]) == 16
    assert OffsetShards(tmp_path / "checkpoint").loaded(stored) == many
    assert OffsetShards(tmp_path / "checkpoint").stored(many) == stored
    moved = shards.stored({**many, "farms": {**many["farms"], "1".ljust(32, "0"): 8}})
    assert len({*moved["shards"]} - {*stored["shards"]}) == 1
    # The plan of a batch decodes only the shards with new entries.
    changed = [[*each["farms"]] for each in shards.changed(stored, moved)]
    assert changed == [[farm for farm in sorted(many["farms"]) if farm.startswith("1")]] * 2
    assert (stored["begun"], moved["read"] - stored["read"]) == (2, 1)


def test_shards_of_last_two_offsets_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_shards, "WHOLE_FARMS", 0)
    monkeypatch.setattr(OffsetShards, "_read", Mock(side_effect=AssertionError))
    shards = OffsetShards(tmp_path)
    # The repeated offset is the newest one again.
    first, *_ = [shards.stored(offset_of(50, entry)) for entry in (1, 2, 1, 3)]
    assert shards.loaded(first) == offset_of(50, 1)


def test_state_of_many_farms_between_batches_is_text(tmp_path: Path) -> None:
    """A farm takes 45 bytes in the offset and in the record of batches. Python objects would take several hundred."""
    farms, shards, notes = 20 * WHOLE_FARMS, OffsetShards(tmp_path / "checkpoint"), BatchNotes(tmp_path, "log")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        start = shards.stored(offset_of(farms))
        notes.begin(0, dict.fromkeys(offset_of(farms)["farms"], Range(1, 6)))
        notes.end(0, {})
        moved = [*shards.loaded(start)["farms"]][:WHOLE_FARMS]
        end = shards.stored({"farms": shards.loaded(start)["farms"] | dict.fromkeys(moved, 9)})
        notes.begin(1, dict.fromkeys(moved, Range(7, 8)))
        notes.end(1, {})
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / farms < 128
    assert notes.next_entries() == shards.loaded(end)["farms"] == offset_of(farms)["farms"] | dict.fromkeys(moved, 9)


def test_unnamed_shards_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_shards, "SWEEP_OFFSETS", 5)
    monkeypatch.setattr(offset_shards, "WHOLE_FARMS", 0)
    shards = OffsetShards(tmp_path)
    found = [shards.stored(offset_of(1_000, 1))]
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(found[0])}")
    found += [shards.stored(offset_of(1_000, entry)) for entry in range(2, 6)]
    kept = {file.name for file in (tmp_path / "shards").iterdir()}
    assert kept == {name for offset in (found[0], *found[-2:]) for name in offset["shards"]}
    assert OffsetShards(tmp_path).loaded(found[0]) == offset_of(1_000, 1)


def test_sweep_ignores_shards_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended process continues in the middle of its sweep, after another one has continued the checkpoint."""
    monkeypatch.setattr(offset_shards, "SWEEP_OFFSETS", 1)
    monkeypatch.setattr(offset_shards, "WHOLE_FARMS", 0)
    # A new checkpoint does not have offsets.
    OffsetShards(tmp_path).stored(offset_of(50, 1))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")
    late, later, read_content = offset_of(50, 3), list[Offset](), Document.read

    def read_late(document: Document) -> bytes | None:
        content = read_content(document)
        monkeypatch.setattr(offset_shards, "SWEEP_OFFSETS", 10)
        if not later:
            later.append(OffsetShards(tmp_path).stored(late))
        return content

    monkeypatch.setattr(Document, "read", read_late)
    OffsetShards(tmp_path).stored(offset_of(50, 2))
    assert OffsetShards(tmp_path).loaded(later[0]) == late


@pytest.mark.parametrize(
    ("done", "committed", "damaged"), [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (1, 1, 1)], ids=str
)
def test_missing_shard_is_damage_of_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int, committed: int, damaged: int
) -> None:
    """Repeating a batch needs the shards of its begin and its end."""
    monkeypatch.setattr(offset_shards, "WHOLE_FARMS", 0)
    shards, notes = OffsetShards(tmp_path / "checkpoint"), BatchNotes(tmp_path, "log")
    offsets = [shards.stored(offset_of(50, entry)) for entry in (7, 9)]
    files = [("offsets", number, json.dumps(each)) for number, each in enumerate(offsets)]
    for folder, number, text in [*files, *(("commits", number, "{}") for number in range(committed + 1))]:
        (tmp_path / "checkpoint" / folder).mkdir(exist_ok=True)
        (tmp_path / "checkpoint" / folder / str(number)).write_text(f"v1\n{{}}\n{text}")
    for number in range(done + 1):
        first, end = (1, 7) if number == 0 else (7, 9)
        notes.begin(number, dict.fromkeys(offset_of(50)["farms"], Range(first, end - 1)))
        notes.end(number, {})
    assert checkpoint_fault(tmp_path, "checkpoint", notes) == ""
    name = offsets[damaged]["shards"][0]
    (tmp_path / "checkpoint" / "shards" / name).write_bytes(b"{}")
    assert checkpoint_fault(tmp_path, "checkpoint", notes) == f"its file offsets/{damaged} is missing or damaged"
    with pytest.raises(FarmLogError, match=f"{name} is missing or damaged"):
        OffsetShards(tmp_path / "checkpoint").loaded(offsets[damaged])


def test_progress_of_many_farms_is_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = OffsetShards(tmp_path)
    start = shards.stored(offset_of(1_001))
    new = {"f" * 32: {"next": 101}}
    end = shards.stored({"farms": offset_of(1_001, 9)["farms"] | {"f" * 32: 111}, "begins": new})
    latest = {"totals": {"farms": 1_002, "read": end["read"], "newest": end["read"] + 5}}
    source = {"startOffset": json.dumps(start), "endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}
    progress = {"sources": [source], "batchDuration": 500}
    assert places(progress) == (1_001 * 8 + 110, 1_001 * 8 + 115, frozenset(), {})
    assert _entries_per_s(progress) == 2 * (1_001 * 2 + 10)
    # A checkpoint after a repair begins with entries that the tables have.
    begun = {"farms": {"0" * 32: 1_000_000, "f" * 32: 111}, "begins": new}
    source |= {"startOffset": "null", "endOffset": json.dumps(begun)}
    assert _entries_per_s(progress) == 2 * 10
    # The source reports such totals; they leave out farms of unknown length and removed farms.
    monkeypatch.setattr("pipeline.source.farm.WHOLE_FARMS", 0)
    log, removed, file = a_farm(1), a_farm(2), tmp_path / "farms.toml"
    sockets = {"one": tmp_path / "one.sock", "two": tmp_path / "two.sock"}
    write_farms(file, sockets)
    with serve_log(log, sockets["one"]), serve_log(removed, sockets["two"]):
        stream = stream_of(file)
        end = stream.latestOffset({"farms": {"a" * 32: 1_000_000}}, ALL)
        write_farms(file, {"one": sockets["one"]})
        stream.latestOffset(end, ALL)
    last = log.commit_index
    totals = {"farms": 1, "read": last, "newest": last}
    assert stream.reportLatestOffset() == {"totals": totals, "removed": [removed.cluster_id]}
    source["latestOffset"] = json.dumps(stream.reportLatestOffset())
    assert removed_in(progress) == frozenset({removed.cluster_id})


def test_corrected_credentials_of_refused_farm_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, token_file, token = tmp_path / "farms.toml", tmp_path / "token", ["first"]
    file.write_text("[farms.one]\nnodes = ['https://host:1']\ntoken_file = 'token'\n")
    token_file.write_text("first")

    def status(ranges: NodeRanges, *_: object, **__: object) -> LogStatus:
        if ranges._log.credentials.token != token[0]:
            raise FarmRefusedError("status 401")
        return LogStatus("one", 1, 5)

    monkeypatch.setattr(NodeRanges, "status", status)
    found = ManyFarms(file, 1_000)
    assert list(found.poll({}, thorough=True)) == ["one"]
    # when the node and then the file get another token
    token[0] = "second"
    assert (found.poll({}, thorough=True), found.problems) == ({}, {"one": "status 401"})
    token_file.write_text("second")
    assert list(found.poll({}, thorough=True)) == ["one"]
    assert found.problems == {}
    ranges = found.places(frozenset({"one"}))["one"].ranges
    assert isinstance(ranges, NodeRanges)
    assert ranges._log.credentials.token == token[0]


def test_corrected_token_of_only_farm_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, accepted = tmp_path / "token", ["first"]
    file.write_text("first")

    def status(log: FarmLog, *_: object) -> LogStatus:
        if log.credentials.token != accepted[-1]:
            raise FarmRefusedError("status 401")
        return LogStatus("one", 1, 5)

    monkeypatch.setattr(FarmLog, "status", status)
    monkeypatch.setattr(FarmLog, "statuses", lambda log, *_: [status(log)])
    stream = FarmDataSource({"node": "https://host:1", "tokenFile": str(file)}).streamReader(ENTRIES)
    start = stream.latestOffset(stream.initialOffset(), ALL)
    accepted.append("second")
    assert stream.latestOffset(start, ALL) == start
    file.write_text("second")
    assert stream.latestOffset(start, ALL) == start
    monkeypatch.setattr(log_client, "SILENCE_SECONDS", -1.0)
    assert stream.latestOffset(start, ALL) == start
    (task,) = stream.partitions({"farms": {}}, start)
    assert isinstance(task, Task)
    ranges = task.pieces[0].ranges
    assert isinstance(ranges, NodeRanges)
    assert ranges._log.credentials.token == accepted[-1]


def test_corrected_token_of_traces_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, accepted = tmp_path / "token", ["first"]
    file.write_text("first")

    def end(trace: NodeTrace, _: str | None) -> str | None:
        return f"1:{len(accepted)}::0::a" if trace.credentials.token == accepted[-1] else None

    monkeypatch.setattr(NodeTrace, "end", end)
    stream = FarmEventsDataSource({"node": "https://host:1", "tokenFile": str(file)}).streamReader(EVENTS)
    start = stream.latestOffset({}, ALL)
    accepted.append("second")
    assert stream.latestOffset(start, ALL) == start
    # A missing file does not change the credentials.
    file.unlink()
    assert stream.latestOffset(start, ALL) == start
    file.write_text("second")
    assert stream.latestOffset(start, ALL) == start
    assert stream.latestOffset(start, ALL) == {"https://host:1": "1:2::0::a"}
    assert pickle.loads(pickle.dumps(stream))._traces == stream._traces  # noqa: S301 - our own


def test_farms_with_equal_files_share_credentials(tmp_path: Path) -> None:
    token, file = tmp_path / "read.token", tmp_path / "farms.json"
    token.write_text("secret")
    nodes = {
        f"farm-{number}": {"nodes": [f"https://127.0.0.1:{number}"], "token_file": token.name} for number in (1, 2)
    }
    file.write_text(json.dumps({"farms": nodes}))
    ranges = [each.place.ranges for each in ManyFarms(file, 1)._farms.values()]
    assert len({id(each._log.credentials) for each in ranges if isinstance(each, NodeRanges)}) == 1
