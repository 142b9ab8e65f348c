"""One run: a new farm, the load under faults, healing, and the judgment.

    start ─▶ healthy ─▶ load + faults for DURATION ─▶ all faults end ─▶ within RECOVERY_S: a leader, all nodes agree
      ─▶ within HEALTHY_S: `garlicfarm status` is healthy at each node ─▶ the load ends ─▶ logs and records ─▶ judge

The run's directory has the story, the history, the logs and the data of the nodes. It stays after a failure.
"""

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from bridge.api.log import LogEntryView
from bridge.api.view import FarmView, RaftRole
from bridge.node.control.client import ControlClient, ControlError
from tests.processes import END_S
from tests.soak.jepsen import nodes as files
from tests.soak.jepsen.clients import PAGE, ReadLog, Workload, read_consumer
from tests.soak.jepsen.disk import DiskFaults, build_shim
from tests.soak.jepsen.history import History
from tests.soak.jepsen.judge import Figures, Received, figures, judge, merged
from tests.soak.jepsen.nemesis import Nemesis
from tests.soak.jepsen.network import Network
from tests.soak.jepsen.nodes import NodeProcess
from tests.soak.jepsen.schedule import NODES, Schedule

START_S: Final = 180.0
RECOVERY_S: Final = 60.0
HEALTHY_S: Final = 180.0
DRAIN_S: Final = 90.0
SUBMITTERS, UPDATERS, PRODUCERS, READERS, CONSUMERS = 3, 2, 2, 2, 2
_POLL_S: Final = 0.5
_VIEW_S: Final = 3.0


@dataclass(slots=True)
class Run:
    """The parts of a run that its phases share."""

    directory: Path
    schedule: Schedule
    nodes: list[NodeProcess]
    network: Network
    plants_loss: bool
    began_s: float = field(default_factory=time.monotonic)
    story: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def record(self, text: str) -> None:
        """Add a line to the story."""
        line = f"{time.monotonic() - self.began_s:7.1f} s  {text}"
        self.story.append(line)
        with (self.directory / "story.txt").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    async def views(self) -> dict[str, FarmView]:
        found: dict[str, FarmView] = {}

        async def add(node: NodeProcess) -> None:
            try:
                async with ControlClient(node.socket, _VIEW_S) as client:
                    found[node.name] = await client.view()
            except ControlError:
                return

        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(add, node)
        return found

    async def until(self, condition: Callable[[dict[str, FarmView]], str], limit_s: float) -> tuple[float, str]:
        """Poll until `condition` returns an empty text; return the time that it took and the last text."""
        began_s = trio.current_time()
        while True:
            text = condition(await self.views())
            took_s = trio.current_time() - began_s
            if not text or took_s > limit_s:
                return took_s, text
            await trio.sleep(_POLL_S)


def disagreement(views: dict[str, FarmView]) -> str:
    """Return an empty text if all nodes follow one leader and have applied its committed entries."""
    if len(views) < NODES:
        return f"only {', '.join(sorted(views))} reply"
    leaders = {(view.raft.leader_id, view.raft.term) for view in views.values()}
    if len(leaders) > 1 or None in {leader for leader, _ in leaders}:
        return f"leaders and terms differ: {sorted(leaders, key=str)}"
    committed = max((view.raft.commit_index for view in views.values() if view.raft.role is RaftRole.LEADER), default=0)
    behind = {name: view.raft.applied_index for name, view in views.items() if view.raft.applied_index + 50 < committed}
    return f"commit index {committed}; applied by late nodes: {behind}" if behind or not committed else ""


class Load:
    """The clients of a run, and the records of its readers."""

    def __init__(self, run: Run, access: files.Access) -> None:
        self.history = History(run.directory / "history.jsonl")
        self.work = Workload(run.nodes, access, self.history, run.schedule.seed, f"jepsen{secrets.token_hex(4)}")
        self.subscribed: list[tuple[int, bytes]] = []
        self.outputs = [run.directory / f"consumer-{number}.jsonl" for number in range(1, CONSUMERS + 1)]
        self.end_ns = 0
        self.begin_ns = time.monotonic_ns()
        self._readers = [ReadLog() for _ in range(READERS)]
        self._log = run.directory / "kafka-clients.log"
        self._consumers = [
            self.work.start_consumer(number, output, self._log) for number, output in enumerate(self.outputs, 1)
        ]

    def start(self, nursery: trio.Nursery, born: int) -> None:
        """Start the writers and the linearizable readers; `born` is a committed index."""
        for number in range(1, SUBMITTERS + 1):
            nursery.start_soon(self.work.submit, number, born)
        for number in range(1, UPDATERS + 1):
            nursery.start_soon(self.work.update, number)
        for number in range(1, PRODUCERS + 1):
            nursery.start_soon(self.work.produce, number, self._log)
        for number, received in enumerate(self._readers, 1):
            nursery.start_soon(self.work.read, number, received)

    def end(self) -> None:
        """Let the writers end after their present operation."""
        self.work.is_ended = True

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.kill()
            consumer.wait(END_S)
        self.history.close()

    def received(self) -> list[Received]:
        """Return the records of all readers."""
        found = [
            Received(f"reader-{number}", each.entries, is_complete=True) for number, each in enumerate(self._readers, 1)
        ]
        found.append(Received("the ØMQ subscriber", self.subscribed, is_complete=True))
        return found + [Received(path.stem, read_consumer(path), is_complete=False) for path in self.outputs]


async def play(run: Run, access: files.Access) -> list[str]:
    """Run all phases; return the findings."""
    findings = await _start(run)
    if findings:
        return findings
    leader, load = _LeaderWatch(), Load(run, access)
    nemesis = Nemesis(run.nodes, run.network, run.schedule.seed, run.record, lambda: leader.number)
    try:
        async with trio.open_nursery() as background:
            background.start_soon(nemesis.supervise)
            background.start_soon(leader.watch, run)
            background.start_soon(load.work.subscribe, load.subscribed)
            async with trio.open_nursery() as writers:
                load.start(writers, max(view.raft.commit_index for view in (await run.views()).values()))
                await nemesis.play(run.schedule)
                if run.plants_loss:
                    await _lose_synced_entries(run)
                findings += await _recover(run)
                load.end()
            load.end_ns = time.monotonic_ns()
            findings += await _drain(run, load)
            background.cancel_scope.cancel()
    finally:
        load.close()
    logs, more = await _logs(run)
    _set_figures(run, load, nemesis, logs)
    faulty = {node.name: lines for node in run.nodes if (lines := node.program_faults())}
    findings += [f"{name} logged faults of the program, first: {lines[0]}" for name, lines in faulty.items()]
    return [*findings, *nemesis.findings, *more, *judge(load.history.operations, logs, load.received())]


async def _start(run: Run) -> list[str]:
    for node in run.nodes:
        node.start()
    took_s, text = await run.until(disagreement, START_S)
    if text:
        return [f"the farm does not start within {START_S:g} s: {text}"]
    run.record(f"the farm has a leader after {took_s:.1f} s")
    took_s, text = await _healthy(run, START_S)
    if text:
        return [f"the farm does not become healthy within {START_S:g} s: {text}"]
    run.record(f"all nodes are healthy after {took_s:.1f} s more")
    return []


def _set_figures(run: Run, load: Load, nemesis: Nemesis, logs: dict[str, dict[int, bytes]]) -> None:
    operations = figures(load.history.operations, load.begin_ns, load.end_ns)
    run.figures |= {
        "seed": run.schedule.seed,
        "duration_s": run.schedule.duration_s,
        "mix": [kind.value for kind in run.schedule.mix],
        "load_average": os.getloadavg(),
        "operations": {name: asdict(each) for name, each in operations.items()},
        "faults": dict(nemesis.counts),
        "gap": _faults_during(run.schedule, operations["all writes"]),
        "entries": max((max(log, default=0) for log in logs.values()), default=0),
        "received": {each.reader: len(each.records) for each in load.received()},
    }


def _faults_during(schedule: Schedule, writes: Figures) -> str:
    """Return the longest time without an acknowledged write, with the faults of that time."""
    begin_s, end_s = writes.gap_at_s, writes.gap_at_s + writes.longest_gap_s
    faults = [fault for fault in schedule.faults if fault.begin_s < end_s and fault.end_s > begin_s]
    return f"{begin_s:.1f} to {end_s:.1f} s: {'; '.join(map(str, faults)) or 'no fault'}"


class _LeaderWatch:
    """The number of the present leader, for the targets of faults."""

    def __init__(self) -> None:
        self.number: int | None = None

    async def watch(self, run: Run) -> None:
        while True:
            views = await run.views()
            leaders = {view.raft.term: name for name, view in views.items() if view.raft.role is RaftRole.LEADER}
            if leaders:
                self.number = int(leaders[max(leaders)].removeprefix("node-"))
            await trio.sleep(_POLL_S)


async def _healthy(run: Run, limit_s: float) -> tuple[float, str]:
    """Wait until `garlicfarm status` is healthy at each node; return the time and the last verdicts of the others."""
    began_s = trio.current_time()
    while True:
        found = {node.name: await trio.to_thread.run_sync(node.status) for node in run.nodes}
        bad = {
            name: (code, document.get("verdict", {}).get("text"), [each["text"] for each in document.get("alarms", ())])
            for name, (code, document) in found.items()
            if code != 0
        }
        took_s = trio.current_time() - began_s
        if not bad or took_s > limit_s:
            return took_s, str(bad) if bad else ""
        await trio.sleep(_POLL_S)


async def _recover(run: Run) -> list[str]:
    """Wait until the farm works after the last fault, and is healthy."""
    run.record("all faults have ended")
    took_s, text = await run.until(disagreement, RECOVERY_S)
    run.figures["recovery_s"] = round(took_s, 1)
    findings = [f"not within {RECOVERY_S:g} s after the last fault: {text}"] if text else []
    run.record(f"after {took_s:.1f} s: {text or 'all nodes agree'}")
    took_s, text = await _healthy(run, HEALTHY_S)
    run.figures["healthy_s"] = round(took_s, 1)
    run.record(f"after {took_s:.1f} s more: {text or 'all nodes are healthy'}")
    return [*findings, *([f"not healthy within {HEALTHY_S:g} s: {text}"] if text else [])]


async def _lose_synced_entries(run: Run) -> None:
    """Plant a fault that no farm survives: a majority on disks that skip syncs acknowledges entries and loses power."""
    run.record("planted: three disks skip syncs, then power fails at all nodes with the last entries")
    victims, others = run.nodes[:3], run.nodes[3:]
    for node in others:
        node.kill()
    for node in victims:
        node.disk.set(DiskFaults(skips_syncs=True))
    await trio.sleep(15)
    for node in victims:
        node.kill()
        run.record(f"{node.name} lost {dict(node.disk.cut_power())}")
        node.disk.set(DiskFaults())
    for node in run.nodes:
        node.start()


async def _drain(run: Run, load: Load) -> list[str]:
    """Wait until the followers have received the last write."""
    began_s = trio.current_time()
    logs, _ = await _logs(run)
    last = max((index for log in logs.values() for index, data in log.items() if b'"jepsen"' in data), default=0)
    missing = "everything"
    while trio.current_time() - began_s < DRAIN_S:
        ends = {output.stem: (read_consumer(output) or [(0, b"")])[-1][0] for output in load.outputs}
        ends["the ØMQ subscriber"] = load.subscribed[-1][0] if load.subscribed else 0
        missing = ", ".join(f"{name} at {end}" for name, end in ends.items() if end < last)
        if not missing:
            return []
        await trio.sleep(1.0)
    return [f"not within {DRAIN_S:g} s: all readers receive index {last}; {missing}"]


async def _logs(run: Run) -> tuple[dict[str, dict[int, bytes]], list[str]]:
    """Return the committed log of each node, and findings about terms, states and lengths."""
    _, text = await run.until(disagreement, RECOVERY_S)
    if text:
        return {}, [f"the nodes disagree at the end: {text}"]
    logs: dict[str, dict[int, bytes]] = {}
    heads: dict[str, dict[int, bytes]] = {}
    end = max(view.raft.applied_index for view in (await run.views()).values())
    _, text = await run.until(lambda views: _behind(views, end), RECOVERY_S)
    if text:
        return {}, [text]
    for node in run.nodes:
        try:
            kept = await _entries(node, end)
        except ControlError as error:
            return logs, [f"the log of {node.name} cannot be read: {error}"]
        logs[node.name] = {each.index: each.data for each in kept}
        heads[node.name] = {each.index: f"{each.term} {each.kind.value}".encode() for each in kept}
        if min(logs[node.name], default=0) > 1:
            run.record(f"{node.name} has its log from index {kept[0].index} on")
    _, differences = merged(heads)
    return logs, [f"terms: {each}" for each in differences] + await _states(run)


async def _entries(node: NodeProcess, end: int) -> list[LogEntryView]:
    """Return the committed entries of a node up to an index."""
    entries: list[LogEntryView] = []
    async with ControlClient(node.socket, 10.0) as client:
        first = 1
        while first <= end:
            page = await client.log(first, PAGE)
            entries += page.entries
            if not page.entries:
                break
            first = page.next_index
    return [each for each in entries if each.index <= end]


def _behind(views: dict[str, FarmView], index: int) -> str:
    behind = {name: view.raft.applied_index for name, view in views.items() if view.raft.applied_index < index}
    return f"not applied up to index {index}: {behind}" if behind or len(views) < NODES else ""


async def _states(run: Run) -> list[str]:
    """Compare the state machines of all nodes at one applied index."""
    for _ in range(60):
        views = await run.views()
        if len(views) == NODES and len({view.raft.applied_index for view in views.values()}) == 1:
            states = {name: _state(view) for name, view in views.items()}
            first = next(iter(states.values()))
            return [
                f"the state of {name} differs: {state} and {first}" for name, state in states.items() if state != first
            ]
        await trio.sleep(0.2)
    return ["the nodes did not show one applied index"]


def _state(view: FarmView) -> dict[str, object]:
    """Return the parts of a view that follow from the log alone."""
    return {
        "farm": view.farm,
        "weights": view.weights,
        "removed": view.removed,
        "voters": sorted(map(str, view.raft.voters)),
        "reports": sorted(each.raft_id for each in view.reports),
    }


def write_result(run: Run, findings: Sequence[str]) -> None:
    """Write figures and findings into the run's directory."""
    document = {**run.figures, "findings": list(findings)}
    (run.directory / "result.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def new_run(directory: Path, schedule: Schedule, *, plants_loss: bool) -> tuple[Run, files.Access]:
    library = build_shim(directory)
    access = files.prepare(directory)
    nodes = [NodeProcess(directory, number, library) for number in range(1, NODES + 1)]
    return Run(directory, schedule, nodes, Network(schedule.seed), plants_loss), access
