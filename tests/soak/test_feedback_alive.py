"""A farm that lives, with the pipeline attached: a router that is slowed down rises in cost, and comes back.

Real processes, real Spark. One node is stopped for a part of each second, so its event loop lags, its reports say so,
and the pipeline tells the farm; the file of the Meta LS2 that the publisher handed over is read and verified as a
resolver would read it. On a second farm the pipeline is killed just when a proposal of it is in the log, so that the
batch which made it is repeated.
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
"""What the publisher holds a cost for."""


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """Three nodes."""
    with local_farm(tmp_path / "farm", 3) as made:
        made.start_all()
        made.wait_settled()
        yield made


@contextmanager
def attached_pipeline(farm: Farm, output: Path) -> Iterator[Path]:
    """`garlicfarm pipeline run` beside the farm; what it says is in the file."""
    nodes = [argument for node in farm.nodes for argument in ("--node", str(node.directory))]
    said = output.with_suffix(".log")
    with said.open("wb") as log:
        process = subprocess.Popen(
            command("pipeline", "run", "--trigger", "1", "--master", "local[2]", "--output", output, *nodes),
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield said
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


@contextmanager
def slowed_down(node: Node) -> Iterator[None]:
    """The node's process stands still for a part of each second."""
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
    """The batches of a run: where each one ended (the first index that it did not read), and when each was done."""

    ends: dict[int, int]
    done_ns: dict[int, int]

    @classmethod
    def of(cls, output: Path) -> "Batches":
        """As the checkpoint tells."""
        offsets = {int(file.name): file for file in (output / "checkpoint" / "offsets").glob("[0-9]*")}
        ends = {number: json.loads(file.read_text().splitlines()[-1])["next"] for number, file in offsets.items()}
        commits = (output / "checkpoint" / "commits").glob("[0-9]*")
        return cls(ends, {int(file.name): file.stat().st_mtime_ns for file in commits})

    def reading(self, index: int) -> int:
        """The batch that read the entry."""
        return min(number for number, end in self.ends.items() if end > index)

    def running(self, at_ns: int) -> int:
        """The batch that was under way."""
        return max(number for number, done_ns in self.done_ns.items() if done_ns <= at_ns) + 1


@dataclass(frozen=True, slots=True)
class Published:
    """The structure that was handed over last: when, and the cost of each leaf by hash."""

    at_ns: int
    costs: dict[str, int]

    @classmethod
    def by(cls, farm: Farm) -> "Published":
        """The node of the farm that published it."""
        at_ns, newest = max((path.stat().st_mtime_ns, path) for node in farm.nodes for path in node.structures())
        content = newest.read_bytes()
        entries = read_meta_lease_set(newest).entries
        return cls(at_ns, {_base32(entry): content[content.index(entry) + COST_AT] for entry in entries})


def _base32(digest: bytes) -> str:
    return base64.b32encode(digest).decode().rstrip("=").lower()


class Watch:
    """What the log says of one leaf, from now on, as another node shows it."""

    def __init__(self, victim: Node, by: Node) -> None:
        self._by = by
        self._server_id = victim.view().node.raft_id
        own = (body for _, body in self._entries(0) if body.get("id") == self._server_id)
        self.leaf = hash_of(next(body["destinations"][0]["destination"] for body in own if body.get("destinations")))
        self._begun = max(index for index, _ in self._entries(0))

    def slow_report(self) -> int | None:
        """Index of the first report that shows the lag."""
        reports = ((index, report) for index, report in self._reports() if index > self._begun)
        return next((index for index, report in reports if (report.router.job_lag_ms or 0) >= LAGGING_MS), None)

    def highest_load(self) -> int:
        """What the leaf would have cost most by its server's reports alone."""
        return max(
            leaf_load(report.router, leaf)
            for _, report in self._reports()
            for leaf in report.destinations
            if hash_of(leaf.destination) == self.leaf
        )

    def raised(self) -> tuple[int, int] | None:
        """Index and `throughIndex` of the first factors that let the leaf cost more."""
        # A lag that is not much yet may be enough for them; then they come before the report that we wait for.
        dearer = ((index, said) for index, said in self._factors() if said["factors"].get(self.leaf, 1) > DEARER)
        return next(((index, said["throughIndex"]) for index, said in dearer), None)

    def lowered(self, after: int) -> bool:
        """Whether the last factors after that entry let the leaf go."""
        later = [said["factors"].get(self.leaf) for index, said in self._factors() if index > after]
        named = [factor for factor in later if factor is not None]
        return bool(named) and named[-1] <= DEARER

    def proposals(self) -> list[int]:
        """`throughIndex` of each entry of factors, accepted or not."""
        return [said["throughIndex"] for _, said in self._factors()]

    def _reports(self) -> list[tuple[int, Report]]:
        decoded = ((index, decode(entry.data)) for index, entry in sorted(self._by.entries().items()))
        return [(at, each) for at, each in decoded if isinstance(each, Report) and each.server_id == self._server_id]

    def _factors(self) -> list[tuple[int, Any]]:
        return [(index, body["factors"]) for index, body in self._entries(self._begun) if "factors" in body]

    def _entries(self, after: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, entry in sorted(self._by.entries().items()):
            if index > after and entry.kind is EntryKind.APPLICATION:
                yield index, json.loads(entry.data)


def accepted(node: Node) -> list[int]:
    """`throughIndex` of each proposal that the farm accepted, as a node's trace tells it."""

    async def told(client: ControlClient) -> list[TraceEvent]:
        found: list[TraceEvent] = []
        page = await client.events(limit=1_000)
        while page.events:
            found += page.events
            page = await client.events(page.next_cursor, limit=1_000)
        return found

    return [int(str(event.data["throughIndex"])) for event in node.ask(told) if event.kind == "factors-accepted"]


def test_a_router_that_is_slowed_down_rises_in_cost_within_three_batches_and_comes_back(
    farm: Farm, tmp_path: Path
) -> None:
    output = tmp_path / "tables"
    leader = farm.wait_settled()
    publisher = leader.view().publishing[0].publisher_name
    victim = next(node for node in farm.nodes if node.name not in {leader.name, publisher})
    with attached_pipeline(farm, output) as said:
        # given a pipeline that is warm
        commits = output / "checkpoint" / "commits"
        wait_until(lambda: len(list(commits.glob("[0-9]*"))) >= WARM_BATCHES, BOUND_S, "batches", lambda: tail(said))
        watch = Watch(victim, next(node for node in farm.nodes if node is not victim))
        usual = Published.by(farm).costs[watch.leaf]

        def dearer() -> Published | None:
            found = Published.by(farm)
            return found if found.costs[watch.leaf] >= usual + MARGIN else None

        def dearer_than_any_report() -> int | None:
            cost = Published.by(farm).costs[watch.leaf]
            return cost if cost > watch.highest_load() else None

        # when a router stands still for a part of each second
        with slowed_down(victim):
            rise = wait_until(dearer, BOUND_S, "it costs more", farm.logs)
            first = wait_until(watch.slow_report, BOUND_S, "a report that shows the lag", farm.logs)
            index, through = wait_until(watch.raised, BOUND_S, "factors that name the leaf", lambda: tail(said))
            batches = Batches.of(output)
            highest = wait_until(dearer_than_any_report, BOUND_S, "it costs more than by reports", lambda: tail(said))
        # then the published structure and the pipeline say so within three batches after a report shows it
        shown, risen, told = batches.reading(first), batches.running(rise.at_ns), batches.reading(through)
        print(
            f"report {first} in batch {shown}, factors {index} in batch {told}; cost {usual},"
            f" then {rise.costs[watch.leaf]} in batch {risen}, then {highest}: by reports alone {watch.highest_load()}"
        )
        assert risen - shown <= WITHIN_BATCHES
        assert told - shown <= WITHIN_BATCHES
        assert through in accepted(leader)
        # and when it runs again, factor and cost come back
        began = time.monotonic()
        wait_until(lambda: watch.lowered(index), BOUND_S, "factors that let the leaf go", lambda: tail(said))
        after = wait_until(
            lambda: cost if (cost := Published.by(farm).costs.get(watch.leaf, 255)) < usual + MARGIN else None,
            BOUND_S,
            "it costs less",
        )
        print(f"back after {time.monotonic() - began:.0f} s: cost {after}")


def test_a_pipeline_that_is_killed_behind_each_of_its_proposals_has_none_accepted_twice(
    farm: Farm, tmp_path: Path
) -> None:
    leader = farm.wait_settled()
    victim = next(node for node in farm.nodes if node is not leader)
    watch = Watch(victim, leader)
    with slowed_down(victim):
        for life in range(1, LIVES + 1):
            # given a pipeline that submits
            with attached_pipeline(farm, tmp_path / "tables") as said:
                before = len(watch.proposals())
                wait_until(lambda: len(watch.proposals()) > before, BOUND_S, "a proposal", lambda: tail(said))  # noqa: B023
                # when it is killed before it can note that the batch is done
            print(f"life {life}: made from the log up to {watch.proposals()[before:]}")
    # then the next one repeats the batch with all that comes of it, and the farm takes each proposal once
    proposed, taken = watch.proposals(), accepted(leader)
    print(f"{len(proposed)} proposals, {len(taken)} accepted")
    assert len(proposed) > len(set(proposed)), "no batch was repeated"
    assert taken == sorted(set(proposed))
