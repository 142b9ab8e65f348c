"""Tables in a bucket of MinIO: the tests of `tests/pipeline/test_bucket.py` without planted faults.

`make interop-s3` builds MinIO and runs them. The tests are imported: the fixture `place` here gives them a prefix of
MinIO's bucket.
"""

import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from pipeline.output.buckets import BucketError, BucketPath, refuse_unconditional
from tests.pipeline.s3_server import BUCKET, KEY, SECRET
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
from tests.processes import END_S, child, free_ports

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
PROGRAM = Path("build/interop-s3/minio")
pytestmark = pytest.mark.interop
_numbers = count()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a server with one bucket."""
    if not PROGRAM.exists():
        pytest.skip("MinIO is missing: make interop-s3")
    data = tmp_path_factory.mktemp("minio")
    (data / BUCKET).mkdir()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [str(PROGRAM), "server", "--quiet", "--address", address, str(data)]
    with child(command, stdout=None, env={"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "HOME": str(data)}):
        yield f"http://{address}"


@pytest.fixture
def place(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BucketPath:
    """Return a new prefix, when the server replies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
    for name, value in zip(names, (endpoint, KEY, SECRET, "us-east-1"), strict=True):
        monkeypatch.setenv(name, value)
    found, deadline = BucketPath(BUCKET, f"tests/{next(_numbers)}"), time.monotonic() + END_S
    while True:
        try:
            refuse_unconditional(found)
        except BucketError:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.1)
        else:
            return found
