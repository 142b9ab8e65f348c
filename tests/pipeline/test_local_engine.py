"""The engine without a JVM: rows, checkpoint and end of a run, kills at any step, and the choice of the engine.

A kill is an error of a write, before or after its effect. All later writes of the run fail too.
"""

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from pipeline.cli.commands import pipeline
from pipeline.cli.options import LOCAL, LOCAL_ENTRIES_MAX, SPARK, Engine
from pipeline.cli.places import Farms, LogPlace, Nodes, Topic
from pipeline.lake import Lake
from pipeline.local import checkpoint
from pipeline.local import query as local_query
from pipeline.local.checkpoint import StoredCheckpoint
from pipeline.local.query import LocalQuery
from pipeline.output import data_files, documents
from pipeline.repair.damage import examine
from pipeline.run import LAYOUT, RunSettings, run_once
from pipeline.source.log_client import FarmLogError
from pipeline.spark import session
from pipeline.spark.lost_starts import RetryPolicy
from pipeline.spark.side_by_side import QueryState, SideBySide
from pipeline.tables import batch_notes, delta, farm_files, offset_shards, tasks
from pipeline.tables.current import read
from pipeline.tables.files import TableDamagedError
from tests.effort import IS_SOAK
from tests.pipeline.farm_log_server import MadeUpLog, arrow_entries_of, serve_log, three_servers
from tests.pipeline.made_tables import tables_of_entries
from tests.processes import END_S
from tests.soak.pipeline_tables import differences, same_pseudonyms, tables_of

KILLS = 60 if IS_SOAK else 2
BATCH = 40


class KilledError(Exception):
    """The end of a run by a made-up kill."""


class Kills:
    """Ends a run at the step with this number; all later steps fail as well, because their process is dead."""

    def __init__(self, step: int) -> None:
        self.left = step

    def step(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise KilledError

    @contextmanager
    def at_writes(self) -> Iterator[None]:
        """Count the steps before and after each durable write, in all modules that write."""

        def counted(write: Callable[..., Any]) -> Callable[..., Any]:
            def counting(*given: Any, **more: Any) -> Any:
                self.step()
                result = write(*given, **more)
                self.step()
                return result

            return counting

        with pytest.MonkeyPatch.context() as patch:
            for module in (checkpoint, data_files, delta, documents):
                patch.setattr(module, "sync", counted(module.sync))
            patch.setattr(delta.Table, "_commit", counted(delta.Table._commit))
            patch.setattr(batch_notes.BatchNotes, "_store", counted(batch_notes.BatchNotes._store))
            patch.setattr(StoredCheckpoint, "_write", counted(StoredCheckpoint._write))
            yield


def settings_of(output: Path, address: str) -> RunSettings:
    """Return the settings of a run with all tables, in small batches."""
    source = {"node": address, "maxEntriesPerBatch": str(BATCH)}
    return RunSettings(output, source, watch=True, events={"node": address})


@pytest.mark.search
def test_tables_are_equal_after_kills_at_any_step(tmp_path: Path) -> None:
    log, random = three_servers(minutes=2), Random(7)
    for number in range(20):
        log.add_event("member-suspect", member=f"node-{number % 3}")
    with serve_log(log, tmp_path / "control.sock") as address:
        undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
        all_steps = Kills(1_000_000)
        with all_steps.at_writes():
            run_once(None, settings_of(undisturbed, address))
        steps = 1_000_000 - all_steps.left
        expected, kills = tables_of(undisturbed), 0
        while kills < KILLS:
            same_pseudonyms(undisturbed, killed)
            # Kill several runs in one directory, until a run reaches its end.
            for _ in range(KILLS):
                with Kills(random.randint(1, steps // 2)).at_writes():
                    try:
                        run_once(None, settings_of(killed, address))
                        break
                    except (FarmLogError, KilledError):
                        kills += 1
            run_once(None, settings_of(killed, address))
            assert differences(expected, tables_of(killed)) == []
            assert not examine(killed)
            shutil.rmtree(killed)


def test_run_continues_layout_3_and_raises_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layout 3 has a whole offset and one file of state; this run writes shards, and a file for each farm."""
    log = three_servers(minutes=1)
    early = MadeUpLog(entries=log.entries[: len(log.entries) // 2])
    found = list[dict[str, Counter[str]]]()
    for name in ("undisturbed", "continued"):
        output = tmp_path / name
        if found:
            same_pseudonyms(tmp_path / "undisturbed", output)
        for number, part in enumerate((early, log)):
            with serve_log(part, tmp_path / f"{number}.sock") as address:
                run_once(None, RunSettings(output, {"node": address}, watch=True, derived=False))
            if name == "continued" and part is early:
                (output / "layout.json").write_text('{"layout": 3}')
                monkeypatch.setattr(offset_shards, "WHOLE_FARMS", 0)
                monkeypatch.setattr(farm_files, "FILE_ROWS", 1)
        found.append(tables_of(output))
    assert differences(*found) == []
    assert json.loads((tmp_path / "continued" / "layout.json").read_text()) == {"layout": LAYOUT}
    assert (tmp_path / "continued" / "checkpoint" / "shards").is_dir()


class Numbers:
    """A source of numbers up to `newest`, with tasks of one number each."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.fails = ""
        self.before_read: Callable[[], object] = int

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the place before the first number."""
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the place after the next three numbers."""
        del limit
        return {"next": min(start["next"] + 3, self.newest)}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the place after the newest number."""
        return {"next": self.newest}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["next"], end["next"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self.before_read()
        if self.fails:
            raise FarmLogError(self.fails)
        yield pa.RecordBatch.from_pydict({"number": [partition.value]})


def numbers_written(source: Numbers, root: Path) -> dict[int, list[int]]:
    """Run a query to its end; return the numbers of each batch."""
    found: dict[int, list[int]] = {}

    def write(rows: Any, batch: int) -> None:
        found[batch] = [number for each in rows for number in each.column("number").to_pylist()]

    query = LocalQuery(source, write, root, None).start()
    assert query.awaitTermination(int(END_S))
    failure = query.exception()
    if failure is not None:
        raise failure
    return found


def test_run_continues_after_last_batch(tmp_path: Path) -> None:
    assert numbers_written(Numbers(5), tmp_path / "a") == {0: [0, 1, 2], 1: [3, 4]}
    assert numbers_written(Numbers(5), tmp_path / "a") == {}
    assert numbers_written(Numbers(7), tmp_path / "a") == {2: [5, 6]}


def test_batch_without_commit_is_repeated_with_its_ends(tmp_path: Path) -> None:
    numbers_written(Numbers(5), tmp_path / "a")
    (tmp_path / "a" / "commits" / "1").unlink()
    assert numbers_written(Numbers(9), tmp_path / "a") == {1: [3, 4], 2: [5, 6, 7], 3: [8]}


def test_old_batches_leave_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "KEPT", 2)
    numbers_written(Numbers(12), tmp_path / "a")
    for folder in ("offsets", "commits"):
        assert sorted(each.name for each in (tmp_path / "a" / folder).iterdir()) == ["2", "3"]


@pytest.mark.parametrize("content", ["", "v1\n{}", "v1\n{}\n[]", "v2\n{}\n{}", "v1\n{}\n{"])
def test_damaged_offset_is_refused(content: str, tmp_path: Path) -> None:
    numbers_written(Numbers(5), tmp_path / "a")
    (tmp_path / "a" / "offsets" / "1").write_text(content)
    with pytest.raises(TableDamagedError, match="pipeline repair"):
        numbers_written(Numbers(9), tmp_path / "a")


def test_error_of_source_ends_query_with_its_text(tmp_path: Path) -> None:
    source = Numbers(5)
    source.fails = "no node replies"
    with pytest.raises(FarmLogError, match="no node replies"):
        numbers_written(source, tmp_path / "a")
    # The next run repeats the batch.
    assert numbers_written(Numbers(5), tmp_path / "a") == {0: [0, 1, 2], 1: [3, 4]}


def test_lost_start_of_tasks_is_repeated_and_errors_are_short(tmp_path: Path) -> None:
    source, found, notes = Numbers(2), list[int](), list[str]()
    reports = [
        "An error occurred while calling z:x.\n: java.io.IOException: Python worker failed to connect back.\n\tat x",
        "An error occurred while calling z:x.\n: x\npipeline.output.buckets.BucketError: s3 is closed\n\tat x",
    ]

    def read(tasks: Sequence[InputPartition]) -> Iterator[pa.RecordBatch]:
        if reports:
            raise Py4JError(reports.pop(0))
        for task in tasks:
            yield from source.read(task)

    def write(rows: Any, _: int) -> None:
        found.extend(number for each in rows for number in each.column("number").to_pylist())

    def run_to_end() -> None:
        kept = QueryState("the run", lambda: LocalQuery(source, write, tmp_path / "a", None, read=read).start())
        clock = map(float, count())
        queries = SideBySide([kept], RetryPolicy(notify=notes.append, count=lambda: None, clock=lambda: next(clock)))
        while queries.step():
            queries.wait(1)

    with pytest.raises(FarmLogError, match=r"^s3 is closed$"):
        run_to_end()
    assert ["lost starts in a row: 1" in each for each in notes] == [True]
    run_to_end()
    assert found == [0, 1]


def test_stop_ends_batch_between_tasks(tmp_path: Path) -> None:
    source, read = Numbers(3), list[int]()
    query = LocalQuery(source, lambda rows, _: [*rows].clear(), tmp_path / "a", 1.0)

    def stop() -> None:
        read.append(1)
        query._ended.set()

    source.before_read = stop
    query.start()
    assert query.awaitTermination(int(END_S))
    query.stop()
    assert (query.exception(), read, query.isActive) == (None, [1], False)
    assert StoredCheckpoint(tmp_path / "a").committed == -1


@pytest.mark.parametrize("cancel", [None, lambda: None])
def test_stop_does_not_wait_for_unresponsive_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancel: Callable[[], None] | None
) -> None:
    monkeypatch.setattr(local_query, "STOP_S", 0.01)
    source, began, replies, written = Numbers(3), threading.Event(), threading.Event(), list[pa.RecordBatch]()

    def wait() -> None:
        began.set()
        assert replies.wait(END_S)

    source.before_read = wait
    query = LocalQuery(source, lambda rows, _: written.extend(rows), tmp_path / "a", 1.0, cancel=cancel).start()
    assert began.wait(END_S)
    query.stop()
    assert query.isActive
    replies.set()
    assert query.awaitTermination(int(END_S))
    assert (written, StoredCheckpoint(tmp_path / "a").committed) == ([], -1)


def test_stop_cancels_tasks_elsewhere(tmp_path: Path) -> None:
    began, canceled = threading.Event(), threading.Event()

    def read(_: Sequence[InputPartition]) -> Iterator[pa.RecordBatch]:
        began.set()
        assert canceled.wait(END_S)
        raise Py4JError("Job 0 cancelled as part of cancellation of all jobs")

    def write(rows: Any, _: int) -> None:
        [*rows].clear()

    query = LocalQuery(Numbers(3), write, tmp_path / "a", 1.0, read=read, cancel=canceled.set).start()
    assert began.wait(END_S)
    query.stop()
    assert (query.isActive, StoredCheckpoint(tmp_path / "a").committed) == (False, -1)


def test_stop_continues_after_error_of_cancel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a JVM that has ended; the tasks end at the third call of `cancel`
    monkeypatch.setattr(local_query, "CANCEL_S", 0.01)
    began, ended, notes, calls = threading.Event(), threading.Event(), list[str](), count(1)

    def read(_: Sequence[InputPartition]) -> Iterator[pa.RecordBatch]:
        began.set()
        assert ended.wait(END_S)
        raise Py4JError("the JVM does not reply")

    def cancel() -> None:
        if next(calls) == 3:
            ended.set()
        raise Py4JError("the JVM has ended")

    def write(rows: Any, _: int) -> None:
        [*rows].clear()

    source = Numbers(3)
    query = LocalQuery(source, write, tmp_path / "a", 1.0, read=read, cancel=cancel, notify=notes.append).start()
    assert began.wait(END_S)
    query.stop()
    assert (query.isActive, notes) == (False, ["the running tasks could not be canceled: the JVM has ended"])


def test_progress_has_form_of_spark(tmp_path: Path) -> None:
    query = LocalQuery(Numbers(5), lambda rows, _: [*rows].clear(), tmp_path / "a", None).start()
    assert query.awaitTermination(int(END_S))
    progress = query.lastProgress
    assert progress is not None
    (source,) = progress["sources"]
    places = [json.loads(source[name])["next"] for name in ("startOffset", "endOffset", "latestOffset")]
    assert (progress["batchId"], places) == (1, [3, 5, 5])
    assert query.status == {"message": "Waiting for next trigger", "isTriggerActive": False}


def test_rows_are_previewed_between_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a query with a batch every 10 s, whose source gets a number at each step
    now, source, steps = [0.0], Numbers(2), list[tuple[str, list[int]]]()
    monkeypatch.setattr(local_query, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(local_query, "PREVIEW_S", 0.0)
    monkeypatch.setattr(local_query, "KEPT_BYTES", 1000)

    def step(kind: str, rows: Iterable[pa.RecordBatch]) -> None:
        steps.append((kind, [number for each in rows for number in each.column("number").to_pylist()]))
        now[0] += 4
        source.newest += 1
        # After the second batch, the backlog is one large row.
        if len(steps) == 4:
            monkeypatch.setattr(local_query, "KEPT_BYTES", 0)
        if len(steps) == 6:
            query._ended.set()

    def write(rows: Iterable[pa.RecordBatch], number: int) -> None:
        step(f"batch {number}", rows)

    query = LocalQuery(source, write, tmp_path / "a", 10.0, lambda rows: step("preview", rows))
    query.start()
    assert query.awaitTermination(int(END_S))
    assert steps == [
        *(("batch 0", [0, 1]), ("preview", [2]), ("preview", [3])),
        *(("batch 1", [2, 3, 4]), ("batch 2", [5]), ("batch 3", [6])),
    ]


def test_tables_are_equal_after_kill_between_preview_and_batch(tmp_path: Path) -> None:
    entries = arrow_entries_of(three_servers(minutes=1))
    first, second = entries.slice(0, 20), entries.slice(20)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    tables_of_entries(first, undisturbed, 0)
    same_pseudonyms(undisturbed, killed)
    tables_of_entries(first, killed, 0)
    before = read(killed, "routers")
    lake = Lake(killed, 60_000)
    lake.show_newest([])
    assert before == read(killed, "routers")
    lake.show_newest([*second.to_batches()])
    tables_of_entries(second, undisturbed, 1)
    assert before != read(killed, "routers") == read(undisturbed, "routers")
    tables_of_entries(second, killed, 1)
    assert differences(tables_of(undisturbed), tables_of(killed)) == []


class SizedBatch:
    """A record batch with a given size in memory. It counts the requests for its size."""

    def __init__(self, num_rows: int, size: int) -> None:
        self.num_rows = num_rows
        self.requests = 0
        self._size = size

    @property
    def nbytes(self) -> int:
        self.requests += 1
        return self._size


@pytest.mark.parametrize(
    ("rows", "size", "groups"), [(1, 1, [200]), (0, 0, []), (60, 1, [100, 100]), (1, 150, [66, 66, 66, 2])]
)
def test_size_of_each_grouped_batch_is_computed_once(
    rows: int, size: int, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "ROWS_PER_RECORD_BATCH", 6_000)
    monkeypatch.setattr(tasks, "BYTES_PER_RECORD_BATCH", 10_000)
    table = SimpleNamespace(from_batches=lambda group: SimpleNamespace(combine_chunks=lambda: len(group)))
    monkeypatch.setattr(tasks, "pa", SimpleNamespace(Table=table, RecordBatch=pa.RecordBatch))
    batches: list[Any] = [SizedBatch(rows, size) for _ in range(200)]
    assert [*tasks._grouped(batches)] == groups
    assert [each.requests for each in batches] == [1] * 200


def test_preview_counts_each_batch_once(tmp_path: Path) -> None:
    source, batches = Numbers(1), list[Any]()

    def read(_: Sequence[InputPartition]) -> Iterator[Any]:
        batches.append(SizedBatch(1, 1))
        yield batches[-1]

    def preview(_: object) -> None:
        source.newest += 1
        if len(batches) == 20:
            query._ended.set()

    def write(rows: Iterable[pa.RecordBatch], _: int) -> None:
        [*rows].clear()
        source.newest += 1

    query = LocalQuery(source, write, tmp_path / "a", 3600.0, preview, read=read)
    query._poll_s = 0.0
    query.start()
    assert query.awaitTermination(int(END_S))
    assert (query.exception(), [each.requests for each in batches]) == (None, [0] + [1] * 19)


NODE, TOPIC, FILE = Nodes(), Topic(servers="a:1"), Farms(file=Path("farms.toml"))
CONF = (("spark.driver.memory", "2g"),)


def no_spark(*_: object, **__: object) -> SparkSession:
    """Fail: the test must not start Spark."""
    raise AssertionError("Spark was started")


@pytest.mark.parametrize(
    ("name", "master", "conf", "place", "entries", "is_local"),
    [
        (None, None, (), NODE, 0, True),
        (None, None, (), NODE, LOCAL_ENTRIES_MAX + 1, False),
        (None, "local[2]", (), NODE, 0, False),
        (None, None, CONF, NODE, 0, False),
        (None, None, (), TOPIC, 0, False),
        (None, None, (), FILE, 0, False),
        (LOCAL, None, (), FILE, LOCAL_ENTRIES_MAX + 1, True),
        (SPARK, None, (), NODE, 0, False),
    ],
)
def test_engine_follows_options(
    name: str | None,
    master: str | None,
    conf: tuple[tuple[str, str], ...],
    place: LogPlace,
    entries: int,
    is_local: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    engine = Engine(name, master, conf, no_spark)
    assert engine.is_local(place, entries) is is_local
    if is_local:
        with engine.opened(place, entries) as opened:
            assert opened is None


def test_master_of_environment_selects_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://far:7077\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not Engine(None, None, ()).is_local(NODE)
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
    assert not Engine(None, None, ()).is_local(NODE)


@pytest.mark.parametrize(("master", "conf", "place"), [("local", (), NODE), (None, CONF, NODE), (None, (), TOPIC)])
def test_local_engine_refuses_options_of_spark(
    master: str | None, conf: tuple[tuple[str, str], ...], place: LogPlace
) -> None:
    with pytest.raises(click.UsageError, match="needs Spark"):
        Engine(LOCAL, master, conf, no_spark).is_local(place)


def test_run_and_backfill_without_spark_exit_with_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_started", no_spark)
    log = three_servers(minutes=1)
    with serve_log(log, tmp_path / "control.sock") as address:
        place = ["--node", address]
        run = CliRunner().invoke(pipeline, ["run", "--once", "--json", "--output", str(tmp_path / "run"), *place])
        assert run.exit_code == 0, run.output
        assert [json.loads(line)["reports"] for line in run.stdout.splitlines()] == [6, 6, 6]
        part = ["backfill", "--from", "3", "--to", "12", "--output", str(tmp_path / "part"), *place]
        assert CliRunner().invoke(pipeline, part).exit_code == 0
    completed = CliRunner().invoke(pipeline, ["query", "completeness", "--json", "--output", str(tmp_path / "run")])
    assert completed.exit_code == 0, completed.output
    assert all(json.loads(line)["complete"] for line in completed.stdout.splitlines())
