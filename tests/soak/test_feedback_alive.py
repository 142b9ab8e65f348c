"""A running farm with the pipeline: a slowed router's cost rises, and falls again afterwards.

Real processes, real Spark. One node is stopped for a part of each second, so its event loop lags and its reports show
the lag. The pipeline submits factors to the farm. The published Meta LS2 file is read and verified as a resolver would
do it. On a second farm the pipeline is killed when one of its proposals is in the log, so the next run repeats that
batch.
"""

import base64
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bridge.api.log import EntryKind
from bridge.api.trace import TraceEvent
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Report
from bridge.core.publishing.lease_set import leaf_load
from bridge.node.control.client import ControlClient
from bridge.wire.log.entries import decode
from pipeline.source.offsets import entries_before
from tests.end_to_end.farm import Farm, Node, command, local_farm, tail, wait_until
from tests.end_to_end.layout import read_meta_lease_set
from tests.processes import END_S

pytestmark = pytest.mark.soak

STOPPED_S, RUNNING_S = 0.6, 0.4
LAGGING_MS = 150.0
COST_AT = 35
BOUND_S = 240.0
WARM_BATCHES = 6
WITHIN_BATCHES = 3
LIVES = 4
DEARER = 1.05
MARGIN = 10
"""The publisher keeps a published cost until it differs by this margin."""


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with local_farm(tmp_path / "farm", 3) as made:
        made.start_all()
        made.wait_settled()
        yield made


@contextmanager
def attached_pipeline(farm: Farm, output: Path) -> Iterator[Path]:
    """Run `garlicfarm pipeline run` alongside the farm; yield the file with its log."""
    nodes = [argument for node in farm.nodes for argument in ("--node", str(node.directory))]
    log_file = output.with_suffix(".log")
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command("pipeline", "run", "--trigger", "1", "--master", "local[2]", "--output", output, *nodes),
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield log_file
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


@contextmanager
def slowed_down(node: Node) -> Iterator[None]:
    """Stop the node's process for a part of each second."""
    over = threading.Event()

    def slow() -> None:
        while not over.is_set():
            os.kill(node.pid, signal.SIGSTOP)
            over.wait(STOPPED_S)
            os.kill(node.pid, signal.SIGCONT)
            over.wait(RUNNING_S)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(END_S)
        os.kill(node.pid, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of a run: their ends (the first unread index), and their times of completion."""

    ends: dict[int, int]
    done_ns: dict[int, int]

    @classmethod
    def of(cls, output: Path) -> "Batches":
        """Read the batches from the checkpoint."""
        offsets = {int(file.name): file for file in (output / "checkpoint" / "offsets").glob("[0-9]*")}
        read = {number: json.loads(file.read_text().splitlines()[-1]) for number, file in offsets.items()}
        ends = {number: entries_before(offset) + 1 for number, offset in read.items()}
        commits = (output / "checkpoint" / "commits").glob("[0-9]*")
        return cls(ends, {int(file.name): file.stat().st_mtime_ns for file in commits})

    def reading(self, index: int) -> int:
        return min(number for number, end in self.ends.items() if end > index)

    def running(self, at_ns: int) -> int:
        return max(number for number, done_ns in self.done_ns.items() if done_ns <= at_ns) + 1


@dataclass(frozen=True, slots=True)
class Published:
    """The latest published structure: its time, and the cost of each leaf by hash."""

    at_ns: int
    costs: dict[str, int]

    @classmethod
    def by(cls, farm: Farm) -> "Published":
        """Read the latest structure of all nodes of the farm."""
        at_ns, newest = max((path.stat().st_mtime_ns, path) for node in farm.nodes for path in node.structures())
        content = newest.read_bytes()
        entries = read_meta_lease_set(newest).entries
        return cls(at_ns, {_base32(entry): content[content.index(entry) + COST_AT] for entry in entries})


def _base32(digest: bytes) -> str:
    return base64.b32encode(digest).decode().rstrip("=").lower()


class Watch:
    """The log's entries about one leaf from now on, as shown by another node."""

    def __init__(self, victim: Node, by: Node) -> None:
        self._by = by
        self._server_id = victim.view().node.raft_id
        own = (body for _, body in self._entries(0) if body.get("id") == self._server_id)
        self.leaf = hash_of(next(body["destinations"][0]["destination"] for body in own if body.get("destinations")))
        self._begun = max(index for index, _ in self._entries(0))

    def slow_report(self) -> int | None:
        """Return the index of the first report that shows the lag."""
        reports = ((index, report) for index, report in self._reports() if index > self._begun)
        return next((index for index, report in reports if (report.router.job_lag_ms or 0) >= LAGGING_MS), None)

    def highest_load(self) -> int:
        """Return the highest cost of the leaf from its server's reports alone."""
        return max(
            leaf_load(report.router, leaf)
            for _, report in self._reports()
            for leaf in report.destinations
            if hash_of(leaf.destination) == self.leaf
        )

    def raised_factors(self) -> tuple[int, int] | None:
        """Return index and `throughIndex` of the first factors that raise the leaf's cost."""
        # A small lag may already raise the factor; then the factors come before the report that the test waits for.
        dearer = (
            (index, factors) for index, factors in self._factors() if factors["factors"].get(self.leaf, 1) > DEARER
        )
        return next(((index, factors["throughIndex"]) for index, factors in dearer), None)

    def has_lowered_factor(self, after: int) -> bool:
        """Return True if the last factors after that entry no longer raise the leaf's cost."""
        later = [factors["factors"].get(self.leaf) for index, factors in self._factors() if index > after]
        named = [factor for factor in later if factor is not None]
        return bool(named) and named[-1] <= DEARER

    def proposals(self) -> list[int]:
        return [factors["throughIndex"] for _, factors in self._factors()]

    def _reports(self) -> list[tuple[int, Report]]:
        decoded = ((index, decode(entry.data)) for index, entry in sorted(self._by.entries().items()))
        return [(at, each) for at, each in decoded if isinstance(each, Report) and each.server_id == self._server_id]

    def _factors(self) -> list[tuple[int, Any]]:
        return [(index, body["factors"]) for index, body in self._entries(self._begun) if "factors" in body]

    def _entries(self, after: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, entry in sorted(self._by.entries().items()):
            if index > after and entry.kind is EntryKind.APPLICATION:
                yield index, json.loads(entry.data)


def accepted_proposals(node: Node) -> list[int]:
    """Return the `throughIndex` of each accepted proposal, from a node's trace."""

    async def all_events(client: ControlClient) -> list[TraceEvent]:
        found: list[TraceEvent] = []
        page = await client.events(limit=1_000)
        while page.events:
            found += page.events
            page = await client.events(page.next_cursor, limit=1_000)
        return found

    return [int(str(event.data["throughIndex"])) for event in node.ask(all_events) if event.kind == "factors-accepted"]


def test_cost_of_slowed_router_rises_within_three_batches(farm: Farm, tmp_path: Path) -> None:
    output = tmp_path / "tables"
    leader = farm.wait_settled()
    publisher = leader.view().publishing[0].publisher_name
    victim = next(node for node in farm.nodes if node.name not in {leader.name, publisher})
    with attached_pipeline(farm, output) as log_file:
        # Given a pipeline that has run some batches
        commits = output / "checkpoint" / "commits"
        wait_until(
            lambda: len(list(commits.glob("[0-9]*"))) >= WARM_BATCHES, BOUND_S, "batches", lambda: tail(log_file)
        )
        watch = Watch(victim, next(node for node in farm.nodes if node is not victim))
        usual = Published.by(farm).costs[watch.leaf]

        def dearer() -> Published | None:
            found = Published.by(farm)
            return found if found.costs[watch.leaf] >= usual + MARGIN else None

        def dearer_than_any_report() -> int | None:
            cost = Published.by(farm).costs[watch.leaf]
            return cost if cost > watch.highest_load() else None

        # When a router is stopped for a part of each second
        with slowed_down(victim):
            rise = wait_until(dearer, BOUND_S, "a higher cost", farm.logs)
            first = wait_until(watch.slow_report, BOUND_S, "a report that shows the lag", farm.logs)
            index, through = wait_until(
                watch.raised_factors, BOUND_S, "factors that name the leaf", lambda: tail(log_file)
            )
            batches = Batches.of(output)
            highest = wait_until(
                dearer_than_any_report, BOUND_S, "a cost above the highest cost from reports", lambda: tail(log_file)
            )
        # Then structure and factors show the lag within three batches after the first report with the lag
        shown, risen, submitted = batches.reading(first), batches.running(rise.at_ns), batches.reading(through)
        print(
            f"report {first} in batch {shown}, factors {index} in batch {submitted}; cost {usual},"
            f" then {rise.costs[watch.leaf]} in batch {risen}, then {highest}: by reports alone {watch.highest_load()}"
        )
        assert risen - shown <= WITHIN_BATCHES
        assert submitted - shown <= WITHIN_BATCHES
        assert through in accepted_proposals(leader)
        # And when it runs again, factor and cost fall
        began = time.monotonic()
        wait_until(
            lambda: watch.has_lowered_factor(index),
            BOUND_S,
            "factors that no longer name the leaf",
            lambda: tail(log_file),
        )
        after = wait_until(
            lambda: cost if (cost := Published.by(farm).costs.get(watch.leaf, 255)) < usual + MARGIN else None,
            BOUND_S,
            "the usual cost",
        )
        print(f"back after {time.monotonic() - began:.0f} s: cost {after}")


def test_proposal_of_killed_pipeline_is_accepted_once(farm: Farm, tmp_path: Path) -> None:
    leader = farm.wait_settled()
    victim = next(node for node in farm.nodes if node is not leader)
    watch = Watch(victim, leader)
    with slowed_down(victim):
        for life in range(1, LIVES + 1):
            # Given a pipeline that submits factors
            with attached_pipeline(farm, tmp_path / "tables") as log_file:
                before = len(watch.proposals())
                wait_until(lambda: len(watch.proposals()) > before, BOUND_S, "a proposal", lambda: tail(log_file))  # noqa: B023
                # When it is killed before it records the end of the batch
            print(f"run {life}: proposals from the log up to {watch.proposals()[before:]}")
    # Then the next run repeats the batch and its proposal, and the farm accepts each proposal once
    proposed, taken = watch.proposals(), accepted_proposals(leader)
    print(f"{len(proposed)} proposals, {len(taken)} accepted")
    assert len(proposed) > len(set(proposed)), "no batch was repeated"
    assert taken == sorted(set(proposed))
