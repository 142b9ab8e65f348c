"""Injected errors of files and sockets, once per calling line: servers keep running, without a traceback.

`faulty_node` raises the errors. A journal that cannot be written or synced (EIO) ends a server by design, because a
server must not repeat a failed sync. So the tests exclude the storage from EIO.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.api.control_routes import TRANSFER
from bridge.api.requests import TransferRequest
from bridge.node.control.client import ControlError
from tests.effort import IS_SOAK
from tests.end_to_end.farm import Farm, call, local_farm, tail
from tests.loop_watch.watch import ENVIRONMENT
from tests.node.kraft_processes import Files
from tests.node.test_zmq_raft_open_peer import free_peers

ERRORS = ("ENOSPC", "EIO", "EMFILE", "ECONNRESET") if IS_SOAK else ("EIO", "ECONNRESET")
"""The injected errors, one run for each; `make soak` runs all."""
ROUNDS = 3
TIMEOUT_S = 60
REPLY_S = 50
"""A command's timeout for replies, below the time limit of its process. A loaded machine starts a server in 10 s."""


pytestmark = pytest.mark.search


class Faults:
    """A process, and its injected errors."""

    def __init__(self, directory: Path, *arguments: str | Path) -> None:
        self._directory = directory / "faults"
        self._directory.mkdir()
        self.log = directory / "faulty.log"
        module = ("-m", "tests.end_to_end.faulty_node", str(self._directory))
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *module, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Without the watch of the event loop: its reports would also get the errors.
                env={name: value for name, value in os.environ.items() if name != ENVIRONMENT},
            )

    def work_with(self, name: str, work: Callable[[], object]) -> None:
        """Do some work while each line of the program fails once with this error."""
        (self._directory / "errno").write_text("EIO consensus/storage/" if name == "EIO" else name)
        for _ in range(ROUNDS):
            work()
            assert self.process.poll() is None, f"{name} ended the server\n{self.failed_calls()}\n{tail(self.log)}"
        (self._directory / "errno").unlink()

    def failed_calls(self) -> str:
        """Return the failed calls, one per line."""
        return (self._directory / "failed").read_text()

    def end(self) -> int:
        """Stop the process; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)


@contextmanager
def faulty(directory: Path, *arguments: str | Path) -> Iterator[Faults]:
    faults = Faults(directory, *arguments)
    try:
        yield faults
    finally:
        faults.process.kill()
        faults.process.wait(TIMEOUT_S)
        if faults.process.stdin is not None:
            faults.process.stdin.close()


def call_all(*commands: tuple[str | Path, ...]) -> list[int]:
    """Run commands of the program; return their exit codes. A command may be refused while the server gets an error."""
    return [call(*each, timeout_s=TIMEOUT_S).returncode for each in commands]


def test_node_with_injected_errors_stays_healthy(tmp_path: Path) -> None:
    with local_farm(tmp_path / "farm", 3) as farm:
        node = farm.nodes[0]
        for other in farm.nodes[1:]:
            other.start()
        with faulty(tmp_path, "run", "--config", node.configuration, "--stop-with-stdin") as faults:
            # The farm queries the process and ends it.
            node.process = faults.process
            farm.wait_settled()
            for name in ERRORS:
                faults.work_with(name, lambda: use(farm))
                farm.wait_settled()
            assert faults.end() == 0, tail(faults.log)
        assert "fault of the program" not in faults.log.read_text()
        assert {line.split()[0] for line in faults.failed_calls().splitlines()} == set(ERRORS)


def use(farm: Farm) -> None:
    """Send the first node requests that open files and sockets. Requests may be refused."""
    node = farm.nodes[0]
    for request in (
        node.view,
        lambda: node.metric("garlicfarm_alarms"),
        lambda: node.submit({"mark": "with errors"}),
        lambda: node.ask(lambda client: client.call(TRANSFER, TransferRequest())),
        node.entries,
    ):
        try:
            request()
        except ControlError:
            continue


def test_zmq_peer_with_injected_errors_stays_healthy(tmp_path: Path) -> None:
    (peer,) = free_peers(1)
    server = ("--id", "1", "--peer", f"1={peer.url}", "--ident", "test", "--directory", tmp_path / "peer", "--json")
    client = ("--seed", peer.url, "--ident", "test", "--timeout", str(REPLY_S))
    with faulty(tmp_path, "zmq-raft", "serve", *server) as faults:
        update = ("zmq-raft", "update", "hello", *client)
        assert call_all(update) == [0], tail(faults.log)
        for name in ERRORS:
            faults.work_with(name, lambda: call_all(update))
        assert call_all(update, ("zmq-raft", "status", *client)) == [0, 0], faults.failed_calls()
        assert faults.end() == 0, tail(faults.log)


def test_kraft_voter_with_injected_errors_stays_healthy(tmp_path: Path) -> None:
    files = Files(tmp_path, 1)
    files.format(1)
    describe = ("kraft", "describe", "--bootstrap-controller", files.controllers, "--timeout", str(REPLY_S))
    with faulty(tmp_path, "kraft", "serve", "-c", files.config(1), "--json") as faults:
        assert call_all(describe) == [0], tail(faults.log)
        for name in ERRORS:
            faults.work_with(name, lambda: call_all(describe))
        assert call_all(describe) == [0], faults.failed_calls()
        assert faults.end() == 0, tail(faults.log)
