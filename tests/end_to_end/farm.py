"""Farms of real processes for the tests: started, queried, damaged, and always ended.

    prepare files (or write them) ─▶ Node.start: `garlicfarm run --config …` ─▶ query the control socket ─▶ stop

`forking` explains the start of processes.

Nothing here waits for a fixed time. `wait_until` polls until a condition is true. If a timeout passes,
the test fails with the nodes' logs. A node's standard input is a pipe of the test process, so even a killed
test run does not leave a process.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import psutil

from bridge.api.control import SubmitAnswer
from bridge.api.control_routes import TRANSFER
from bridge.api.log import EntryKind, LogEntryView
from bridge.api.requests import TransferRequest
from bridge.api.view import FarmView, RaftRole
from bridge.core.formation.member import MemberStatus
from bridge.node.control.client import ControlClient, ControlError, ask_blocking
from bridge.node.local.farm_files import REPORTING_PERIOD_MS, prepare
from bridge.node.security.control_socket import SOCKET_NAME
from tests.end_to_end import forking
from tests.end_to_end.layout import Read, read_meta_lease_set

POLL_S = 0.05
POLL_MAX_S = 0.4
LOG_TAIL_BYTES = 4_000
PAGE = 1_000
LEADER_BOUND_S = END_BOUND_S = START_BOUND_S = 60.0
PUBLISHER_BOUND_S = 10 * 3 * REPORTING_PERIOD_MS / 1000
"""Timeouts, for a loaded machine: at least ten times the goals."""
LIVING = {MemberStatus.ALIVE, MemberStatus.SUSPECT}
PASSING = re.compile(
    "none is known now|could not keep leadership|does not lead, or is busy|cannot do it now|no leader has confirmed|"
    "less than a majority|no majority answers|No node was evicted; try again|(is|are) down, |did not confirm that |"
    "not all servers of the farm support this entry yet"
)
"""Refusals caused by an election, a new farm, or a process without processor time. The command succeeds later."""

T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T | None],
    timeout_s: float,
    expectation: str,
    logs: Callable[[], str] = str,
    *,
    poll_s: float = POLL_S,
) -> T:
    """Return the first truthy result of `predicate`. A node that does not reply yet counts as None.

    The interval grows up to `POLL_MAX_S`; otherwise the queries of a long wait would need more processor time than the
    farm.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        reason = ""
        try:
            found = predicate()
        except ControlError as error:
            found, reason = None, f" ({error})"
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {expectation}{reason}\n{logs()}")
        time.sleep(poll_s)
        poll_s = max(poll_s, min(1.25 * poll_s, POLL_MAX_S))


def command(*arguments: str | Path) -> list[str]:
    """Return the command line of `garlicfarm` with these arguments."""
    return [sys.executable, "-m", "bridge.cli.main", *map(str, arguments)]


def call(*arguments: str | Path, timeout_s: float = 60.0, anew: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end. `anew` starts a new interpreter instead of a fork with all imports."""
    if anew:
        return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout_s, check=False)
    return forking.run(arguments, timeout_s)


def tail(path: Path) -> str:
    with suppress(OSError):
        return path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
    return "(no log)"


class Node:
    """One node: its configuration file, and its current process or None."""

    def __init__(self, configuration: Path) -> None:
        self.configuration = configuration
        self.directory = configuration.parent
        self.name = self.directory.name
        self.log_file = self.directory / "output.log"
        self.process: subprocess.Popen[bytes] | forking.Forked | None = None

    # -- its process ---------------------------------------------------------------------------------------------------

    def start(self, *, anew: bool = False) -> Self:
        """Start the process, without a wait for its first reply. `anew` starts a new interpreter instead of a fork."""
        assert not self.running, f"{self.name} already runs"
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
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """Return the id of the current process."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        self._end(signal.SIGKILL, END_BOUND_S)

    def stop(self) -> int:
        """Send SIGTERM, and wait for the end. A process that does not stop is killed and fails the test."""
        return self._end(signal.SIGTERM, END_BOUND_S)

    def wait_end(self, timeout_s: float) -> int:
        """Wait for the end of the process, without a signal; return its exit code."""
        assert self.process is not None
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout_s:g} s\n{tail(self.log_file)}") from None

    def _end(self, signal_number: signal.Signals, timeout_s: float) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout_s)
            raise
        finally:
            self._close()

    def _close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    # -- its control endpoint ------------------------------------------------------------------------------------------

    @property
    def socket(self) -> Path:
        return self.directory / SOCKET_NAME

    def ask(self, request: Callable[[ControlClient], Coroutine[Any, Any, T]], timeout_s: float = 10.0) -> T:
        """Send a request; raise ControlError without a reply."""
        return ask_blocking(self.socket, request, timeout_s)

    def view(self) -> FarmView:
        async def request(client: ControlClient) -> FarmView:
            return await client.view()

        return self.ask(request)

    def submit(self, entry: dict[str, object]) -> SubmitAnswer:
        async def submission(client: ControlClient) -> SubmitAnswer:
            return await client.submit(msgspec.json.encode(entry))

        return self.ask(submission, 30.0)

    def entries(self) -> dict[int, LogEntryView]:
        """Return all committed entries of the node's log."""

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
        """Return the value of a Prometheus series, named with its labels; 0 if it does not exist yet."""

        async def scrape(client: ControlClient) -> str:
            return await client.metrics()

        for line in self.ask(scrape).splitlines():
            label, _, value = line.partition(" ")
            if label in {name, f"{name}_total"}:
                return float(value)
        return 0.0

    def counters(self) -> dict[str, int]:
        """Return all counters of the view. Counters of gossip and Raft have a prefix."""
        view = self.view()
        return {
            **view.counters,
            **{f"gossip_{name}": value for name, value in view.gossip.counters.items()},
            **{f"raft_{name}": value for name, value in view.raft.counters.items()},
        }

    def structures(self) -> list[Path]:
        """Return the files of Meta LeaseSet2s at the node's router."""
        return sorted((self.directory / "published").glob("*.meta-ls2"))

    def published(self) -> list[Read]:
        """Return the structures at the node's router, verified. A structure may be removed after the listing."""
        found = []
        for path in self.structures():
            with suppress(FileNotFoundError):
                found.append(read_meta_lease_set(path))
        return found


class Farm:
    """Several nodes, and a context manager that ends all of them."""

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
        return "\n".join(f"---- {node.name}, running: {node.running}\n{tail(node.log_file)}" for node in self.nodes)

    def wait_until(self, predicate: Callable[[], T | None], timeout_s: float, expectation: str) -> T:
        """Call `wait_until`; a failure shows the nodes' logs."""
        return wait_until(predicate, timeout_s, expectation, self.logs)

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.running]

    def start_all(self) -> None:
        for node in self.nodes:
            if not node.running:
                node.start()

    def leader(self) -> Node | None:
        return _leader({node: node.view() for node in self.running})

    def settled(self) -> Node | None:
        """Return the leader if the farm has a publisher, and all nodes follow it, have its log, and have reported."""
        stopped = [node.name for node in self.nodes if not node.running]
        assert not stopped, f"{stopped} ended without a signal\n{self.logs()}"
        views = {node: node.view() for node in self.nodes}
        leader = _leader(views)
        if leader is None:
            return None
        leader_view = views[leader]
        followed = {(view.raft.leader_id, view.raft.term) for view in views.values()}
        agreed = followed == {(leader_view.node.raft_id, leader_view.raft.term)}
        # A stopped server may have left a report, which becomes stale.
        fresh = {report.raft_id for report in leader_view.reports if not report.stale}
        reported = fresh >= {view.node.raft_id for view in views.values()}
        # A master needs a publisher; its structure may still be in transfer. Hostile reports add masters without one.
        published = any(each.publisher_name is not None for each in leader_view.publishing)
        if not (agreed and reported and published):
            return None
        # Query the nodes after the leader: under load the leader commits more entries until the last reply.
        level = all(node.view().raft.applied_index >= leader_view.raft.commit_index for node in self.nodes)
        return leader if level else None

    def wait_settled(self, timeout_s: float = START_BOUND_S) -> Node:
        """Wait until all nodes are healthy; return the leader."""
        return self.wait_until(self.settled, timeout_s, "all nodes run, follow one leader and report")

    def wait_known(self) -> None:
        """Wait until gossip has spread the current generation of each node to each other node: Raft may be faster."""

        def known() -> bool:
            views = [node.view() for node in self.nodes]
            incarnations = {(view.node.node_id, view.node.generation) for view in views}
            return all(
                incarnations <= {(each.node_id, each.generation) for each in view.members if each.status in LIVING}
                for view in views
            )

        self.wait_until(known, START_BOUND_S, "each node discovers the current generation of each other node")

    def led_by_another(self, node: Node) -> Node:
        """Return a leader other than `node`. If an election made `node` the leader, request a handover first."""

        def other_leader() -> Node | None:
            found = self.leader()
            if found is node:
                node.ask(lambda client: client.call(TRANSFER, TransferRequest()))
            return found if found is not node else None

        return self.wait_until(other_leader, START_BOUND_S, f"a node other than {node.name} leads")

    def wait_done(self, *arguments: str | Path, at: Callable[[], Node]) -> "subprocess.CompletedProcess[str]":
        """Run a command until it succeeds. Repeat it while it is refused for a transient reason."""
        attempts: list[subprocess.CompletedProcess[str]] = []

        def done() -> bool:
            attempts.append(call(*arguments, "--node", at().directory))
            return attempts[-1].returncode == 0 or PASSING.search(attempts[-1].stderr) is None

        self.wait_until(done, START_BOUND_S, f"`{' '.join(map(str, arguments))}` is not refused for a transient reason")
        assert attempts[-1].returncode == 0, attempts[-1].stderr + self.logs()
        return attempts[-1]

    def wait_log(self, node: Node, expected: dict[int, str]) -> None:
        """Wait until `node` has applied the last index of `expected`, and check each mark at its index."""

        def reached() -> bool:
            return node.view().raft.applied_index >= max(expected, default=0)

        self.wait_until(reached, START_BOUND_S, f"{node.name} applies index {max(expected, default=0)}")
        found = marks(node.entries())
        lost = {index: mark for index, mark in expected.items() if found.get(index) != mark}
        assert not lost, f"{node.name} lost acknowledged entries: {lost}"


def _leader(views: dict[Node, FarmView]) -> Node | None:
    leaders = {
        node: view.raft.term
        for node, view in views.items()
        if view.raft.role is RaftRole.LEADER and view.raft.commit_index
    }
    return max(leaders, key=lambda node: leaders[node], default=None)


def exported_key(node: Node, file: Path, *options: str) -> Path:
    """Write the key file for a new node of the farm; return its path."""
    done = call("keys", "export", *options, file, "--node", node.directory)
    assert done.returncode == 0, done.stderr
    return file


def marks(entries: dict[int, LogEntryView]) -> dict[int, str]:
    found = {}
    for index, entry in entries.items():
        if entry.kind is EntryKind.APPLICATION:
            mark = msgspec.json.decode(entry.data).get("mark")
            if mark is not None:
                found[index] = str(mark)
    return found


def local_farm(directory: Path, servers: int, *, lan_timing: bool = False) -> Farm:
    """Return a farm with the files of `garlicfarm up`. The caller starts its nodes.

    `lan_timing` doubles the election timeouts: nodes use the timing of several machines. So a short lack of processor
    time does not cause an election in tests of elections.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made = prepare(directory, servers)
    for node in made.nodes if lan_timing else ():
        rest, section, consensus = node.configuration_file.read_text().partition("[consensus]")
        node.configuration_file.write_text(rest + section + consensus.replace('timing = "local"', 'timing = "lan"', 1))
    return Farm(directory, [Node(node.configuration_file) for node in made.nodes])


def seeded(test_name: str) -> Random:
    """Return a random source. The printed seed appears in the output of a failed test."""
    seed = int(os.environ.get("GARLICFARM_TEST_SEED") or time.time_ns() % 1_000_000)
    print(f"{test_name}: GARLICFARM_TEST_SEED={seed}")  # noqa: T201 - to repeat a failure
    return Random(seed)
