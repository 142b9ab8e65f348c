"""`garlicfarm up`: it creates and starts a farm with one command, and always ends all of its processes."""

import os
import signal
import time
from pathlib import Path

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from bridge.cli.main import cli, stopped_by_hang_up
from bridge.cli.up import _cancel_on_signal
from bridge.node.local.farm_files import prepare
from bridge.node.security.key_files import load_master_key
from bridge.wire.i2p.key_file import destination_of_sam_key
from tests.effort import each_case
from tests.end_to_end.farm import START_BOUND_S, call
from tests.end_to_end.layout import read_meta_lease_set
from tests.end_to_end.up_process import all_ended, running_up


@pytest.mark.parametrize("servers", [3, pytest.param(5, marks=pytest.mark.soak)])
def test_up_exits_zero_after_complete_publication(tmp_path: Path, servers: int) -> None:
    directory = tmp_path / "farm"
    ended = call(
        *("up", "--nodes", str(servers), "--state-dir", directory, "--exit-when-published", "--timeout", "60"),
        timeout_s=90,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

    path = Path(ended.stdout.splitlines()[-1])
    structure = read_meta_lease_set(path)
    assert structure.destination == load_master_key(directory / "master.key").destination.encoded
    leaves = {
        destination_of_sam_key((directory / f"node-{number}" / "leaf.key").read_text().strip()).hash
        for number in range(1, servers + 1)
    }
    assert set(structure.entries) == leaves
    assert len(structure.entries) == servers
    assert abs(structure.published_s - time.time()) < 120

    shown = call("lease-set", "show", path)
    assert shown.returncode == 0, shown.stderr
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    assert call("lease-set", "show", path).returncode == 1


def test_up_reports_state_of_farm_at_timeout(tmp_path: Path) -> None:
    ended = call(*("up", "--nodes", "2", "--state-dir", tmp_path / "farm", "--exit-when-published", "--timeout", "0.5"))
    assert ended.returncode == 1
    assert "nothing was published within 0.5 s" in ended.stderr
    assert "node-1: does not answer" in ended.stderr


def test_up_stops_after_duration_and_resumes_same_farm(tmp_path: Path) -> None:
    directory = tmp_path / "farm"
    first = call("up", "--nodes", "2", "--state-dir", directory, "--for", "0")
    assert first.returncode == 0, first.stderr
    assert "A new farm of 2 nodes" in first.stdout
    with running_up(directory, "--nodes", "2", "--for", "3") as up:
        up.wait_for("process-started", 2)
        children = up.children()
        assert up.process.wait(START_BOUND_S) == 0, up.output
        assert all_ended(children, START_BOUND_S)
        assert "Continuing the farm of 2 nodes" in up.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_up_is_canceled_by_each_signal(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stopped_by_hang_up(), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, scope)
            await trio.testing.wait_all_tasks_blocked()
            assert signal.getsignal(number) is not before, "the signal would end this process"
            signal.raise_signal(number)
    assert scope.cancelled_caught


async def test_up_under_nohup_ignores_end_of_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_hang_up(), trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on_signal, scope)
                await trio.testing.wait_all_tasks_blocked()
                assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
                nursery.cancel_scope.cancel()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_second_hang_up_does_not_shorten_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell and the kernel may each send SIGHUP at the end of a terminal."""
    raised: list[int] = []
    with stopped_by_hang_up():
        raise_signal = signal.raise_signal
        monkeypatch.setattr(signal, "raise_signal", raised.append)
        for _ in range(2):
            raise_signal(signal.SIGHUP)
    assert raised == [signal.SIGTERM]


def test_second_up_is_refused_and_first_reports_killed_processes(tmp_path: Path) -> None:
    with running_up(tmp_path / "farm", "--nodes", "2") as up:
        up.wait_for("process-started", 2)
        second = call("up", "--nodes", "2", "--state-dir", tmp_path / "farm", "--for", "1")
        assert second.returncode == 1
        assert "another `garlicfarm up` runs on" in second.stderr
        assert "--state-dir" in second.stderr
        up.wait_for("published")
        assert up.process.poll() is None
        one, other = up.children()
        one.kill()
        up.wait_for("ended by SIGKILL")
        assert up.process.poll() is None
        other.kill()
        assert up.process.wait(START_BOUND_S) == 1
        assert "every process of the farm has ended" in up.output


def test_directory_with_farm_of_another_size_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path, 3)
    key = (tmp_path / "farm.key").read_bytes()
    ended = call("up", "--nodes", "5", "--state-dir", tmp_path, "--for", "1")
    assert ended.returncode == 1
    assert "holds a farm of 3 nodes, not of 5: start it with --nodes 3" in ended.stderr
    assert (tmp_path / "farm.key").read_bytes() == key
    assert not (tmp_path / "node-5").exists()


@each_case(
    "options",
    [("--nodes", "0"), ("--nodes", "many"), ("--for", "-1"), ("--timeout", "0"), ("--no-such-option",), ("extra",)],
)
def test_up_usage_error_exits_two(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(cli, ["up", "--state-dir", str(tmp_path / "farm"), *options])
    assert ended.exit_code == 2
    assert "Usage: " in ended.stderr
    assert not (tmp_path / "farm").exists()


def clusters_in(output: str) -> set[str]:
    return {line.partition("cluster=")[2].split()[0] for line in output.splitlines() if "cluster=" in line}


@pytest.mark.parametrize(
    "signal_number",
    [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.soak) for each in (signal.SIGTERM, signal.SIGHUP))],
)
def test_killed_up_is_resumed_and_ends_after_signal(tmp_path: Path, signal_number: signal.Signals) -> None:
    directory = tmp_path / "farm"
    with running_up(directory, "--nodes", "2") as up:
        up.wait_for("publication-accepted")
        clusters = clusters_in(up.output)
        children = up.children()
        assert len(children) == 2
        children[0].kill()
        up.process.kill()
        assert all_ended(children, START_BOUND_S), "a process still runs"
    with running_up(directory, "--nodes", "2") as up:
        up.wait_for(", start number 2", 2)
        if signal_number is signal.SIGINT:
            up.wait_for("leader-elected")
            assert clusters_in(up.output) == clusters
        children = up.children()
        assert len(children) == 2
        os.kill(up.process.pid, signal_number)
        assert up.process.wait(START_BOUND_S) == 0, up.output
        assert all_ended(children, START_BOUND_S), "a process still runs"
        assert "SIGKILL" not in up.output
        assert "Traceback" not in up.output
