"""The watch of a local farm's nodes through their control sockets: their views, events and publications.

Each node has two separate tasks here. One requests its view twice a second, the other waits for its events. A stopped,
killed or starting node does not delay others. Events go to one bounded channel in order of arrival. A restarted node
begins a new trace, which is read from its start.

Publications are checked by their files alone: each is read, decoded and verified here.
"""

import time
from pathlib import Path

import trio
from msgspec import Struct

from bridge.api.json import DocumentError
from bridge.api.trace import TraceEvent
from bridge.api.view import FarmView, LocalFarmView, ProcessView, best_view
from bridge.core.membership.admission import server_label
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.local.farm_files import LocalFarm
from bridge.node.local.supervisor import Child
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.wire.i2p.meta_lease_set import STRUCTURE_LIMIT_BYTES, STRUCTURE_SUFFIX, LeaseSetError, decode, verify

VIEW_INTERVAL_SECONDS = 0.5
EVENT_WAIT_MS = 5_000
EVENTS_BUFFERED = 1_000


class Published(Struct, frozen=True):
    """A verified structure on disk."""

    path: Path
    published_s: int
    entries: int


class LocalWatch:
    """The state of the running nodes, updated while `run` runs."""

    def __init__(
        self,
        farm: LocalFarm,
        children: tuple[Child, ...],
        notice: str = "",
        program: str = "garlicfarm",
        client: str = "",
    ) -> None:
        self._farm = farm
        self._children = children
        self._notice = notice
        self._program = program
        self._client = client
        self._views: dict[str, FarmView] = {}
        self._by_hand: dict[str, int] = {}
        """By the node's name, the last process that an operator started in place of an ended one."""
        self._event_sink, self.events = trio.open_memory_channel[TraceEvent](EVENTS_BUFFERED)
        self._started_ns = time.time_ns()

    async def run(self) -> None:
        """Update the views and read events until canceled."""
        async with trio.open_nursery() as nursery:
            for node, child in zip(self._farm.nodes, self._children, strict=True):
                nursery.start_soon(self._keep_view, node.name, node.directory / SOCKET_NAME, child)
                nursery.start_soon(self._follow_events, node.directory / SOCKET_NAME)

    def picture(self) -> LocalFarmView:
        """Return every process with the last view of its node."""
        return LocalFarmView(
            taken_at_ms=time.time_ns() // 1_000_000,
            state_directory=str(self._farm.directory),
            processes=tuple(self._process(child) for child in self._children),
            notice=self._notice,
            program=self._program,
            client=self._client,
        )

    def running_pid(self, name: str) -> int | None:
        """Return the process of a node, started here or by hand; None if it does not run."""
        return next((each.pid for each in self.picture().processes if each.name == name and each.running), None)

    def _process(self, child: Child) -> ProcessView:
        view = self._views.get(child.command.name)
        by_hand = view is not None and view.node.pid != child.pid
        if view is not None and by_hand and not child.running:
            # The operator has started the node again by the command on the screen, as a separate process.
            self._by_hand[child.command.name] = view.node.pid
            return ProcessView(child.command.name, view.node.pid, running=True, detail="started by hand", view=view)
        last = self._by_hand.get(child.command.name)
        if last is not None and not child.running:
            # The exit status of the first process does not apply to the new one, and the exit status of another
            # program's child is unknown.
            return ProcessView(
                child.command.name, last, running=False, detail=f"pid {last}, started by hand, has ended"
            )
        return ProcessView(child.command.name, child.pid, running=child.running, detail=child.exit_text, view=view)

    def published(self) -> Published | None:
        """Return the latest verified structure of this run with an entry for each healthy destination. Reads files.

        The entries are only counted. Return None without such a structure, and until every node has reported. A
        structure of an earlier run does not prove that this run publishes.
        """
        view = best_view(self.picture())
        if view is None or len(view.reports) < len(self._children):
            return None
        healthy_count = sum(report.healthy_destinations for report in view.reports)
        files = [
            path for node in self._farm.nodes for path in (node.directory / "published").glob(f"*{STRUCTURE_SUFFIX}")
        ]
        found = [
            each for path in files if _modified_ns(path) >= self._started_ns and (each := _verified(path)) is not None
        ]
        complete = [each for each in found if each.entries >= max(healthy_count, 1)]
        return max(complete, key=lambda each: each.published_s, default=None)

    def progress(self) -> str:
        """Return the progress of the farm as text, for the error after a timeout."""
        parts = []
        for process in self.picture().processes:
            if not process.running:
                parts.append(f"{process.name}: {process.detail}")
            elif process.view is None:
                parts.append(f"{process.name}: does not answer on its control socket")
            else:
                raft, node = process.view.raft, process.view.node
                leader = (
                    "no leader"
                    if raft.leader_id is None
                    else f"leader {server_label(raft.leader_id, raft.leader_name)}"
                )
                parts.append(f"{process.name}: {node.phase.value}, {leader}, commit index {raft.commit_index}")
        return "; ".join(parts)

    async def _keep_view(self, name: str, socket: Path, child: Child) -> None:
        async with ControlClient(socket, timeout_s=2.0) as client:
            while True:
                try:
                    self._views[name] = await client.view()
                except (ControlError, DocumentError):
                    if not child.running:
                        self._views.pop(name, None)
                await trio.sleep(VIEW_INTERVAL_SECONDS)

    async def _follow_events(self, socket: Path) -> None:
        last: TraceEvent | None = None
        doubtful = False
        async with ControlClient(socket) as client:
            while True:
                try:
                    if doubtful and last is not None and not await client.has_event(last):
                        last = None
                    doubtful = False
                    page = await client.events(1 if last is None else last.cursor + 1, wait_ms=EVENT_WAIT_MS)
                except (ControlError, DocumentError):
                    doubtful = True
                    await trio.sleep(VIEW_INTERVAL_SECONDS)
                    continue
                for event in page.events:
                    last = event
                    await self._event_sink.send(event)


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _verified(path: Path) -> Published | None:
    try:
        with path.open("rb") as file:
            structure = decode(file.read(STRUCTURE_LIMIT_BYTES + 1))
    except (OSError, LeaseSetError):
        return None
    if not verify(structure).holds:
        return None
    return Published(path.resolve(), structure.published_s, len(structure.leases))
