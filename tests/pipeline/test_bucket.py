"""Tables in a bucket: equal to tables in a directory, one writer, and errors with their remedies.

The server is our own (`s3_server.py`), so that a test can refuse writes and drop replies.
"""

import errno
import json
import os
import pickle
import pwd
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Self, cast

import click
import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from pipeline.cli import options
from pipeline.cli.commands import pipeline
from pipeline.cli.options import LOCAL, SPARK, Engine
from pipeline.cli.places import Nodes, Topic
from pipeline.gold.sources import Sources
from pipeline.lake import alone_in
from pipeline.local.checkpoint import CHECKPOINT, StoredCheckpoint
from pipeline.output import data_files, leases
from pipeline.output.buckets import SCHEME, BucketError, BucketPath, OvertakenError, output_of, refuse_unconditional
from pipeline.output.documents import Document
from pipeline.output.leases import LIFETIME_S, LOOK_S, Lease, leased
from pipeline.repair.checkpoint import checkpoint_fault
from pipeline.repair.damage import examine, is_damaged
from pipeline.run import RunSettings, run_once, start_query
from pipeline.serve import query
from pipeline.serve.query import QueryError, documents, of_one_version
from pipeline.serve.views import view_statements
from pipeline.source.log_client import FarmLogError
from pipeline.spark.session import open_session
from pipeline.tables import delta, offset_shards
from pipeline.tables.batch_notes import BatchNotes
from pipeline.tables.delta import (
    CHECKPOINT_COMMITS,
    StoredFile,
    StoredTables,
    Table,
    stored_files,
    stored_rows,
    stored_version,
)
from pipeline.tables.files import TableDamagedError
from pipeline.tables.names import NAMES_OBJECT, SALT_FILE, read_names, remember_names
from pipeline.tables.offset_shards import OffsetShards
from pipeline.tables.specs import BASE_SPECS, LOG
from tests.pipeline.farm_log_server import serve_log, three_servers
from tests.pipeline.made_tables import rows_of, write_batch
from tests.pipeline.s3_server import BUCKET, NEVER, SECRET, S3Server, serving_s3
from tests.processes import END_S
from tests.soak.pipeline_tables import differences, tables_of

CLOCKS = BASE_SPECS["clocks"]
KILLS, ROUNDS = 40, 40
_numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serving_s3() as served:
        yield served


@pytest.fixture
def s3(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Return the server without faults; the environment has its address."""
    server.ignores_conditions, server.denied_methods, server.writes_left = False, frozenset(), NEVER
    server.denied_keys = ""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return server


@pytest.fixture
def place(s3: S3Server) -> BucketPath:
    del s3
    return BucketPath(BUCKET, f"tests/{next(_numbers)}")


def clock(index: int) -> dict[str, object]:
    """Return a row of the table `clocks`."""
    return {"index": index, "log_time": datetime(2026, 1, 1, tzinfo=UTC)}


def append(table: Table, batch: int) -> bool:
    return table.append(LOG, batch, rows_of(CLOCKS.schema, [clock(batch)]))


def indexes(place: BucketPath) -> list[int]:
    """Return the indexes in the table `clocks`."""
    return sorted(stored_rows(place / "clocks", CLOCKS.schema).column("index").to_pylist())


class TasksElsewhere:
    """Spark's part of a batch in a bucket: pickled tasks, each read by a pickled reader. It counts the tasks."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.tasks = 0
        self.tags = list[str]()

    def statusTracker(self) -> SimpleNamespace:  # noqa: N802 - Spark's name
        """Return the stages of the present job: none."""
        return SimpleNamespace(getActiveStageIds=tuple)

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        """Record the tag of the next job."""
        self.tags.append(tag)

    def cancelJobsWithTag(self, _: str) -> None:  # noqa: N802 - Spark's name
        """Do nothing: a job ends before the query is stopped."""

    def parallelize(self, partitions: Sequence[InputPartition], _count: int) -> Self:
        """Take the tasks of a job."""
        self._partitions = pickle.loads(pickle.dumps(partitions))  # noqa: S301 - its own
        self.tasks += len(partitions)
        return self

    def flatMap(self, read: Callable[[InputPartition], Iterator[pa.RecordBatch]]) -> Self:  # noqa: N802 - Spark's name
        """Take the function of a job."""
        function = cloudpickle.dumps(read)  # type: ignore[no-untyped-call]  # Spark's copy
        self._read = pickle.loads(function)  # noqa: S301 - its own
        return self

    def collect(self) -> list[pa.RecordBatch]:
        """Return the results of a job."""
        return [each for partition in self._partitions for each in self._read(partition)]


class JobThatLasts(TasksElsewhere):
    """Spark with a job that ends when jobs with its tag are canceled."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.canceled = threading.Event(), threading.Event()

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        assert [tag] == self.tags
        self.canceled.set()

    def collect(self) -> list[pa.RecordBatch]:
        self.began.set()
        assert self.canceled.wait(END_S)
        raise Py4JError("Job 0 cancelled")


def run(address: str, output: Path | BucketPath, session: SparkSession | None = None) -> None:
    run_once(session, RunSettings(output, {"node": address, "maxEntriesPerBatch": "40"}, watch=True))


@pytest.mark.parametrize("has_jvm", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["pickled", "spark"])
def test_tables_of_spark_in_bucket_equal_local_tables(place: BucketPath, tmp_path: Path, *, has_jvm: bool) -> None:
    elsewhere = TasksElsewhere()
    session = open_session("local[2]") if has_jvm else cast("SparkSession", elsewhere)
    local = tmp_path / "tables"
    with ExitStack() as held:
        if has_jvm:
            held.callback(session.stop)
        address = held.enter_context(serve_log(three_servers(minutes=1), tmp_path / "control.sock"))
        with alone_in(place):
            run(address, place, session)
        local.mkdir()
        (local / SALT_FILE).write_bytes(((place / SALT_FILE).read() or (b"", ""))[0])
        run(address, local)
    assert differences(tables_of(local), tables_of(place)) == []
    assert has_jvm or elsewhere.tasks


def test_stop_cancels_only_jobs_of_query_in_bucket(place: BucketPath, tmp_path: Path) -> None:
    jobs = [JobThatLasts(), JobThatLasts()]
    with ExitStack() as held:
        address = held.enter_context(serve_log(three_servers(minutes=1), tmp_path / "control.sock"))
        for each, name in zip(jobs, ("a", "b"), strict=True):
            settings, session = RunSettings(place / name, {"node": address}), cast("SparkSession", each)
            query = start_query(session, settings, available_now=True)
            assert each.began.wait(END_S)
            query.stop()
            assert (query.isActive, each.canceled.is_set()) == (False, True)
    assert jobs[0].tags != jobs[1].tags


@pytest.mark.soak
def test_tables_in_bucket_equal_tables_in_directory(
    place: BucketPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, log = tmp_path / "tables", three_servers(minutes=1)
    view, losses = Sources.view, iter((1,))

    def view_and_lose_copy(sources: Sources, connection: Any, name: str, files: list[StoredFile]) -> None:
        view(sources, connection, name, files)
        for file in files[: next(losses, 0)]:
            data_files.place_on_disk(sources.output / name, file.path).unlink()

    with serve_log(log, tmp_path / "control.sock") as address:
        with alone_in(place):
            with monkeypatch.context() as patched:
                patched.setattr(Sources, "view", view_and_lose_copy)
                run(address, place)
            assert next(losses, 0) == 0
            # The next run reads the tables from the bucket.
            shutil.rmtree(tmp_path / "cache")
            log.tick(60_000)
            log.report(1, uptime=1_000, jobLag=2.0)
            run(address, place)
        local.mkdir()
        (local / SALT_FILE).write_bytes(((place / SALT_FILE).read() or (b"", ""))[0])
        run(address, local)
    expected, found = tables_of(local), tables_of(place)
    # This table has rows for each batch, and the directory was filled in fewer batches.
    assert (expected.pop("ranges") == found.pop("ranges"), differences(expected, found)) == (False, [])
    assert (read_names(place), not examine(place)) == (read_names(local), True)
    assert [each for each in place.iterdir() if each.name.startswith(".")] == []
    # when the commands read the bucket
    given = ["--output", str(place)]
    answer = CliRunner().invoke(pipeline, ["query", "completeness", "--json", *given])
    assert answer.exit_code == 0, answer.output
    assert all(json.loads(line)["complete"] for line in answer.stdout.splitlines())
    silenced = CliRunner().invoke(pipeline, ["silence", "--server", "3", "--for", "2h", "--json", *given])
    assert json.loads(silenced.stdout)["server"] == "3"
    views = CliRunner().invoke(pipeline, ["views", *given]).output
    assert (f"delta_scan('{place}/reports')" if place.scheme == SCHEME else "cannot read HDFS") in views


@pytest.mark.soak
def test_tables_are_equal_after_kills_at_any_write(s3: S3Server, place: BucketPath, tmp_path: Path) -> None:
    local, log, random = tmp_path / "tables", three_servers(minutes=2), Random(7)
    with serve_log(log, tmp_path / "control.sock") as address:
        run(address, local)
        number = kills = 0
        while kills < KILLS:
            number += 1
            killed = place / str(number)
            (killed / SALT_FILE).write((local / SALT_FILE).read_bytes(), None)
            while True:
                s3.writes_left = random.randint(1, 60)
                try:
                    run(address, killed)
                    break
                except (FarmLogError, OSError):
                    kills += 1
            s3.writes_left = NEVER
            run(address, killed)
            assert differences(tables_of(local), tables_of(killed)) == []
            assert not examine(killed)


@pytest.mark.soak
def test_batch_is_written_once_by_two_runs(place: BucketPath, tmp_path: Path) -> None:
    local, log = tmp_path / "tables", three_servers(minutes=2)
    failures: list[BaseException] = []

    def run_until_end() -> None:
        # Both act as if they had the lock. A run that finds writes of the other one ends, and is started again.
        for _ in range(ROUNDS):
            try:
                run(address, place)
            except (FarmLogError, OSError) as error:
                failures.append(error)
            else:
                return

    with serve_log(log, tmp_path / "control.sock") as address:
        local.mkdir()
        (local / SALT_FILE).write_text("the same for both runs\n", encoding="ascii")
        (place / SALT_FILE).write((local / SALT_FILE).read_bytes(), None)
        run(address, local)
        both = [threading.Thread(target=run_until_end) for _ in range(2)]
        for each in both:
            each.start()
        for each in both:
            each.join(4 * END_S)
        assert not any(each.is_alive() for each in both)
        run(address, place)
    assert failures
    assert differences(tables_of(local), tables_of(place)) == []
    assert not examine(place)


@pytest.mark.soak
def test_repair_reads_lost_rows_again_and_replaces_checkpoint(s3: S3Server, place: BucketPath, tmp_path: Path) -> None:
    log = three_servers(minutes=2)
    with serve_log(log, tmp_path / "control.sock") as address:
        run(address, place)
        expected = tables_of(place)
        (file, *_) = stored_files(place / "reports")
        del s3.objects[f"{place.key}/reports/{file.path}"]
        for each in (place / "checkpoint").objects():
            each.unlink()
        with pytest.raises(FarmLogError, match=f"run `garlicfarm pipeline repair --output {place}"):
            run(address, place)
        s3.objects[f"{place.key}/clocks/_delta_log/{1:020}.json"] = b"{"
        repaired = CliRunner().invoke(pipeline, ["repair", "--node", address, "--output", str(place)])
        assert repaired.exit_code == 0, repaired.output
        assert f"{place} is repaired" in repaired.output
        log.tick(60_000)
        log.report(1, uptime=1_000, jobLag=2.0)
        run(address, place)
    found = tables_of(place)
    assert (sum(found["reports"].values()), not examine(place)) == (sum(expected["reports"].values()) + 1, True)
    assert expected["reports"] - found["reports"] == expected["clocks"] - found["clocks"]
    assert any(each.name.startswith(".replaced-clocks") for each in place.iterdir())


def test_table_is_read_during_checkpoint(s3: S3Server, place: BucketPath, monkeypatch: pytest.MonkeyPatch) -> None:
    # given commits that a checkpoint deletes immediately
    monkeypatch.setattr(delta, "LOG_KEPT", "interval 0 seconds")
    table = Table(place, CLOCKS)
    for batch in range(CHECKPOINT_COMMITS - 1):
        append(table, batch)
    before, opened = dict(s3.objects), StoredTables(place)
    assert opened.batch("clocks", LOG) == CHECKPOINT_COMMITS - 2
    append(table, CHECKPOINT_COMMITS - 1)
    after = dict(s3.objects)
    assert before.keys() - after.keys()
    # when the checkpoint deletes them between a list and the requests for the listed objects
    s3.objects, s3.after_list = dict(before), after
    assert stored_version(place / "clocks") == table.known_batch(LOG) + 1
    s3.objects, s3.after_list = dict(before), after
    assert indexes(place) == [*range(CHECKPOINT_COMMITS)]
    # and when it deletes them after the first use of a table
    assert opened.batch("clocks", LOG) == CHECKPOINT_COMMITS - 2
    with pytest.raises(TableDamagedError, match="clocks is damaged"):
        opened.batch("clocks", "another query")


def test_second_writer_of_table_is_refused(place: BucketPath) -> None:
    one = Table(place, CLOCKS)
    assert append(one, 0)
    other = Table(place, CLOCKS)
    assert other.known_batch(LOG) == 0
    # Both are at batch 1: the second commit does not add its rows.
    assert append(one, 1)
    with pytest.raises(OSError, match=f"{place}/clocks cannot be written"):
        append(other, 1)
    assert indexes(place) == [0, 1]
    assert not append(other, 1)
    assert append(other, 2)


def test_second_writer_of_document_and_checkpoint_is_refused(place: BucketPath) -> None:
    one, other = Document(place / "batches-log.json"), Document(place / "batches-log.json")
    one.write(b"1")
    with pytest.raises(OvertakenError, match="was written by another process"):
        other.write(b"2")
    assert (other.read(), one.read()) == (b"1", b"1")
    other.write(b"2")
    with pytest.raises(OvertakenError):
        one.write(b"3")
    checkpoints = StoredCheckpoint(place / "checkpoint"), StoredCheckpoint(place / "checkpoint")
    checkpoints[0].plan(0, {"farms": {"a": 7}})
    with pytest.raises(OvertakenError):
        checkpoints[1].plan(0, {"farms": {"a": 8}})
    assert (checkpoints[1].planned, checkpoints[1].committed, checkpoints[1].offset(0)) == (0, -1, {"farms": {"a": 7}})


def test_views_name_store_without_credentials(s3: S3Server, place: BucketPath, monkeypatch: pytest.MonkeyPatch) -> None:
    append(Table(place, CLOCKS), 0)
    address = s3.url.removeprefix("http://")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:word@{address}")
    (secret,) = (each for each in view_statements(place) if "SECRET" in each)
    assert f"PROVIDER credential_chain, ENDPOINT '{address}', URL_STYLE 'path', USE_SSL false);" in secret
    assert not any(each in secret for each in ("user:", "word", SECRET))


def test_offset_shards_in_bucket_are_repeated_and_swept(place: BucketPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_shards, "WHOLE_FARMS", 0)
    monkeypatch.setattr(offset_shards, "SWEEP_OFFSETS", 3)
    checkpoint, offsets = place / "checkpoint", [{"farms": {"a": entry, "b": 5}} for entry in (5, 6, 7)]
    first = OffsetShards(checkpoint).stored(offsets[0])
    # Another process plans the same batch again.
    shards = OffsetShards(checkpoint)
    again, *_ = [shards.stored(each) for each in offsets]
    assert again == first
    assert OffsetShards(checkpoint).loaded(shards.stored(offsets[2])) == offsets[2]
    with pytest.raises(FarmLogError, match=r"shards/\w+ is missing or damaged: .* repair --output s3://"):
        OffsetShards(checkpoint).loaded(first)


def test_relative_cache_home_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert data_files.cache_directory() == Path.home() / ".cache/garlicfarm/tables"
    monkeypatch.setenv("HOME", "relative")
    assert data_files.cache_directory() == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache/garlicfarm/tables"


def test_refused_write_of_table_ends_with_remedy(s3: S3Server, place: BucketPath) -> None:
    table = Table(place, CLOCKS)
    for batch in range(2):
        append(table, batch)

    def merge() -> None:
        table.merge_small(date(2026, 1, 1), 1_000_000)

    for denied, write in (
        ("/part-", merge),
        ("_delta_log/", lambda: append(table, 2)),
        ("_delta_log/", lambda: Table(place, BASE_SPECS["reports"])),
    ):
        s3.denied_keys = denied
        with pytest.raises(BucketError, match=r"^s3://farm: access was refused \(.*\): set [^\x1b\n]*$"):
            write()


def test_write_with_lost_reply_counts_once(s3: S3Server, place: BucketPath) -> None:
    table, document = Table(place, CLOCKS), Document(place / "batches-log.json")
    s3.drops_reply_to = "_delta_log/00000000000000000001.json"
    assert append(table, 0)
    s3.drops_reply_to = "batches-log.json"
    document.write(b"1")
    document.write(b"2")
    assert (s3.drops_reply_to, indexes(place), Document(place / "batches-log.json").read()) == ("", [0], b"2")


class _Waits:
    """A clock that a wait advances. `during`: leases; each wait renews one of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.during = list[object]()

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.during:
            self.during.pop().renew()  # type: ignore[attr-defined]  # a lease


def test_lock_of_killed_run_ends_but_not_of_active_run(place: BucketPath) -> None:
    waits, notes = _Waits(), list[str]()
    leases_of_runs = [Lease(place / ".lock", waits.clock, waits.wait) for _ in range(3)]
    killed, active, refused = leases_of_runs
    killed.take(notes.append)
    assert (notes, waits.now) == ([], 0.0)
    active.take(notes.append)
    assert ("held by process" in notes[0], waits.now) == (True, LIFETIME_S)
    with pytest.raises(OvertakenError):
        killed.renew()
    waits.during.append(active)
    with pytest.raises(FarmLogError, match=rf"another pipeline \(process \d+ on .*\) writes into {place}: "):
        refused.take(notes.append)
    assert waits.now == LIFETIME_S + LOOK_S
    killed.release()
    assert (place / ".lock").is_file()
    active.release()
    assert not (place / ".lock").exists()


def test_lock_is_held_after_lost_reply(s3: S3Server, place: BucketPath, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(place / ".lock")
    lease.take(list[str]().append)
    for after in (lease.renew, lease.release):
        s3.drops_reply_to = ".lock"
        with monkeypatch.context() as without_retries:
            # The client repeats the write, finds the new object, and cannot read it.
            without_retries.setattr(BucketPath, "read", _fail)
            with pytest.raises(BucketError):
                lease.renew()
        after()
    assert not (place / ".lock").exists()


def _fail(path: BucketPath) -> None:
    raise BucketError(f"{path}: no reply")


def test_run_ends_during_renewal_without_reply(place: BucketPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 0.01)
    began, replied = threading.Event(), threading.Event()

    def renew(_: Lease) -> None:
        began.set()
        replied.wait(END_S)

    monkeypatch.setattr(Lease, "renew", renew)
    with leased(place / ".lock", list[str]().append):
        assert began.wait(END_S)
    assert (place / ".lock").exists()
    replied.set()


def test_lost_lock_is_reported(place: BucketPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 0.01)
    lost, lines = threading.Event(), list[str]()

    def notify(line: str) -> None:
        lines.append(line)
        lost.set()

    with leased(place / ".lock", notify):
        (place / ".lock").upload(Path(__file__))
        assert lost.wait(END_S)
    assert ("another process has taken" in lines[0], (place / ".lock").exists()) == (True, True)


def test_run_renews_its_lock_until_its_end(place: BucketPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 0.01)
    with alone_in(place):
        first = (place / ".lock").read()
        deadline = time.monotonic() + LIFETIME_S
        while (place / ".lock").read() == first and time.monotonic() < deadline:
            pass
        assert (place / ".lock").read() != first
    assert not place.exists()


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        ({"AWS_ACCESS_KEY_ID": "wrong"}, r"s3://farm: access was refused \(.*InvalidAccessKeyId.*SECRET_ACCESS_KEY"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, r"AWS_ENDPOINT_URL=http://127.0.0.1:9 does not reply"),
        ({"AWS_ENDPOINT_URL": "127.0.0.1:9"}, r"AWS_ENDPOINT_URL=127.0.0.1:9 does not reply"),
        ({"bucket": "another"}, r"s3://another: this bucket does not exist: create it"),
        ({"denied": "PUT"}, r"access was refused \(.*AccessDenied.*s3:PutObject"),
        ({"ignores": "yes"}, r"the store ignores If-None-Match, so two writers would damage the tables"),
        ({"AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": ""}, r"AWS_PROFILE is not supported"),
    ],
)
def test_unusable_store_is_refused_with_remedy(
    fault: dict[str, str], match: str, s3: S3Server, place: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fault.items():
        if name.startswith("AWS"):
            monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    s3.ignores_conditions = "ignores" in fault
    s3.denied_methods = frozenset({fault["denied"]} if "denied" in fault else ())
    with pytest.raises(BucketError, match=match) as refused:
        refuse_unconditional(BucketPath(fault.get("bucket", BUCKET), place.key))
    assert "\n" not in str(refused.value)
    assert s3.environment()["AWS_SECRET_ACCESS_KEY"] not in str(refused.value)
    if "bucket" not in fault:
        found = CliRunner().invoke(pipeline, ["doctor", "--json", "--output", str(place)])
        (checked,) = (each for each in json.loads(found.stdout)["checks"] if each["name"] == "bucket")
        assert (checked["result"], bool(checked["action"])) == ("problem", True)


@pytest.mark.parametrize(
    "command", [["query", "SHOW TABLES"], ["silence"], ["report", "--html", "report.html"], ["views"]]
)
def test_reader_without_store_ends_with_remedy(
    command: list[str], place: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    refused = CliRunner().invoke(pipeline, [*command, "--output", str(place)])
    assert (refused.exit_code, "AWS_ENDPOINT_URL=http://127.0.0.1:9 does not reply" in refused.output) == (1, True)


def test_lost_object_is_found_despite_its_copy(s3: S3Server, place: BucketPath) -> None:
    write_batch(place, "clocks", 0, [clock(0)])
    (file,) = stored_files(place / "clocks")
    assert documents(place, "SELECT index FROM clocks") == [{"index": 0}]
    del s3.objects[f"{place.key}/clocks/{file.path}"]
    assert next(examine(place).lines()) == "clocks: 1 data files are missing or damaged"
    data_files.place_on_disk(place / "clocks", file.path).unlink()
    with pytest.raises(QueryError, match=rf"{place}/.*{file.path} is missing: run .* repair --output {place}`"):
        documents(place, "SELECT index FROM clocks")


def test_failure_of_store_is_not_damage(s3: S3Server, place: BucketPath, tmp_path: Path) -> None:
    table, notes, checkpoint = Table(place, CLOCKS), BatchNotes(place, LOG), StoredCheckpoint(place / CHECKPOINT)
    for batch in range(CHECKPOINT_COMMITS):
        append(table, batch)
    notes.begin(0, {})
    notes.end(0, {})
    checkpoint.plan(0, {"farms": {}})
    checkpoint.commit(0)
    assert (is_damaged(place, CLOCKS), checkpoint_fault(place, CHECKPOINT, notes)) == (False, "")
    shutil.rmtree(tmp_path / "cache")
    for denied, read in (
        ("/part-", lambda: is_damaged(place, CLOCKS)),
        (".checkpoint.parquet", lambda: is_damaged(place, CLOCKS)),
        ("/offsets/", lambda: checkpoint_fault(place, CHECKPOINT, notes)),
        ("/offsets/", lambda: checkpoint.offset(0)),
    ):
        s3.denied_keys = denied
        with pytest.raises(BucketError, match="access was refused"):
            read()


def test_full_disk_of_copies_is_not_damage(place: BucketPath, tmp_path: Path) -> None:
    append(Table(place, CLOCKS), 0)
    shutil.rmtree(tmp_path / "cache")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            is_damaged(place, CLOCKS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (raised.value.errno, is_damaged(place, CLOCKS)) == (errno.EFBIG, False)


@pytest.mark.parametrize(
    ("limit", "remedy"),
    [
        ("CACHE_BYTES", "the limit is 0 MiB: copy these tables into a directory"),
        ("free_bytes", "only 0 MiB are free in .*: set XDG_CACHE_HOME to a larger disk"),
    ],
)
def test_large_download_for_query_is_refused(
    limit: str, remedy: str, place: BucketPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batch(place, "clocks", 0, [clock(0)])
    shutil.rmtree(tmp_path / "cache")
    with monkeypatch.context() as limited:
        limited.setattr(query, limit, 1 if limit == "CACHE_BYTES" else lambda: 1)
        with pytest.raises(QueryError, match=f"clocks: 0 MiB must be downloaded for this query, and {remedy}"):
            documents(place, "SELECT index FROM clocks WHERE false")
        assert not [*(tmp_path / "cache").rglob("*.parquet")]
    assert documents(place, "SELECT index FROM clocks") == [{"index": 0}]
    monkeypatch.setattr(query, limit, 1 if limit == "CACHE_BYTES" else lambda: 1)
    assert documents(place, "SELECT index FROM clocks") == [{"index": 0}]


@pytest.mark.parametrize("damage", ["half", "pages"])
def test_bad_copy_is_downloaded_again(damage: str, s3: S3Server, place: BucketPath) -> None:
    write_batch(place, "clocks", 0, [clock(0)])
    (file,) = stored_files(place / "clocks")
    copy = data_files.place_on_disk(place / "clocks", file.path)
    whole = copy.read_bytes()
    # Damage pages after the magic number, so that the size and the footer are intact.
    bad = whole[: len(whole) // 2] if damage == "half" else b"PAR1" + b"\xff" * 400 + whole[404:]
    copy.write_bytes(bad)
    assert (indexes(place), copy.read_bytes() == whole) == ([0], True)
    copy.write_bytes(bad)
    assert (is_damaged(place, CLOCKS), copy.read_bytes() == whole) == (False, True)
    copy.write_bytes(bad)
    assert documents(place, "SELECT index, leader_id FROM clocks") == [{"index": 0, "leader_id": None}]
    s3.objects[f"{place.key}/clocks/{file.path}"] = bad
    copy.unlink()
    with pytest.raises(TableDamagedError, match=rf"{place}/.*{file.path} is damaged"):
        indexes(place)


def test_check_does_not_download_other_tables(place: BucketPath, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas, copies = {name: BASE_SPECS[name].schema for name in ("clocks", "reports")}, list[Path]()
    monkeypatch.setattr(query, "TABLES", schemas)
    for name in schemas:
        write_batch(place, name, 0, [clock(0)])
        copies.append(data_files.place_on_disk(place / name, stored_files(place / name)[0].path))
    copies[0].write_bytes(b"half")
    copies[1].unlink()
    assert of_one_version(place, lambda sql: sql("SELECT index FROM clocks")) == [{"index": 0}]
    assert not copies[1].exists()


def test_lost_copy_of_view_is_not_damage(s3: S3Server, place: BucketPath) -> None:
    append(Table(place, CLOCKS), 0)
    files = stored_files(place / "clocks")
    copy = data_files.place_on_disk(place / "clocks", files[0].path)

    def read() -> None:
        with Sources(place) as sources, sources.connected() as connection:
            sources.view(connection, "clocks", files)
            copy.unlink()
            connection.execute("SELECT * FROM all_clocks").fetchall()

    with pytest.raises(duckdb.IOException):
        read()
    assert copy.exists()
    s3.denied_keys = files[0].path
    with pytest.raises(BucketError, match="access was refused"):
        read()


def test_unused_copies_are_removed_first(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "older", "used")):
        (tmp_path / name).write_bytes(b"0" * 100)
        used_s = (200.0, 100.0, 1000.0)[number]
        os.utime(tmp_path / name, (used_s, used_s))
    data_files.trim(tmp_path, 250, 900.0)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old", "used"]
    data_files.trim(tmp_path, 0, 900.0)
    assert [each.name for each in tmp_path.iterdir()] == ["used"]


def test_copies_removed_by_another_process_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "gone").touch()
    stat = Path.stat

    def removing(path: Path, **options: bool) -> os.stat_result:
        found = stat(path, **options)
        # Remove the file after the first request, like another process.
        if path.name == "gone":
            path.unlink()
        return found

    monkeypatch.setattr(Path, "stat", removing)
    data_files.trim(tmp_path, 0, time.time() + 1)
    data_files._note_new([tmp_path / "gone"])
    assert not [*tmp_path.iterdir()]


def test_renamed_folder_has_all_objects(place: BucketPath) -> None:
    for name in ("a", "b"):
        (place / "checkpoint" / "offsets" / name).write(name.encode(), None)
    (place / "checkpoint-events").write(b"another", None)
    (place / "checkpoint").rename(place / ".replaced-checkpoint-1")
    found = [each.key.removeprefix(f"{place.key}/") for each in place.objects()]
    assert sorted(found) == [
        ".replaced-checkpoint-1/offsets/a",
        ".replaced-checkpoint-1/offsets/b",
        "checkpoint-events",
    ]


def test_names_are_added_to_earlier_ones(s3: S3Server, place: BucketPath) -> None:
    remember_names(place, {"a": "1"})
    remember_names(place, {"b": "2", "a": "1"})
    writes = s3.requests["PUT"]
    remember_names(place, {"a": "1"})
    assert (read_names(place), s3.requests["PUT"] - writes) == ({"a": "1", "b": "2"}, 0)
    s3.objects[f"{place.key}/{NAMES_OBJECT}"] = b"{"
    with pytest.raises(OSError, match=r"names.json is damaged .*: stop the run and delete it"):
        read_names(place)


@pytest.mark.parametrize("name", ["s3://", "s3:///prefix", "s3://b u/x", "s3://bucket/../x"])
def test_place_without_bucket_is_refused(name: str) -> None:
    refused = CliRunner().invoke(pipeline, ["query", "SHOW TABLES", "--output", name])
    assert (refused.exit_code, "write s3://BUCKET/PREFIX" in refused.output) == (2, True)


def test_engine_for_bucket_is_local_unless_spark_is_chosen(place: BucketPath, tmp_path: Path) -> None:
    node = Nodes(nodes=("a",))
    assert Engine(None, None, ()).writing(place, node).name == LOCAL
    for engine in (Engine(SPARK, None, ()), Engine(None, "local[2]", ()), Engine(None, None, (("spark.a", "b"),))):
        assert (engine.writing(place, node), engine.writing(tmp_path, node)) == (engine, engine)
    with pytest.raises(click.UsageError, match="--kafka needs a local or shared directory"):
        Engine(None, None, ()).writing(place, Topic(servers="a"))
    refused = CliRunner().invoke(pipeline, ["floodfills", "--routers", str(tmp_path), "--output", str(place)])
    assert (refused.exit_code, "which needs a local or shared directory" in refused.output) == (2, True)


def test_directory_does_not_load_client_of_buckets(tmp_path: Path) -> None:
    assert (output_of(str(tmp_path)), options.OutputType().convert(str(tmp_path), None, None)) == (tmp_path, tmp_path)
