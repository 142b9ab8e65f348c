"""Farms of real processes for the tests: started, asked, broken, and always ended again.

    prepare files (or write them) ─▶ Node.start: `garlicfarm run --config …` ─▶ ask by the control socket ─▶ stop

`forking` tells how processes start.

Nothing here waits for a fixed time: `wait_until` polls until something holds, with a bound that only a broken farm
reaches, and then fails with what the nodes themselves wrote. A node's standard input is a pipe of the test process, so
that not even a killed test run leaves a process behind.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import psutil

from bridge.api.control import SubmitAnswer
from bridge.api.log import EntryKind, LogEntryView
from bridge.api.view import FarmView, RaftRole
from bridge.core.formation.member import MemberStatus
from bridge.node.control.client import ControlClient, ControlError, ask
from bridge.node.local.farm_files import REPORTING_PERIOD_MS, prepare
from bridge.node.security.control_socket import SOCKET_NAME
from tests.end_to_end import forking
from tests.end_to_end.layout import Read, read_meta_lease_set

POLL_S = 0.05
LOG_TAIL_BYTES = 4_000
PAGE = 1_000
LEADER_BOUND_S = 10 * 2.0
END_BOUND_S = 20.0
PUBLISHER_BOUND_S = 10 * 3 * REPORTING_PERIOD_MS / 1000
START_BOUND_S = 60.0
"""Ten times the goals, and for the start whatever a loaded machine may need."""
LIVING = {MemberStatus.ALIVE, MemberStatus.SUSPECT}
PASSING = re.compile(
    "only the leader decides|less than a majority|no majority answers|No node was evicted; try again|(is|are) down, |"
    "did not confirm that "
)
"""Refusals that an election, or a process that got no processor time for a second, explains: they end by themselves."""

T = TypeVar("T")


def wait_until(predicate: Callable[[], T | None], timeout_s: float, what: str, logs: Callable[[], str] = str) -> T:
    """The first truthy answer of `predicate`; a node that does not answer yet is no answer."""
    deadline = time.monotonic() + timeout_s
    reason = ""
    while True:
        try:
            found = predicate()
        except ControlError as error:
            found, reason = None, f" ({error})"
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}{reason}\n{logs()}")
        time.sleep(POLL_S)


def command(*arguments: str | Path) -> list[str]:
    """The command line that an installed `garlicfarm` is."""
    return [sys.executable, "-m", "bridge.cli.main", *map(str, arguments)]


def call(*arguments: str | Path, timeout_s: float = 60.0, anew: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end. `anew`: as an interpreter that has still to import the program."""
    if anew:
        return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout_s, check=False)
    return forking.run(arguments, timeout_s)


def tail(path: Path) -> str:
    """The end of a log file."""
    with suppress(OSError):
        return path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
    return "(no log)"


class Node:
    """One node: a configuration file, and the process of the moment if there is one."""

    def __init__(self, configuration: Path) -> None:
        self.configuration = configuration
        self.directory = configuration.parent
        self.name = self.directory.name
        self.log_file = self.directory / "output.log"
        self.process: subprocess.Popen[bytes] | forking.Forked | None = None

    # -- its process ---------------------------------------------------------------------------------------------------

    def start(self, *, anew: bool = False) -> Self:
        """Start the process; it need not answer yet. `anew`: as an interpreter that has still to import the program."""
        assert not self.running, f"{self.name} runs already"
        self._close()
        arguments = ("run", "--config", self.configuration, "--stop-with-stdin")
        with self.log_file.open("ab") as output:
            if anew:
                self.process = subprocess.Popen(
                    command(*arguments),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            else:
                self.process = forking.start(arguments, output.fileno(), output.fileno(), piped=True)
        return self

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process of the moment."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        self._end(signal.SIGKILL, 10.0)

    def stop(self) -> int:
        """SIGTERM, and gone when this returns; a process that will not stop is killed and fails the test."""
        return self._end(signal.SIGTERM, 20.0)

    def ended(self, timeout_s: float) -> int:
        """The exit code, which must come by itself."""
        assert self.process is not None
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout_s:g} s\n{tail(self.log_file)}") from None

    def _end(self, how: signal.Signals, patience_s: float) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(patience_s)
            raise
        finally:
            self._close()

    def _close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def resident_bytes(self) -> int:
        """Memory of the process."""
        return int(psutil.Process(self.pid).memory_info().rss)

    # -- what it says --------------------------------------------------------------------------------------------------

    @property
    def socket(self) -> Path:
        """Its control socket."""
        return self.directory / SOCKET_NAME

    def ask(self, question: Callable[[ControlClient], Awaitable[T]], timeout_s: float = 10.0) -> T:
        """Ask it something; ControlError when it does not answer."""
        return ask(self.socket, question, timeout_s)

    def view(self) -> FarmView:
        """Its picture."""

        async def picture(client: ControlClient) -> FarmView:
            return await client.view()

        return self.ask(picture)

    def submit(self, entry: dict[str, object]) -> SubmitAnswer:
        """Have one entry committed."""

        async def submission(client: ControlClient) -> SubmitAnswer:
            return await client.submit(msgspec.json.encode(entry))

        return self.ask(submission, 30.0)

    def entries(self) -> dict[int, LogEntryView]:
        """Every committed entry that it shows."""

        async def read(client: ControlClient) -> dict[int, LogEntryView]:
            found: dict[int, LogEntryView] = {}
            first = 1
            while True:
                page = await client.log(first, PAGE)
                found.update((entry.index, entry) for entry in page.entries)
                if not page.entries or page.next_index > page.commit_index:
                    return found
                first = page.next_index

        return self.ask(read, 30.0)

    def metric(self, name: str) -> float:
        """One series of the node's Prometheus metrics, named with its labels; 0 while it does not exist."""

        async def scrape(client: ControlClient) -> str:
            return await client.metrics()

        for line in self.ask(scrape).splitlines():
            label, _, value = line.partition(" ")
            if label in {name, f"{name}_total"}:
                return float(value)
        return 0.0

    def counters(self) -> dict[str, int]:
        """Every counter of its picture, gossip's and Raft's with a prefix."""
        view = self.view()
        return {
            **view.counters,
            **{f"gossip_{name}": value for name, value in view.gossip.counters.items()},
            **{f"raft_{name}": value for name, value in view.raft.counters.items()},
        }

    def structures(self) -> list[Path]:
        """The Meta LS2 that its router keeps."""
        return sorted((self.directory / "published").glob("*.meta-ls2"))

    def published(self) -> list[Read]:
        """What its router keeps, read and verified; a structure may be taken back since it was listed."""
        found = []
        for path in self.structures():
            with suppress(FileNotFoundError):
                found.append(read_meta_lease_set(path))
        return found


class Farm:
    """Several nodes; a context manager that ends them all."""

    def __init__(self, directory: Path, nodes: Iterable[Node]) -> None:
        self.directory = directory
        self.nodes = list(nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.kill()

    def __getitem__(self, name: str | None) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def logs(self) -> str:
        """What the nodes wrote."""
        return "\n".join(f"---- {node.name}, running: {node.running}\n{tail(node.log_file)}" for node in self.nodes)

    def wait_until(self, predicate: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """As the function; a failure shows the nodes' logs."""
        return wait_until(predicate, timeout_s, what, self.logs)

    @property
    def running(self) -> list[Node]:
        """The nodes whose process lives."""
        return [node for node in self.nodes if node.running]

    def start_all(self) -> None:
        """Start what does not run."""
        for node in self.nodes:
            if not node.running:
                node.start()

    def leader(self) -> Node | None:
        """The node that leads in the highest term that any running node tells."""
        return _leader({node: node.view() for node in self.running})

    def settled(self) -> Node | None:
        """The leader, once every node runs, follows it, has applied what it committed, and has reported."""
        ended = [node.name for node in self.nodes if not node.running]
        assert not ended, f"{ended} ended by themselves\n{self.logs()}"
        views = {node: node.view() for node in self.nodes}
        leader = _leader(views)
        if leader is None:
            return None
        said = views[leader]
        told = {(view.raft.leader_id, view.raft.term) for view in views.values()}
        agreed = told == {(said.node.raft_id, said.raft.term)}
        # Asked after the leader: under load it has committed more by the time that the last one is asked.
        level = all(node.view().raft.applied_index >= said.raft.commit_index for node in self.nodes)
        # One that has gone may have left a report, which grows old.
        fresh = {report.raft_id for report in said.reports if not report.stale}
        reported = fresh >= {view.node.raft_id for view in views.values()}
        # With a publisher that lives; a structure may still be on its way.
        published = bool(said.publishing) and said.publishing[0].publisher_name is not None
        return leader if agreed and level and reported and published else None

    def wait_settled(self, timeout_s: float = START_BOUND_S) -> Node:
        """The leader of a farm in which every node is well."""
        return self.wait_until(self.settled, timeout_s, "every node runs, follows one leader and reports")

    def wait_acquainted(self) -> None:
        """Until gossip has told every node of the life that every other one lives now: Raft may be quicker."""

        def acquainted() -> bool:
            views = [node.view() for node in self.nodes]
            lives = {(view.node.node_id, view.node.generation) for view in views}
            return all(
                lives <= {(each.node_id, each.generation) for each in view.members if each.status in LIVING}
                for view in views
            )

        self.wait_until(acquainted, START_BOUND_S, "every node hears every other one")

    def led_by_another(self, node: Node) -> Node:
        """The leader, or, if an election has made `node` the leader, the next one after a handover."""

        def another() -> Node | None:
            found = self.leader()
            if found is node:
                node.ask(lambda client: client.transfer())
            return found if found is not node else None

        return self.wait_until(another, START_BOUND_S, f"another node than {node.name} leads")

    def wait_done(self, *arguments: str | Path, at: Callable[[], Node]) -> "subprocess.CompletedProcess[str]":
        """A command that succeeds, asked again as long as it is refused for a reason that passes."""
        said: list[subprocess.CompletedProcess[str]] = []

        def done() -> bool:
            said.append(call(*arguments, "--node", at().directory))
            return said[-1].returncode == 0 or PASSING.search(said[-1].stderr) is None

        self.wait_until(done, START_BOUND_S, f"`{' '.join(map(str, arguments))}` is not refused for the moment")
        assert said[-1].returncode == 0, said[-1].stderr + self.logs()
        return said[-1]

    def wait_log(self, node: Node, wanted: dict[int, str]) -> None:
        """Wait until `node` shows the log up to the last of `wanted`, and check that every one is where it was."""

        def reached() -> bool:
            return node.view().raft.applied_index >= max(wanted, default=0)

        self.wait_until(reached, START_BOUND_S, f"{node.name} applies index {max(wanted, default=0)}")
        found = marks(node.entries())
        lost = {index: mark for index, mark in wanted.items() if found.get(index) != mark}
        assert not lost, f"{node.name} lost acknowledged entries: {lost}"


def _leader(views: dict[Node, FarmView]) -> Node | None:
    leaders = {
        node: view.raft.term
        for node, view in views.items()
        if view.raft.role is RaftRole.LEADER and view.raft.commit_index
    }
    return max(leaders, key=lambda node: leaders[node], default=None)


def exported_key(node: Node, file: Path, *options: str) -> Path:
    """The key file for a new node of the farm of `node`."""
    done = call("keys", "export", *options, file, "--node", node.directory)
    assert done.returncode == 0, done.stderr
    return file


def marks(entries: dict[int, LogEntryView]) -> dict[int, str]:
    """Which of the tests' own entries lies at which index."""
    found = {}
    for index, entry in entries.items():
        if entry.kind is EntryKind.APPLICATION:
            mark = msgspec.json.decode(entry.data).get("mark")
            if mark is not None:
                found[index] = str(mark)
    return found


def local_farm(directory: Path, servers: int, *, unhurried: bool = False) -> Farm:
    """A farm with the files that `garlicfarm up` makes, whose nodes are started one by one.

    `unhurried`: they wait for a leader as long as nodes on several machines do, which is twice as long. So a process
    that gets no processor time for a moment causes no election in tests that are about one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made = prepare(directory, servers)
    for node in made.nodes if unhurried else ():
        rest, section, consensus = node.configuration_file.read_text().partition("[consensus]")
        node.configuration_file.write_text(rest + section + consensus.replace('timing = "local"', 'timing = "lan"', 1))
    return Farm(directory, [Node(node.configuration_file) for node in made.nodes])


def seeded(test_name: str) -> Random:
    """A random source whose seed is printed, which pytest shows when the test fails."""
    seed = int(os.environ.get("GARLICFARM_TEST_SEED") or time.time_ns() % 1_000_000)
    print(f"{test_name}: GARLICFARM_TEST_SEED={seed}")  # noqa: T201 - to repeat a failure
    return Random(seed)
