"""Reads of a farm's log from a state directory: committed entries, in parallel ranges, with log time.

`StoredFarmWriter` writes most logs. Some directories change during the read, lack files or belong to another cluster;
in some, a snapshot has replaced the first entries.
"""

import errno
import json
import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from bridge.core.formation.founding import Founder, Founding
from bridge.core.log.figures import RouterStatus
from bridge.core.log.records import Report
from bridge.core.state.farm_state import SESSION_LIMITS, FarmState, ServerState
from bridge.node.membership.forming import FILE_NAME
from bridge.node.offline.stored_farm import StoredFarm, StoredFarmError
from bridge.node.offline.stored_farm_writer import StoredFarmWriter
from bridge.node.raft.commit_store import write_commit_index
from bridge.wire.log.snapshot import FarmSnapshot, encode_farm
from consensus.core.effects import Persist
from consensus.core.entry_data import EntryDataError
from consensus.core.model import Configuration, Entry, HardState, LogId, Server
from consensus.sessions.table import SessionTable
from consensus.storage import StoredSegment, stored_log
from consensus.storage.directory import Directory, open_directory
from consensus.storage.disk import StorageError
from consensus.storage.planner import StorageOptions
from consensus.storage.records import decode_segment_header
from consensus.storage.snapshots import SnapshotFiles, SnapshotWriter
from consensus.storage.verification import ReadOnlyDirectory, StorageVerdict, verify_storage
from pipeline.cli.places import Directory as PlaceDirectory
from pipeline.decode.columns import Row, record_batches
from pipeline.generate import generate
from pipeline.load_model import EPOCH_MS, LoadModel
from pipeline.schemas import ENTRIES
from pipeline.source.farm import FarmDataSource
from pipeline.source.log_client import FarmLogError
from pipeline.source.stored_log import StoredLog

FOUNDING = Founding((Founder(bytes(8), EPOCH_MS, bytes(range(16))),))


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make segments small, because zeros fill a new segment, and each reader searches them."""
    monkeypatch.setattr("bridge.node.offline.stored_farm_writer.StorageOptions", partial(StorageOptions, 1024 * 1024))


def small_farm(directory: Path, seed: int = 3) -> int:
    """Write a made-up farm of five routers over half an hour; return the number of its entries."""
    return generate(directory, LoadModel(5, 1 / 48, seed)).entries


def rows_of(directory: Path, first: int, end: int) -> list[Row]:
    log = StoredLog(directory)
    return list(log.rows(log.place(first), first, end))


def write_log(directory: Path, *bodies: bytes) -> None:
    with StoredFarmWriter(directory, FOUNDING.founders, EPOCH_MS, bytes(range(16))) as writer:
        writer.append_configuration(1, [(1, "tcp://127.0.0.1:7669")])
        for body in bodies:
            writer.append(1, body)


def clock(time_ms: int) -> bytes:
    return json.dumps({"clock": {"time": time_ms, "id": 1}}).encode()


def test_generated_log_is_sound_and_readable_in_full(tmp_path: Path) -> None:
    entries = small_farm(tmp_path / "farm")
    assert verify_storage(tmp_path / "farm" / "raft").verdict is StorageVerdict.SOUND
    assert StoredLog(tmp_path / "farm").bounds() == (1, entries)
    rows = rows_of(tmp_path / "farm", 1, entries + 1)
    assert [row[0] for row in rows] == list(range(1, entries + 1))
    assert rows[0][2] == "configuration"


def test_generated_log_depends_only_on_seed(tmp_path: Path) -> None:
    counts = [small_farm(tmp_path / name, seed) for name, seed in (("one", 3), ("two", 3), ("three", 4))]
    one, two, three = (
        rows_of(tmp_path / name, 1, count + 1) for name, count in zip(("one", "two", "three"), counts, strict=True)
    )
    assert one == two
    assert one != three


def test_range_from_middle_equals_part_of_whole_log(tmp_path: Path) -> None:
    entries = small_farm(tmp_path / "farm")
    whole = rows_of(tmp_path / "farm", 1, entries + 1)
    for first in range(1, entries, 37):
        assert rows_of(tmp_path / "farm", first, min(first + 50, entries + 1)) == whole[first - 1 : first + 49]


def test_log_time_is_highest_valid_clock_entry(tmp_path: Path) -> None:
    # given clock entries that go back or exceed the limit of log time, and entries with other clock members
    write_log(
        tmp_path / "farm",
        b'{"note": "the \\"clock\\" is wrong"}',
        clock(EPOCH_MS + 5_000),
        clock(EPOCH_MS + 1_000),
        b'{"clock": "a text"}',
        clock(2**52),
        b'{"x": {"clock": {"time": 9999999999999, "id": 1}}}',
    )
    times = [row[3] for row in rows_of(tmp_path / "farm", 1, 8)]
    assert times == [EPOCH_MS] * 2 + [EPOCH_MS + 5_000] * 5
    # then a reader from any index computes the same log time
    assert [rows_of(tmp_path / "farm", index, index + 1)[0][3] for index in range(1, 8)] == times


def test_log_time_follows_correction_from_any_start(tmp_path: Path) -> None:
    write_log(
        tmp_path / "farm",
        clock(EPOCH_MS + 9_000_000),
        b"{}",
        json.dumps({"correction": {"clock": EPOCH_MS + 60_000}}).encode(),
        b"{}",
        clock(EPOCH_MS + 90_000),
    )
    times = [row[3] for row in rows_of(tmp_path / "farm", 1, 7)]
    after_ms = [0, 9_000_000, 9_000_000, 60_000, 60_000, 90_000]
    assert times == [EPOCH_MS + each for each in after_ms]
    assert [rows_of(tmp_path / "farm", index, index + 1)[0][3] for index in range(1, 7)] == times


def test_batch_plan_does_not_search_earlier_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a log of several segments, with a correction of log time in one segment
    monkeypatch.setattr("bridge.node.offline.stored_farm_writer.StorageOptions", partial(StorageOptions, 64 * 1024))
    monkeypatch.setattr("bridge.node.offline.stored_farm_writer.GROUP_ENTRIES", 16)
    bodies = [clock(EPOCH_MS + number) if number % 7 == 0 else b'{"x":"%s"}' % (b"x" * 600) for number in range(1_000)]
    bodies[500] = json.dumps({"correction": {"clock": EPOCH_MS + 5}}).encode()
    write_log(tmp_path / "farm", *bodies)
    whole = {row[0]: row for row in rows_of(tmp_path / "farm", 1, 1_002)}
    offset, searched = dict[str, Any](farms={}), set[str]()
    noted = StoredFarm._search

    def search(self: StoredFarm, segment: StoredSegment) -> Any:
        searched.add(segment.file)
        return noted(self, segment)

    monkeypatch.setattr(StoredFarm, "_search", search)
    for number in range(10):
        # when a new process plans and reads each batch
        stream = FarmDataSource({"directory": str(tmp_path / "farm")}).streamReader(ENTRIES)
        searched.clear()
        end = stream.latestOffset(offset, ReadMaxRows(101))
        batches: list[Any] = [each for task in stream.partitions(offset, end) for each in stream.read(task)]
        # then log time equals log time of a read from the start, and few segments were searched
        for row in (row for batch in batches for row in batch.select(["index", "log_time"]).to_pylist()):
            assert round(row["log_time"].timestamp() * 1000) == whole[row["index"]][3], (number, row)
        offset = end
        assert len(searched) <= 4, (number, searched)
    assert len(StoredFarm(tmp_path / "farm")._log.segments) > 6
    assert [*offset["farms"].values()] == [1_002]


def test_bounds_end_at_known_commit_index(tmp_path: Path) -> None:
    write_log(tmp_path / "farm", *[b"{}"] * 9)
    write_commit_index(tmp_path / "farm", 6)
    assert StoredLog(tmp_path / "farm").bounds() == (1, 6)
    (tmp_path / "farm" / "committed.json").unlink()
    assert StoredLog(tmp_path / "farm").bounds() == (1, 0), "without the file the commit index is unknown"
    for damaged in ("", "[", "[" * 200_000, "6", '{"committed": 1e999}', '{"committed": true}', '{"committed": -6}'):
        (tmp_path / "farm" / "committed.json").write_text(damaged)
        assert StoredLog(tmp_path / "farm").bounds() == (1, 0), "a damaged file counts as absent"
    (tmp_path / "farm" / "committed.json").unlink()
    assert StoredLog(tmp_path / "farm", committed_through=8).bounds() == (1, 8), (
        "the operator's option replaces the file"
    )


def test_directory_without_commit_index_error_names_option(tmp_path: Path) -> None:
    write_log(tmp_path / "farm", *[b"{}"] * 9)
    (tmp_path / "farm" / "committed.json").unlink()
    with pytest.raises(FarmLogError, match="--committed-through"):
        PlaceDirectory(path=tmp_path / "farm").options()
    options = PlaceDirectory(path=tmp_path / "farm", committed_through=8).options()
    stream = FarmDataSource(options).streamReader(ENTRIES)
    assert [*stream.latestOffset(stream.initialOffset(), ReadAllAvailable())["farms"].values()] == [9]


def test_bounds_beyond_log_fail_before_plan(tmp_path: Path) -> None:
    # given the operator's option, or a commit index copied later than the log
    write_log(tmp_path / "farm", clock(EPOCH_MS + 1_000), *[b"{}"] * 8)
    assert StoredLog(tmp_path / "farm", committed_through=10).bounds() == (1, 10)
    with pytest.raises(FarmLogError, match=r"should have entry 11, and ends before it.* --committed-through"):
        StoredLog(tmp_path / "farm", committed_through=11).bounds()
    write_commit_index(tmp_path / "farm", 10**18)
    reader = FarmDataSource({"directory": str(tmp_path / "farm")}).reader(ENTRIES)
    with pytest.raises(FarmLogError, match=r"ends before it.* committed\.json"):
        reader.partitions()


def test_vanishing_files_are_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a running server that adds a snapshot, or compacts its log, during a read of the directory
    write_log_and_snapshot(tmp_path / "farm")
    files, listings = ReadOnlyDirectory.files, [0]

    def vanishing_files(self: ReadOnlyDirectory) -> Sequence[str]:
        listings[0] += 1
        names = [*files(self)]
        return [*names, f"{4:020d}.segment", f"{9:020d}.snapshot"] if listings[0] < stored_log.LOOKS else names

    monkeypatch.setattr(ReadOnlyDirectory, "files", vanishing_files)
    assert StoredLog(tmp_path / "farm").cluster_id() == FOUNDING.cluster_id.hex()
    # The retries have a limit.
    listings[0] = -1_000
    with pytest.raises(FarmLogError, match="cannot be read"):
        StoredLog(tmp_path / "farm")
    assert listings[0] == stored_log.LOOKS - 1_000


def test_unreadable_entries_error_names_file_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cases: a group of entries, the founding, the first log of a directory."""
    write_log(tmp_path / "farm", *[b"{}"] * 9)
    log = StoredLog(tmp_path / "farm", committed_through=10)

    def broken_heads(_payload: bytes) -> Iterator[object]:
        raise EntryDataError("a head of 3 bytes")

    monkeypatch.setattr(stored_log, "heads", broken_heads)
    with pytest.raises(FarmLogError, match=r"segment' cannot be read \(the group from entry 1 .*log verify`"):
        log.check(1, 5)
    (tmp_path / "farm" / FILE_NAME).write_bytes(b"damaged")
    with pytest.raises(FarmLogError, match=f"{FILE_NAME}' cannot be read: .*; read the control endpoint of a running"):
        StoredLog(tmp_path / "farm")
    (tmp_path / "file").touch()
    with pytest.raises(StoredFarmError, match=r"cannot be created in .*; name another directory"):
        StoredFarmWriter(tmp_path / "file" / "farm", [bytes(8)], 0, bytes(16))


def test_archived_log_ignores_commit_index_of_new_cluster(tmp_path: Path) -> None:
    write_log(tmp_path / "farm", *[b"{}"] * 9)
    own = StoredLog(tmp_path / "farm").cluster_id()
    (tmp_path / "farm" / "raft").rename(tmp_path / "farm" / "raft.of-01020304")
    aside = StoredLog(tmp_path / "farm" / "raft.of-01020304")
    assert aside.cluster_id() != own
    assert aside.bounds() == (1, 0)
    assert StoredLog(tmp_path / "farm" / "raft.of-01020304", committed_through=10).bounds() == (1, 10)


def test_directory_of_another_cluster_during_run_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "farm", *[b"{}"] * 9)
    stream = FarmDataSource({"directory": str(tmp_path / "farm")}).streamReader(ENTRIES)
    read = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    shutil.rmtree(tmp_path / "farm")
    small_farm(tmp_path / "farm")
    with pytest.raises(FarmLogError, match="garlicfarm recover"):
        stream.latestOffset(read, ReadAllAvailable())


def test_repeated_batch_from_another_cluster_is_refused(tmp_path: Path) -> None:
    # given a planned, interrupted batch, and another farm in its directory at the next run
    write_log(tmp_path / "farm", *[b"{}"] * 9)
    options = {"directory": str(tmp_path / "farm")}
    stream = FarmDataSource(options).streamReader(ENTRIES)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    pickled_task = pickle.dumps(stream.partitions(start, end)[0])
    shutil.rmtree(tmp_path / "farm")
    small_farm(tmp_path / "farm")
    # then the batch can neither be planned again, as first or later batch, nor be read from its old plan
    later = FarmDataSource(options).streamReader(ENTRIES)
    (cluster,) = end["farms"]
    for begin in (start, {"farms": {cluster: 4}}):
        with pytest.raises(FarmLogError, match="garlicfarm recover"):
            later.partitions(begin, end)
    with pytest.raises(FarmLogError, match="garlicfarm recover"):
        list(later.read(pickle.loads(pickled_task)))  # noqa: S301 - our own


def test_compacted_entries_of_repeated_first_batch_fail(tmp_path: Path) -> None:
    write_log_and_snapshot(tmp_path / "farm")
    options = {"directory": str(tmp_path / "farm"), "committedThrough": "9"}
    stream = FarmDataSource(options).streamReader(ENTRIES)
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(3))
    (tmp_path / "farm" / "committed.json").unlink()
    for segment in (tmp_path / "farm" / "raft").glob("*.segment"):
        segment.unlink()
    later = FarmDataSource({"directory": str(tmp_path / "farm")}).streamReader(ENTRIES)
    with pytest.raises(FarmLogError, match=r"entries 1 to 5 were compacted away .* new output directory"):
        later.partitions(later.initialOffset(), end)


def test_uncommitted_clock_entry_is_ignored(tmp_path: Path) -> None:
    # given a search while the newest entries, with a clock entry, may still be replaced
    write_log(tmp_path / "farm", clock(EPOCH_MS + 1_000), b"{}", clock(EPOCH_MS + 2_000), b"{}")
    write_commit_index(tmp_path / "farm", 3)
    log = StoredLog(tmp_path / "farm")
    log.place(3)
    (clocks,) = log._farm._clocks.values()
    assert [*clocks.indexes] == [2]
    # then they are read after their commit
    write_commit_index(tmp_path / "farm", 5)
    assert log.place(5).index == 4


def test_copy_without_hard_state_is_readable(tmp_path: Path) -> None:
    entries = small_farm(tmp_path / "farm")
    shutil.copytree(tmp_path / "farm", tmp_path / "copy")
    (tmp_path / "copy" / "raft" / "ballot").unlink()
    assert rows_of(tmp_path / "copy", 1, entries + 1) == rows_of(tmp_path / "farm", 1, entries + 1)


def test_damaged_record_error_names_entry(tmp_path: Path) -> None:
    write_log(tmp_path / "farm", *(f'{{"number": {number}}}'.encode() for number in range(50)))
    (segment,) = (tmp_path / "farm" / "raft").glob("*.segment")
    content = bytearray(segment.read_bytes())
    content[content.find(b'"number": 20')] ^= 1
    segment.write_bytes(content)
    # One checksum protects the entries, because they were written as one group.
    with pytest.raises(FarmLogError, match=r"entry 1 is missing or damaged .* log verify"):
        rows_of(tmp_path / "farm", 1, 52)


def test_directory_without_log_error_names_state_directory(tmp_path: Path) -> None:
    with pytest.raises(FarmLogError, match="state directory"):
        StoredLog(tmp_path)


def test_generate_refuses_non_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(FarmLogError, match="not empty"):
        small_farm(tmp_path)


def test_generate_on_full_disk_reports_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_disk(*_: object) -> None:
        monkeypatch.setattr(Directory, "perform_all", fail)

    monkeypatch.setattr(StoredFarmWriter, "append_configuration", fill_disk)
    monkeypatch.setattr("bridge.node.offline.stored_farm_writer.GROUP_ENTRIES", 1)
    with pytest.raises(FarmLogError, match=r"cannot be written: .*No space left on device; free some space"):
        small_farm(tmp_path / "farm")


def test_refused_rows_keep_their_bytes() -> None:
    rows: list[Row] = [(1, 1, "application", None, b"\xff\xfe"), (2, 1, "no-op", 1_000, '{"é": 1}'.encode())]
    (batch,) = record_batches(rows, "farm")
    assert batch.column("farm").to_pylist() == ["farm", "farm"]
    assert batch.column("entry").to_pylist() == ["refused", "no-op"]
    assert batch.column("body").to_pylist() == [b"\xff\xfe", None]
    assert batch.column("body_bytes").to_pylist() == [2, 9]
    assert batch.column("log_time").null_count == 1


def test_large_bodies_end_batch_early() -> None:
    rows: list[Row] = [(number, 1, "application", 0, bytes(10 * 1024 * 1024)) for number in range(1, 9)]
    assert [batch.num_rows for batch in record_batches(rows, "farm")] == [4, 4]


def write_log_and_snapshot(directory: Path) -> None:
    """Write a log of nine entries and a snapshot at index 5, like a running server."""
    write_log(directory, clock(EPOCH_MS + 1_000), *[b"{}"] * 7)
    state = FarmState(
        log_time_ms=EPOCH_MS + 1_000,
        applied_index=5,
        applied_term=1,
        servers={2: ServerState(Report("farm", EPOCH_MS, 2, RouterStatus(attached=True, uptime_ms=77)), EPOCH_MS)},
    )
    image = FarmSnapshot(state, 30_000, SessionTable(SESSION_LIMITS).dump(), [0, 2], [EPOCH_MS, EPOCH_MS + 1_000], [1])
    binding = decode_segment_header(next((directory / "raft").glob("*.segment")).read_bytes()[:4096]).binding
    writer = SnapshotWriter(LogId(5, 1), Configuration((Server(1, "tcp://127.0.0.1:7669"),)))
    disk = Directory(directory / "raft")
    try:
        disk.perform_all(writer.plan_begin())
        for piece in encode_farm(image):
            disk.perform_all(writer.plan(piece))
        disk.perform_all(writer.plan_end())
        disk.perform_all(SnapshotFiles(binding, None).plan_adopt(writer.description, writer.file))
    finally:
        disk.close()


def test_stream_from_snapshot_returns_reports_then_entries(tmp_path: Path) -> None:
    write_log_and_snapshot(tmp_path / "farm")
    stream = FarmDataSource({"directory": str(tmp_path / "farm"), "start": "snapshot"}).streamReader(ENTRIES)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert [*end["farms"].values()] == [10]
    assert [*end["begins"].values()] == [{"next": 6, "snapshot": 5}]
    first, second = (list(stream.read(partition)) for partition in stream.partitions(start, end))
    (snapshot,) = first[0].to_pylist()
    assert (snapshot["index"], snapshot["kind"]) == (5, "snapshot")
    assert (snapshot["entry"], snapshot["server_id"], snapshot["report"]["uptime_ms"]) == ("snapshot", 2, 77)
    assert second[0].column("index").to_pylist() == [6, 7, 8, 9]
    # then a later batch does not repeat the snapshot
    assert stream.latestOffset(end, ReadAllAvailable()) == end


def test_snapshot_defines_commit_index_and_log_time(tmp_path: Path) -> None:
    write_log_and_snapshot(tmp_path / "farm")
    (tmp_path / "farm" / "committed.json").unlink()
    assert StoredLog(tmp_path / "farm").bounds() == (1, 5)
    # given a log without the entries before the snapshot
    for segment in (tmp_path / "farm" / "raft").glob("*.segment"):
        segment.unlink()
    assert StoredLog(tmp_path / "farm").bounds() == (6, 5)
    reader = FarmDataSource({"directory": str(tmp_path / "farm"), "start": "3"}).reader(ENTRIES)
    with pytest.raises(FarmLogError, match=r"entries 3 to 5 were compacted away .* --start snapshot"):
        reader.partitions()


def test_truncated_entries_are_not_read(tmp_path: Path) -> None:
    """The bytes of truncated entries stay in the file, after the bytes of the remaining entries."""
    directory, recovery = open_directory(tmp_path / "raft", bytes(8), 1, StorageOptions())
    old = tuple(Entry.command(1, clock(EPOCH_MS + number)) for number in range(5))
    new = (Entry.command(2, clock(EPOCH_MS + 90)), Entry.command(2, clock(EPOCH_MS + 91)))
    for persist in (
        Persist(number=1, hard_state=HardState(1), truncate_from=None, first=1, entries=old),
        Persist(number=2, hard_state=HardState(2), truncate_from=4, first=4, entries=new),
    ):
        directory.perform_all(recovery.storage.plan([persist]))
        recovery.storage.done()
    directory.close()
    log = stored_log.open_stored_log(tmp_path / "raft")
    (segment,) = log.segments
    remaining = [(1, entry.data) for entry in old[:3]] + [(2, entry.data) for entry in new]
    assert [(term, data) for _, _, term, _, data in log.entries(log.beginning(segment), 6)] == remaining
    found = [entry for _, entries in log.groups_holding(segment, b'"clock"', 0) for entry in entries]
    assert [(index, term, data) for _, index, term, _, data in found] == [
        (index, term, data) for index, (term, data) in enumerate(remaining, start=1)
    ]
    with pytest.raises(StorageError, match="entry 6 is missing"):
        list(log.entries(log.beginning(segment), 7))
