"""The scratch machine itself: what a test does to it happens to no other."""

from pathlib import Path

import pytest

from tests.packages.machine import Machine, why_not

pytestmark = pytest.mark.packages

SLOW_CHROOT = """\
#!/bin/sh
sleep 1
exec {chroot} "$@"
"""


def test_a_machine_that_is_slow_to_begin_is_not_taken_for_the_one_that_runs_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was removed and written too early was removed from, and written to, the machine that ran the test."""
    if reason := why_not():
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
