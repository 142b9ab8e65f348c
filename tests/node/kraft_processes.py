"""Processes of `garlicfarm kraft serve` on loopback, and their files.

A quorum is formatted with three initial controllers and short timeouts. The output of a server is read as JSON, one
line per event. Every process ends with its block, by its own process id.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from click.testing import CliRunner, Result

from bridge.cli.main import cli
from consensus.protocols.kafka import uuid_text
from consensus.protocols.kraft import new_uuid
from tests.end_to_end import forking
from tests.processes import END_S, free_ports

LOOPBACK = "127.0.0.1"
WAIT_S = 60.0
FAST = {
    "controller.quorum.election.timeout.ms": "600",
    "controller.quorum.fetch.timeout.ms": "1200",
    "controller.quorum.election.backoff.max.ms": "600",
    "controller.quorum.append.linger.ms": "0",
}


def kraft(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["kraft", *arguments], env={"GARLICFARM_KRAFT_CONTROLLERS": ""})


class Files:
    """Settings and directories of servers 1, 2, …; the first three are the initial controllers."""

    def __init__(self, path: Path, count: int = 3) -> None:
        self.path = path
        self.cluster_id = uuid_text(new_uuid())
        self.ports = dict(enumerate(free_ports(count), 1))
        self.directory_ids = {node_id: uuid_text(new_uuid()) for node_id in self.ports}
        voters = [node_id for node_id in self.ports if node_id <= 3]
        self.initial = ",".join(f"{each}@{self.address(each)}:{self.directory_ids[each]}" for each in voters)
        self.controllers = ",".join(map(self.address, voters))
        for node_id in self.ports:
            self.write(node_id, {})

    def address(self, node_id: int) -> str:
        return f"{LOOPBACK}:{self.ports[node_id]}"

    def config(self, node_id: int) -> str:
        """Return the settings file of a server."""
        return str(self.path / f"{node_id}.properties")

    def write(self, node_id: int, more: Mapping[str, str]) -> None:
        """Write the settings of a server, with additions or replacements."""
        settings = {
            "process.roles": "controller",
            "node.id": str(node_id),
            "log.dirs": str(self.path / str(node_id)),
            "controller.quorum.bootstrap.servers": self.controllers,
            "listeners": f"CONTROLLER://{self.address(node_id)}",
            "controller.listener.names": "CONTROLLER",
            **FAST,
            **more,
        }
        Path(self.config(node_id)).write_text("".join(f"{name}={text}\n" for name, text in settings.items()))

    def format(self, node_id: int, *more: str, cluster_id: str | None = None) -> None:
        who = ("-I", self.initial) if node_id <= 3 else ("-N",)
        result = kraft("format", "-c", self.config(node_id), "-t", cluster_id or self.cluster_id, *who, *more)
        assert result.exit_code == 0, result.stderr


class ServeProcess:
    """A running server process."""

    def __init__(self, node_id: int, process: forking.Forked, output: IO[str], errors: Path) -> None:
        self.node_id = node_id
        self.process = process
        self._errors = errors
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read_lines, args=(output,), daemon=True)
        self._reader.start()

    def event(self, name: str, **facts: Any) -> dict[str, Any]:
        """Wait for the next line with this event and facts."""
        deadline, seen = time.monotonic() + WAIT_S, list[str]()
        with suppress(queue.Empty):
            while line := self._lines.get(timeout=max(0.0, deadline - time.monotonic())):
                seen.append(line)
                found: dict[str, Any] = json.loads(line)
                if found["event"] == name and facts.items() <= found.items():
                    return found
        raise AssertionError(f"server {self.node_id} did not report {name} {facts}, but {''.join(seen)}{self.errors()}")

    def ended(self) -> int:
        """Wait until the process ends without a signal; return its exit code."""
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            output = "".join(self._lines.get() for _ in range(self._lines.qsize()))
            raise AssertionError(f"server {self.node_id} did not end: {output}{self.errors()}") from None

    def _read_lines(self, output: IO[str]) -> None:
        for line in output:
            self._lines.put(line)
        self._lines.put("")

    def kill(self) -> None:
        """End the process, and read its output to the end, before the output is closed."""
        self.process.kill()
        self.process.wait(END_S)
        self._reader.join(END_S)

    def errors(self) -> str:
        return self._errors.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


@contextmanager
def served(files: Files, node_id: int, *arguments: str) -> Iterator[ServeProcess]:
    """Run a server until the block or the test ends it."""
    errors = files.path / f"{node_id}.err"
    command = ("kraft", "serve", "-c", files.config(node_id), "--json", *arguments)
    reading, writing = os.pipe()
    with os.fdopen(reading) as output, errors.open("a") as stderr:
        try:
            process = forking.start(command, writing, stderr.fileno())
        finally:
            os.close(writing)
        server = ServeProcess(node_id, process, output, errors)
        try:
            yield server
        finally:
            server.kill()
