"""Tables in HDFS: the tests of `tests/pipeline/test_bucket.py` without planted faults, on a name node and a data node.

`make interop-hdfs` copies Hadoop's jars and runs them. The tests are imported: the fixture `place` here gives them a
directory of HDFS.
"""

import json
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from pipeline.output.buckets import HDFS, BucketError, BucketPath, OvertakenError, output_of, refuse_unconditional
from tests.pipeline.test_bucket import (
    test_batch_is_written_once_by_two_runs,
    test_lock_of_killed_run_ends_but_not_of_active_run,
    test_renamed_folder_has_all_objects,
    test_run_renews_its_lock_until_its_end,
    test_second_writer_of_document_and_checkpoint_is_refused,
    test_second_writer_of_table_is_refused,
    test_tables_in_bucket_equal_tables_in_directory,
    test_tables_of_spark_in_bucket_equal_local_tables,
)
from tests.processes import END_S, child

__all__ = [
    "test_batch_is_written_once_by_two_runs",
    "test_lock_of_killed_run_ends_but_not_of_active_run",
    "test_renamed_folder_has_all_objects",
    "test_run_renews_its_lock_until_its_end",
    "test_second_writer_of_document_and_checkpoint_is_refused",
    "test_second_writer_of_table_is_refused",
    "test_tables_in_bucket_equal_tables_in_directory",
    "test_tables_of_spark_in_bucket_equal_local_tables",
]
JARS = Path("build/interop-hdfs/jars")
START_S = 5 * END_S
WRITERS, WRITES = 4, 10
pytestmark = pytest.mark.interop
_numbers = count()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the host and the port of a name node."""
    if not JARS.is_dir():
        pytest.skip("Hadoop's jars are missing: make interop-hdfs")
    data = tmp_path_factory.mktemp("hdfs")
    details, deadline = data / "details.json", time.monotonic() + START_S
    starter = ("org.apache.hadoop.test.MiniDFSClusterManager", "-datanodes", "1", "-format")
    java = ("java", "-Xmx400m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS.resolve()}/*")
    with (
        (data / "hadoop.txt").open("w") as log,
        child([*java, *starter, "-writeDetails", str(details)], cwd=data, stdout=log, stderr=log) as process,
    ):
        while not details.exists() or not details.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"HDFS did not start: {(data / 'hadoop.txt').read_text()[-3000:]}")
            threading.Event().wait(0.1)
        yield f"127.0.0.1:{json.loads(details.read_text())['namenode_port']}"


@pytest.fixture
def place(authority: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BucketPath:
    """Return a new directory, which the name node accepts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = output_of(f"{HDFS}{authority}/tests/{next(_numbers)}")
    assert isinstance(found, BucketPath)
    deadline = time.monotonic() + START_S
    while True:
        try:
            refuse_unconditional(found)
        except BucketError:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.1)
        else:
            return found


def test_replacements_by_several_writers_are_in_sequence(place: BucketPath) -> None:
    file, done, errors = place / "document.json", list[int](), list[Exception]()
    file.write(b"0", None)

    def add_some(writer: int) -> None:
        for _ in range(WRITES):
            while True:
                content, tag = file.read() or (b"", "")
                number = int(content.split()[0]) + 1
                try:
                    file.write(f"{number} by {writer}".encode(), tag)
                except OvertakenError:
                    continue
                done.append(number)
                break

    def report(writer: int) -> None:
        try:
            add_some(writer)
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            errors.append(error)

    writers = [threading.Thread(target=report, args=(each,), daemon=True) for each in range(WRITERS)]
    for each in writers:
        each.start()
    deadline = time.monotonic() + START_S
    for each in writers:
        each.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise ExceptionGroup("writers failed", errors)
    assert [each.name for each in writers if each.is_alive()] == []
    assert sorted(done) == [*range(1, WRITERS * WRITES + 1)]
    assert [each.name for each in place.objects()] == ["document.json"]


def test_writer_with_old_version_is_refused(place: BucketPath) -> None:
    file = place / "document.json"
    tags = [file.write(b"1", None)]
    for content in (b"2", b"3"):
        tags.append(file.write(content, tags[-1]))
    for tag in (None, *tags[:-1], "other"):
        with pytest.raises(OvertakenError):
            file.write(b"x", tag)
    assert file.read() == (b"3", tags[-1])
    file.unlink()
    with pytest.raises(OvertakenError):
        file.write(b"x", tags[-1])
    assert (file.read(), file.exists()) == (None, False)
    again = file.write(b"1", None)
    for tag in tags:
        with pytest.raises(OvertakenError):
            file.write(b"x", tag)
    assert file.read() == (b"1", again)


def test_absent_name_node_is_reported_with_remedy() -> None:
    with pytest.raises(
        BucketError, match=r"^hdfs://127\.0\.0\.1:9: the name node does not reply \(.*\): start the store"
    ):
        refuse_unconditional(BucketPath("127.0.0.1:9", "tests", HDFS))
