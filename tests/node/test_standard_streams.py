"""Commands whose standard streams are full, closed, or without a reader."""

import os
import subprocess
import sys

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
