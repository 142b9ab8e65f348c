"""Commands whose standard streams are full, closed, or without a reader."""

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

TIMEOUT_S = 60
FULL = "garlicfarm: standard output: No space left on device: free some space\n"


def run(command: str, redirections: str) -> subprocess.CompletedProcess[str]:
    line = f'set -o pipefail; "{sys.executable}" -m bridge.cli.main {command} {redirections}'
    return subprocess.run(
        ["/bin/bash", "-c", line], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=dict(os.environ)
    )


def test_command_with_full_output_names_it() -> None:
    ended = run("help", ">/dev/full")
    assert (ended.returncode, ended.stderr) == (1, FULL)


@pytest.mark.parametrize(
    ("command", "redirections"),
    [
        *(("--help", each) for each in (">&-", "2>&- >&- <&-", "2>/dev/full", "2>&-", "<&-", "| head -c 1", "| true")),
        ("help", "| true"),
    ],
)
def test_command_with_lost_streams_prints_no_traceback(command: str, redirections: str) -> None:
    ended = run(command, redirections)
    assert ended.returncode in {0, 1}
    assert "Traceback" not in ended.stderr + ended.stdout
    assert "Exception ignored" not in ended.stderr


def test_usage_error_with_full_error_stream_keeps_status() -> None:
    assert run("--no-such-option", "2>/dev/full").returncode == 2


def test_monitor_without_reader_prints_no_traceback(tmp_path: Path) -> None:
    """A task of the command prints a line about the unresponsive node."""
    with closing(socket.socket(socket.AF_UNIX)) as unresponsive:
        unresponsive.bind(str(tmp_path / "control.sock"))
        unresponsive.listen()
        ended = run(f"monitor --node {tmp_path} --timeout 0.1", "| true")
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize("command", ["run", "doctor", "backup b --from s", "up --for 0", "pipeline query 'SELECT 1'"])
def test_removed_working_directory_is_named(tmp_path: Path, command: str) -> None:
    gone = tmp_path / "gone"
    line = f'cd {gone} && rmdir {gone} && "{sys.executable}" -m bridge.cli.main {command}'
    gone.mkdir()
    package = str(Path(__file__).parents[2])
    ended = subprocess.run(
        ["/bin/bash", "-c", line],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": package},
    )
    assert ended.returncode == 1
    assert ended.stderr == "garlicfarm: the working directory was removed: change to another directory\n"


def test_missing_argument_lists_choices_in_one_line() -> None:
    assert run("completion", "").stderr.endswith(" Choose from: bash, zsh, fish\n")
