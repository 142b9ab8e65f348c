"""`garlicfarm debug`: the command's files and failures; the node's profiles, stacks, settings and versions."""

import errno
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from bridge.api.control import Refused
from bridge.api.control_routes import DEBUG
from bridge.cli.events import debug as debug_command
from bridge.cli.main import cli
from bridge.node.control import debugging
from bridge.node.control.routes import Call, Request
from tests.node.test_cli_commands import Node, served
from tests.node.test_configuration import load

LIMIT = 12_000


@pytest.fixture
def garlicfarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "state"
    place.mkdir(mode=0o700)
    with served(place / "control.sock", Node()):
        yield lambda *arguments: CliRunner().invoke(cli, ["debug", "--seconds", "0", "--node", "state", *arguments])


def contents(path: Path) -> dict[str, bytes]:
    """Return the files of a bundle by name, without the enclosing directory."""
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read()
    return found


def test_bundle_has_node_data_with_summary_of_missing_nodes(tmp_path: Path, garlicfarm: Callable[..., Result]) -> None:
    dead = tmp_path / "dead"
    dead.mkdir(mode=0o700)
    result = garlicfarm("--node", "dead/control.sock", "--output", "found.tar.gz")
    assert result.exit_code == 0, result.output
    found = contents(tmp_path / "found.tar.gz")
    assert {"summary.json", "node-1/view.json", "node-1/metrics.txt", "node-1/events.jsonl"} <= found.keys()
    assert (tmp_path / "found.tar.gz").stat().st_mode & 0o777 == 0o600
    summary = json.loads(found["summary.json"])
    assert [each["name"] for each in summary["answered"]] == ["node-1"]
    reasons = {each["address"] or each["name"]: each["reason"] for each in summary["silent"]}
    assert "no node runs at dead/control.sock" in reasons["dead/control.sock"]
    # Members in the node's view whose address was not given.
    assert reasons["node-5"] == "it is dead"
    assert reasons["node-2"] == "it is alive, and was not queried: give its address with --node as well"
    assert "dead/control.sock: no node runs at" in result.stdout


def test_bundle_without_output_option_has_time_in_its_name(tmp_path: Path, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("--json")
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("garlicfarm-debug-*.tar.gz")
    assert json.loads(result.stdout)["bytes"] == path.stat().st_size


def test_undecodable_file_name_is_escaped_in_json(tmp_path: Path, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("--json", "--output", "\udcff.tar.gz")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["file"] == r"\udcff.tar.gz"
    assert json.loads(contents(tmp_path / "\udcff.tar.gz")["summary.json"])["file"] == r"\udcff.tar.gz"


def test_existing_file_is_kept(tmp_path: Path, garlicfarm: Callable[..., Result]) -> None:
    (tmp_path / "found.tar.gz").write_text("mine")
    result = garlicfarm("--output", "found.tar.gz")
    assert (result.exit_code, result.stderr) == (
        1,
        "garlicfarm: found.tar.gz: File exists: name another place, or remove it\n",
    )
    assert (tmp_path / "found.tar.gz").read_text() == "mine"


def test_missing_directory_is_reported_in_one_line(tmp_path: Path, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("--output", "nowhere/found.tar.gz")
    assert result.exit_code == 1
    assert result.stderr == (
        f"garlicfarm: nowhere/found.tar.gz: No such file or directory; the directory {tmp_path / 'nowhere'} does not"
        " exist: name another place, or make the directory\n"
    )


def test_partial_file_is_removed_on_full_disk(
    tmp_path: Path, garlicfarm: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    result = garlicfarm("--output", "found.tar.gz")
    assert result.exit_code == 1
    assert result.stderr == "garlicfarm: found.tar.gz: No space left on device; no file was left there\n"
    assert not (tmp_path / "found.tar.gz").exists()


def test_unanswered_debug_reports_reasons_without_file(tmp_path: Path) -> None:
    output = tmp_path / "found.tar.gz"
    result = CliRunner().invoke(cli, ["debug", "--node", str(tmp_path / "x.sock"), "--output", str(output)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"garlicfarm: no node answers, and no file was left: no node runs at {tmp_path}")
    assert not output.exists()


def test_oversized_parts_are_omitted_with_a_note(
    tmp_path: Path, garlicfarm: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug_command, "BUNDLE_MOST_BYTES", LIMIT)
    assert garlicfarm("--output", "found.tar.gz").exit_code == 0
    found = contents(tmp_path / "found.tar.gz")
    summary = json.loads(found.pop("summary.json"))
    assert sum(map(len, found.values())) <= LIMIT
    assert any("would be larger" in each for each in summary["answered"][0]["missing"])


# -- the node's side ---------------------------------------------------------------------------------------------------


async def test_profile_shows_function_that_used_processor() -> None:
    def the_busy_one() -> None:
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass

    async def work() -> None:
        while True:
            the_busy_one()
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        profile = await debugging.processor_profile(0.3)
        nursery.cancel_scope.cancel()
    assert profile.stacks
    assert profile.processor_s > 0
    busy = sum(each.samples for each in profile.stacks if any("the_busy_one" in frame for frame in each.frames))
    assert busy > sum(each.samples for each in profile.stacks) / 2


def test_debug_of_zero_seconds_works_without_profile(tmp_path: Path) -> None:
    debug = debugging.Debugging(load(tmp_path, 'farm_key = "/farm.key"')).handlers[DEBUG]

    async def query(seconds: int) -> Any:
        return await debug(Call(Request("POST", "/v1/debug"), None, {"seconds": seconds}))

    async def query_during_profile() -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(query, 60)
            await trio.testing.wait_all_tasks_blocked()
            answer = await query(0)
            with pytest.raises(Refused, match="another profile runs"):
                await query(1)
            nursery.cancel_scope.cancel()
        return answer

    with ThreadPoolExecutor(1) as other_thread:
        outside_main_thread = other_thread.submit(trio.run, query, 0).result(60)
        with pytest.raises(Refused, match="main thread"):
            other_thread.submit(trio.run, query, 1).result(60)
    for answer in (outside_main_thread, trio.run(query_during_profile)):
        assert (answer.profile.stacks, answer.profile.seconds) == ((), 0)
        assert answer.threads
        assert answer.tasks
        assert answer.memory.types


def test_pending_signal_at_end_of_profile_is_harmless() -> None:
    program = """
import os, signal
from bridge.node.control.debugging import _sampling
with _sampling(lambda number, frame: None):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
    os.kill(os.getpid(), signal.SIGPROF)
assert signal.getsignal(signal.SIGPROF) is signal.SIG_DFL
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


async def test_stacks_show_waiting_functions_without_directories() -> None:
    async def the_waiting_one() -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(the_waiting_one)
        await trio.testing.wait_all_tasks_blocked()
        tasks = debugging.task_stacks()
        nursery.cancel_scope.cancel()
    (found,) = [each for each in tasks if "the_waiting_one" in each.name]
    assert "the_waiting_one" in found.frames[0]
    assert found.depth > 0
    places = [frame for each in (*tasks, *debugging.thread_stacks()) for frame in each.frames]
    assert not any(str(Path.cwd()) in place or place.startswith("/") for place in places)


def test_debug_settings_omit_user_names() -> None:
    settings = {"proxy": {"user": "me", "password_file": "/p"}, "router": {"i2cp_username": "you"}, "name": "n"}
    assert debugging.without_users(settings) == {
        "proxy": {"user": debugging.REMOVED, "password_file": "/p"},
        "router": {"i2cp_username": debugging.REMOVED},
        "name": "n",
    }


def test_versions_include_project_python_system_and_libraries() -> None:
    assert {"garlicfarm", "python", "system", "trio", "msgspec", "cryptography"} <= debugging.versions().keys()
