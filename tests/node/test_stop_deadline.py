"""A stopping process ends in time even if a part of it hangs. Without a stop, the deadline does not have an effect."""

import re
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import ModuleType

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from bridge.cli.kraft import serve as kraft_serve
from bridge.cli.main import cli
from bridge.cli.serving import server_command, stop_deadline
from bridge.cli.serving.stop_deadline import StopDeadline
from bridge.cli.zmq_raft import serve as zmq_serve
from bridge.node.app import CLOSE_SECONDS, END_SECONDS
from consensus.server.server import CLEAN_STOP_SECONDS
from consensus.storage.disk import STOP_SECONDS
from tests.node.kraft_processes import Files


class Process:
    """The effects of a deadline on its process."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.code: int | None = None
        self.ended = threading.Event()

    def end(self, code: int) -> None:
        self.code = code
        self.ended.set()


@pytest.fixture
def process() -> Process:
    return Process()


def test_process_is_ended_with_reason(process: Process) -> None:
    StopDeadline(process.messages.append, process.end).within(0.01)
    assert process.ended.wait(60)
    assert process.code == 1
    assert "did not end within" in process.messages[0]


def test_earliest_deadline_counts(process: Process) -> None:
    deadline = StopDeadline(process.messages.append, process.end)
    deadline.within(1_000)
    deadline.within(0.01)
    deadline.within(1_000)
    assert process.ended.wait(60)


def test_withdrawn_deadline_does_not_end_process(process: Process) -> None:
    deadline = StopDeadline(process.messages.append, process.end)
    deadline.within(0.2)
    deadline.within(None)
    assert not process.ended.wait(0.4)


async def test_canceled_task_sets_deadline(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_deadline, "CLOSE_SECONDS", 0.01)
    deadline = StopDeadline(process.messages.append, process.end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadline.within_when_canceled)
        await trio.testing.wait_all_tasks_blocked()
        assert not process.ended.is_set()
        nursery.cancel_scope.cancel()
    assert process.ended.wait(60)


def test_deadline_exceeds_both_waits_for_disk() -> None:
    """A server waits for its write, then for its clean-stop mark, and then for an unfinished write of the mark."""
    assert stop_deadline.CLOSE_SECONDS == CLOSE_SECONDS > 2 * STOP_SECONDS + CLEAN_STOP_SECONDS


def test_service_manager_timeout_exceeds_stop_time_of_node() -> None:
    unit = (Path(__file__).parents[2] / "deploy" / "debian" / "garlicfarm.service").read_text()
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(seconds) > END_SECONDS + CLOSE_SECONDS


@pytest.mark.parametrize("module", [zmq_serve, kraft_serve], ids=["zmq-raft", "kraft"])
def test_failed_server_removes_its_deadline(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The deadline of the failed server would otherwise end the process that called the command."""
    made: list[StopDeadline] = []

    def deadline(say: Callable[[str], object]) -> StopDeadline:
        made.append(StopDeadline(say, end=lambda _status: None))
        return made[0]

    async def serve(_options: object, _reporter: object, given: StopDeadline) -> None:
        await trio.lowlevel.checkpoint()
        given.within(1_000)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server_command, "StopDeadline", deadline)
    monkeypatch.setattr(module, "_serve", serve)
    if module is zmq_serve:
        arguments = ["zmq-raft", "serve", "--id", "1", "--peer", "1=tcp://127.0.0.1:4000", "--ident", "test"]
        arguments += ["--directory", str(tmp_path / "peer")]
    else:
        files = Files(tmp_path, 1)
        files.format(1)
        arguments = ["kraft", "serve", "-c", str(files.config(1))]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1, result.output
    assert made[0]._at_s == inf
