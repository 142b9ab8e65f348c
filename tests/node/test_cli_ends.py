"""The ends of `run`, `up` and `withdraw`: the last line is the reason, and the exit code shows the outcome."""

import json
import os
from collections.abc import Awaitable, Callable
from errno import ENOSPC
from pathlib import Path

import click
import pytest
import trio
from click.testing import CliRunner, Result

from bridge.cli import main as main_module
from bridge.cli import run as run_command
from bridge.cli import up as up_command
from bridge.cli.failure import failure_lines, failures
from bridge.cli.main import cli
from bridge.node.events.alarms import NodeStopped
from bridge.node.local.supervisor import Child, Command
from bridge.node.security.key_files import save_farm_key
from bridge.wire.keys.farm_key import new_farm_key
from bridge.wire.log.snapshot import FarmSnapshotError
from consensus.storage.disk import StorageError
from tests.node.test_cli_commands import Node, served


@pytest.fixture
def end_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], Result]:
    """Return a function that runs a node, ends it with an error and returns the result."""
    save_farm_key(tmp_path / "farm.key", new_farm_key(1))
    (tmp_path / "node.toml").write_text('[gossip]\nbind = "127.0.0.1:7668"\n')

    def call(error: BaseException) -> Result:
        async def run_node(
            _configuration: object, *, stop_with_stdin: bool, ends_within: Callable[[float | None], None]
        ) -> None:
            assert not stop_with_stdin
            ends_within(None)
            async with trio.open_nursery():
                raise error

        monkeypatch.setattr(run_command, "run_node", run_node)
        places = {"config": "node.toml", "farm-key": "farm.key", "state-dir": "state"}
        arguments = [text for option, name in places.items() for text in (f"--{option}", str(tmp_path / name))]
        return CliRunner().invoke(cli, ["run", *arguments])

    return call


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (
            "the log cannot be read ([Errno 13] Permission denied: '/a b/log'): look",
            "(/a b/log: Permission denied): look",
        ),
        ("[Errno 28] No space left on device", "garlicfarm: No space left on device"),
    ],
)
def test_failure_shows_system_error_without_number(reason: str, shown: str) -> None:
    assert failure_lines(reason)[0].endswith(shown)


@pytest.mark.parametrize("words", [[], ["keys"]], ids=["program", "group"])
def test_group_without_command_prints_help_in_lines(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["garlicfarm", *words])
    with pytest.raises(SystemExit, match="2"):
        main_module.main()
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == f"Usage: {' '.join(['garlicfarm', *words])} [OPTIONS] COMMAND [ARGS]..."
    assert "Options:" in shown


@pytest.mark.parametrize(
    "error", [NodeStopped("another instance runs"), StorageError("the storage is damaged at 7"), OSError("x")]
)
def test_failed_node_prints_reason_in_last_line(end_node: Callable[[BaseException], Result], error: Exception) -> None:
    result = end_node(error)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"garlicfarm: {error}"
    assert "Traceback" not in result.stderr


def test_reasons_of_several_tasks_are_listed_once_each(end_node: Callable[[BaseException], Result]) -> None:
    group = ExceptionGroup("", [NodeStopped("one"), ExceptionGroup("", [StorageError("two"), NodeStopped("one")])])
    assert end_node(group).stderr.splitlines()[-1] == "garlicfarm: one; two"


def test_unreadable_snapshot_is_named_with_remedy(end_node: Callable[[BaseException], Result], tmp_path: Path) -> None:
    result = end_node(FarmSnapshotError("the farm's snapshot has format 9; this version reads formats 1 to 3"))
    assert result.exit_code == 1
    assert result.stderr == (
        f"garlicfarm: {tmp_path}/state: the farm's snapshot has format 9; this version reads formats 1 to 3. Start the"
        " version of garlicfarm that wrote it, or move the directory away and let the node join again as a new server\n"
    )


def test_internal_fault_is_named_in_last_line(
    end_node: Callable[[BaseException], Result], caplog: pytest.LogCaptureFixture
) -> None:
    result = end_node(RuntimeError("entry 5 is committed, but storage does not have it"))
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("garlicfarm: a fault of the program ended this node")
    assert last.endswith("entry 5 is committed, but storage does not have it")
    assert any(record.exc_info for record in caplog.records)


def test_ctrl_c_before_signal_handling_is_not_a_fault(end_node: Callable[[BaseException], Result]) -> None:
    result = end_node(KeyboardInterrupt())
    assert (result.exit_code, result.stderr) == (130, "")


def up(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["up", "--nodes", "1", "--state-dir", str(directory), *arguments])


def test_failed_task_of_command_prints_reason(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail_in_task() -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    async def command() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_in_task)
            nursery.start_soon(fail_in_task)

    with pytest.raises(SystemExit), failures(OSError):
        trio.run(command)
    assert capsys.readouterr().err == "garlicfarm: No space left on device\n"


def test_up_names_program_on_path_by_its_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given the program of an environment, and the link that pipx makes
    environment, links = tmp_path / "environment", tmp_path / "links"
    for each in (environment, links):
        each.mkdir()
    program = environment / "garlicfarm"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(environment / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(links))
    assert up_command._program() == "environment/garlicfarm"
    (links / "garlicfarm").symlink_to(program)
    assert up_command._program() == "garlicfarm"


def test_up_stopped_before_publication_exits_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop(_commands: object, _use: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(up_command, "run_children", stop)
    result = up(tmp_path / "farm", "--exit-when-published")
    assert (result.exit_code, result.stderr) == (1, "garlicfarm: stopped before anything was published\n")
    assert up(tmp_path / "farm").exit_code == 0


def test_up_with_ended_processes_does_not_wait_for_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_ended_child(_commands: object, use: Callable[[tuple[Child, ...]], Awaitable[None]]) -> None:
        process = await trio.lowlevel.open_process(["true"])
        child = Child(Command("node-1", (), tmp_path / "node.log"), process, f"exit code {await process.wait()}")
        child.exited.set()
        await use((child,))

    monkeypatch.setattr(up_command, "run_children", run_ended_child)
    result = up(tmp_path / "farm", "--exit-when-published", "--timeout", "3600")
    assert result.exit_code == 1
    assert "every process of the farm has ended before anything was published: node-1: exit code 0" in result.stderr


@pytest.mark.parametrize(
    ("program", "code", "text"),
    [
        ("true", 0, "1 node stopped cleanly after 0 s. To continue the farm:  "),
        ("false", 1, "garlicfarm: every process of the farm has ended after 0 s: node-1: exit code 1\n"),
    ],
)
def test_up_ends_with_last_process_showing_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: int, text: str
) -> None:
    async def run_ended_child(_commands: object, use: Callable[[tuple[Child, ...]], Awaitable[None]]) -> None:
        process = await trio.lowlevel.open_process([program])
        child = Child(Command("node-1", (), tmp_path / "node.log"), process, f"exit code {await process.wait()}")
        child.exited.set()
        await use((child,))

    monkeypatch.setattr(up_command, "run_children", run_ended_child)
    result = up(tmp_path / "farm")
    assert result.exit_code == code
    assert text in (result.stderr if code else result.stdout)


def test_up_without_processes_reports_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail_to_start(_commands: object, _use: object) -> None:
        async with trio.open_nursery():
            raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(up_command, "run_children", fail_to_start)
    result = up(tmp_path / "farm")
    assert result.exit_code == 1
    assert result.stderr == "garlicfarm: Resource temporarily unavailable\n"


class Founder(Node):
    """A node whose promise can be withdrawn."""

    async def withdraw(self) -> str | None:
        return None


def withdraw(directory: Path, node: Node, *arguments: str) -> Result:
    with served(directory / "control.sock", node):
        return CliRunner().invoke(cli, ["withdraw", "--node", str(directory), *arguments])


def test_withdrawal_is_confirmed_with_name_of_node(tmp_path: Path) -> None:
    result = withdraw(tmp_path, Founder(), "--yes")
    assert (result.exit_code, result.stdout) == (
        0,
        "node-1 has withdrawn its promise and searches for founders again.\n",
    )
    result = withdraw(tmp_path, Founder(), "--yes", "--json")
    assert json.loads(result.stdout) == {"schema": 1, "withdrawn": True, "node": "node-1"}


@pytest.mark.parametrize("arguments", [("--yes",), ()], ids=["confirmed", "prompt"])
def test_refused_withdrawal_exits_with_reason(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Without --yes the command does not prompt: its only line is the reason."""
    result = withdraw(tmp_path, Node(), *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "garlicfarm: the node refused: this node has not made a promise yet.\n"


def confirm_cluster(directory: Path, *arguments: str) -> Result:
    with served(directory / "control.sock", Node()):
        return CliRunner().invoke(cli, ["confirm-cluster", *arguments, "--node", str(directory)])


def test_confirmed_cluster_is_reported_with_name_of_node(tmp_path: Path) -> None:
    result = confirm_cluster(tmp_path, "00" * 16)
    assert (result.exit_code, result.stdout) == (0, f"node-1 joins cluster {'00' * 16}, and no other.\n")
    result = confirm_cluster(tmp_path, "00" * 16, "--json")
    assert json.loads(result.stdout) == {"schema": 1, "confirmed": "00" * 16, "node": "node-1"}


@pytest.mark.parametrize(
    ("cluster_id", "message"), [("11" * 16, "no member reports cluster"), ("xyz", "has 32 hexadecimal digits")]
)
def test_unconfirmed_cluster_is_refused_with_reason(tmp_path: Path, cluster_id: str, message: str) -> None:
    result = confirm_cluster(tmp_path, cluster_id)
    assert result.exit_code == 1
    assert message in result.stderr


def test_pipeline_refusal_has_prefix_of_all_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_given: object, **_options: object) -> None:
        raise click.ClickException("no such table\nLINE 1: x")

    monkeypatch.setattr(main_module, "cli", refused)
    monkeypatch.setattr(main_module, "guard_streams", lambda: None)
    monkeypatch.setattr(main_module, "guard_output", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "garlicfarm: no such table\n  LINE 1: x\n"


def test_up_prints_reason_of_failed_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_failed_child(_commands: object, use: Callable[[tuple[Child, ...]], Awaitable[None]]) -> None:
        log = tmp_path / "farm" / "node-1" / "node.log"
        log.write_text("node-started\ngarlicfarm: a node already runs\n")
        process = await trio.lowlevel.open_process(["false"])
        child = Child(Command("node-1", (), log), process, f"exit code {await process.wait()}")
        child.exited.set()
        await use((child,))

    monkeypatch.setattr(up_command, "run_children", run_failed_child)
    assert "exit code 1 (garlicfarm: a node already runs)\n" in up(tmp_path / "farm").stdout
