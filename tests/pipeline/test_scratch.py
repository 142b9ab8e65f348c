"""Scratch files of runs: a private directory per run, the removal of files of killed runs, and the output lock."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import lake
from pipeline.source.log_client import FarmLogError
from pipeline.spark import scratch
from pipeline.spark.failures import reason_of
from tests.processes import END_S


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a directory that other runs on this machine do not use."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def other_run(code: str, place: Path) -> "subprocess.Popen[str]":
    """Start another process that runs `code`, prints "held", and waits for its end."""
    environment = {**os.environ, "TMPDIR": str(place)}
    command = [sys.executable, "-c", f"import sys\n{code}\nprint('held', flush=True)\nsys.stdin.read()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=END_S)


def test_next_run_removes_files_of_killed_runs_only(tmp_path: Path) -> None:
    code = "from pipeline.spark.scratch import run_directory\n(run_directory() / 'artifacts').mkdir()"
    living, dying = other_run(code, tmp_path), other_run(code, tmp_path)
    try:
        runs = scratch.scratch_directory() / "runs"
        assert len([*runs.glob("*/artifacts")]) == 2
        kill(dying)
        own = scratch.run_directory.__wrapped__()
        assert own.parent == runs
        (remaining,) = runs.glob("*/artifacts")
        assert remaining.parent.name.startswith(f"{living.pid}-")
    finally:
        kill(living)


def test_directory_writable_by_other_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"garlicfarm-spark-{os.getuid()}").mkdir()
    (tmp_path / f"garlicfarm-spark-{os.getuid()}").chmod(0o777)
    with pytest.raises(scratch.ScratchError, match="remove it, or set TMPDIR"):
        scratch.scratch_directory()


def test_link_as_scratch_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / f"garlicfarm-spark-{os.getuid()}").symlink_to(tmp_path / "mine")
    with pytest.raises(scratch.ScratchError, match="only this user"):
        scratch.scratch_directory()


def test_output_lock_excludes_second_run_until_process_ends(tmp_path: Path) -> None:
    output = tmp_path / "tables"

    def refused() -> None:
        with pytest.raises(FarmLogError, match="another pipeline writes"), lake.alone_in(output):
            pass

    with lake.alone_in(output):
        refused()
    lock = f"os.open({str(output / lake.LOCK_FILE)!r}, os.O_RDWR)"
    other = other_run(f"import fcntl, os\nfcntl.flock({lock}, fcntl.LOCK_EX)", tmp_path)
    try:
        refused()
    finally:
        kill(other)
    with lake.alone_in(output):
        pass


def test_output_on_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FarmLogError, match=f"{tmp_path} cannot be locked: .*local disk"), lake.alone_in(tmp_path):
        pass


def test_output_that_is_a_file_names_another_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    for output in (tmp_path / "file", tmp_path / "file" / "tables"):
        with pytest.raises(OSError, match=str(output)) as refused, lake.alone_in(output):
            pass
        assert reason_of(refused.value).endswith(
            "a file has the name of --output, or of a directory above it: choose another --output"
        )
