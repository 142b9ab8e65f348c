"""The scratch machine: actions of a test on it do not affect any other machine."""

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.packages import machine as machines
from tests.packages.machine import Machine, reason_to_skip

pytestmark = pytest.mark.packages

SLOW_CHROOT = """\
#!/bin/sh
sleep 1
exec {chroot} "$@"
"""


def test_slow_start_does_not_expose_root_of_test_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wait, early writes and deletions affected the machine that ran the test."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    programs, scratch = tmp_path / "bin", tmp_path / "scratch"
    programs.mkdir()
    scratch.mkdir()
    (programs / "chroot").write_text(SLOW_CHROOT.format(chroot="/usr/sbin/chroot"))
    (programs / "chroot").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin")
    with Machine(scratch, name="slow") as machine:
        mark = machine.root / "etc" / tmp_path.name
        mark.touch()
        assert not (Path("/etc") / tmp_path.name).exists()
        assert (machine.root / "etc/hostname").read_text() == "slow\n"


def test_command_after_time_limit_is_killed_on_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Machine(tmp_path) as machine:
        with monkeypatch.context() as short, suppress(subprocess.TimeoutExpired):
            short.setattr(machines, "COMMAND_BOUND_S", 1)
            short.setattr(machines, "START_BOUND_S", 4.0)
            assert machine.run("sleep", "7777", check=False).returncode != 0
        assert "7777" not in machine.run("ps", "-eo", "args").stdout
