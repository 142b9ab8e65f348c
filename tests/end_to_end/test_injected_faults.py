"""Servers whose files and sockets fail once at each place of the program: none ends, and none shows a traceback.

`faulty_node` raises the errors. A journal that cannot be written or synced (EIO) ends a server by design, since a
server must not repeat a failed sync; so that error spares the storage.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.node.control.client import ControlError
from tests.effort import IS_SOAK
from tests.end_to_end.farm import Farm, command, local_farm, tail
from tests.loop_watch.watch import ENVIRONMENT
from tests.node.kraft_processes import Files
from tests.node.test_zmq_raft_open_peer import free_peers

ERRORS = ("ENOSPC", "EIO", "EMFILE", "ECONNRESET") if IS_SOAK else ("EIO", "ECONNRESET")
"""Each is the reason of one more run of all places; `make soak` plays all."""
ROUNDS = 3
PATIENCE_S = 60


pytestmark = pytest.mark.search


class Faults:
    """The errors of one process, and the process."""

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
                # Not watched: a report of the watch would meet the errors, too.
                env={name: value for name, value in os.environ.items() if name != ENVIRONMENT},
            )

    def work_with(self, name: str, work: Callable[[], object]) -> None:
        """Do some work while each place of the program fails once with this error."""
        (self._directory / "spared").write_text("consensus/storage/" if name == "EIO" else "")
        (self._directory / "errno").write_text(name)
        for _ in range(ROUNDS):
            work()
            assert self.process.poll() is None, f"{name} ended the server\n{self.met()}\n{tail(self.log)}"
        (self._directory / "errno").unlink()

    def met(self) -> str:
        """Return which places failed, a line for each."""
        return (self._directory / "failed").read_text()

    def end(self) -> int:
        """Stop the process; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextmanager
def faulty(directory: Path, *arguments: str | Path) -> Iterator[Faults]:
    faults = Faults(directory, *arguments)
    try:
        yield faults
    finally:
        faults.process.kill()
        faults.process.wait(PATIENCE_S)
        if faults.process.stdin is not None:
            faults.process.stdin.close()


def call_all(*commands: tuple[str | Path, ...]) -> list[int]:
    """Run commands of the program; a command may be refused while the server meets an error."""
    return [
        subprocess.run(command(*each), capture_output=True, timeout=PATIENCE_S, check=False).returncode
        for each in commands
    ]


def test_node_whose_calls_fail_once_at_each_place_stays_healthy(tmp_path: Path) -> None:
    with local_farm(tmp_path / "farm", 3) as farm:
        node = farm.nodes[0]
        for other in farm.nodes[1:]:
            other.start()
        with faulty(tmp_path, "run", "--config", node.configuration, "--stop-with-stdin") as faults:
            # The farm asks and ends it as its own.
            node.process = faults.process
            farm.wait_settled()
            for name in ERRORS:
                faults.work_with(name, lambda: use(farm))
                farm.wait_settled()
            assert faults.end() == 0, tail(faults.log)
        assert "fault of the program" not in faults.log.read_text()
        assert {line.split()[0] for line in faults.met().splitlines()} == set(ERRORS)


def use(farm: Farm) -> None:
    """Ask the first node for everything that opens a file or a socket; it may refuse."""
    node = farm.nodes[0]
    for question in (
        node.view,
        lambda: node.metric("garlicfarm_alarms"),
        lambda: node.submit({"mark": "with errors"}),
        lambda: node.ask(lambda client: client.transfer()),
        node.entries,
    ):
        try:
            question()
        except ControlError:
            continue


def test_zmq_peer_whose_calls_fail_once_at_each_place_stays_healthy(tmp_path: Path) -> None:
    (peer,) = free_peers(1)
    server = ("--id", "1", "--peer", f"1={peer.url}", "--ident", "test", "--directory", tmp_path / "peer", "--json")
    client = ("--seed", peer.url, "--ident", "test")
    with faulty(tmp_path, "zmq-raft", "serve", *server) as faults:
        update = ("zmq-raft", "update", "hello", *client)
        assert call_all(update) == [0], tail(faults.log)
        for name in ERRORS:
            faults.work_with(name, lambda: call_all(update))
        assert call_all(update, ("zmq-raft", "status", *client)) == [0, 0], faults.met()
        assert faults.end() == 0, tail(faults.log)


def test_kraft_voter_whose_calls_fail_once_at_each_place_stays_healthy(tmp_path: Path) -> None:
    files = Files(tmp_path, 1)
    files.format(1)
    describe = ("kraft", "describe", "--bootstrap-controller", files.controllers, "--timeout", "10")
    with faulty(tmp_path, "kraft", "serve", "-c", files.config(1), "--json") as faults:
        assert call_all(describe) == [0], tail(faults.log)
        for name in ERRORS:
            faults.work_with(name, lambda: call_all(describe))
        assert call_all(describe) == [0], faults.met()
        assert faults.end() == 0, tail(faults.log)
