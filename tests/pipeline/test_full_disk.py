"""A full disk: the batch fails with the remedy, and its repetition completes every table."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.spark.failures import reason_of
from pipeline.tables.files import DataFile, _Part
from tests.pipeline.full_disk import FREE_PAGES, rows_in, write


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the tables of an undisturbed run after its first batch and after its second batch."""
    made = tmp_path_factory.mktemp("undisturbed")
    write(made / "first", 0)
    both = shutil.copytree(made / "first", made / "both")
    write(both, 1)
    return made / "first", both


@pytest.mark.parametrize("whole", [0, 3])
def test_batch_with_partial_file_is_completed_later(
    whole: int, undisturbed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk or a killed process leaves a partial file. `whole`: the number of complete files before it."""
    first, both = undisturbed
    full = shutil.copytree(first, tmp_path / "full")
    complete, closed = _Part.close, list[Path]()

    def close(part: _Part) -> DataFile:
        found = complete(part)
        closed.append(part.file)
        if len(closed) > whole:
            os.truncate(part.file, found.size_bytes // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(_Part, "close", close)
        with pytest.raises(OSError, match="No space left") as failure:
            write(full, 1)
    assert "free some space for --output" in reason_of(failure.value)
    assert closed[-1].is_file()
    write(full, 1)
    assert rows_in(full) == rows_in(both)


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts a small file system: needs root")
def test_batch_on_full_disk_is_completed_later(tmp_path: Path) -> None:
    command = ["unshare", "--mount", sys.executable, "-m", "tests.pipeline.full_disk", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    failures = json.loads(done.stdout)
    assert len(failures) == len(FREE_PAGES)
    for failure in failures:
        assert "No space left on device" in failure
        assert "free some space for --output" in failure
        assert "\x1b" not in failure
