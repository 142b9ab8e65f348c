"""A tracer checks each hop of the two walks of `docs/reference/walks.md`: one entry, one election."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from consensus.core.effects import Outcome
from consensus.sessions.dedup_state_machine import clock_entry
from tests.node.loopback_group import CALM, LoopbackGroup
from tests.node.walk_tracer import Walk, WalkTracer, serving, until_reached

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "reference" / "walks.md"
HOPS_MAX = 30
ROW = re.compile(r"^\| \d+ \| \[`[\w.]+`\]\((?:\.\./)+(consensus/[\w/]+\.py)#([\w.]+)\)", re.MULTILINE)
QUIET = replace(CALM, heartbeat_ms=1_500)
"""Nothing else is under way while an entry passes."""

AN_ENTRY = frozenset(
    {
        "Log.append",
        "ClientConnection.post",
        "DirectStream.send_now",
        "Storage.plan",
        "DiskWorker.submit",
        "DiskWorker._ended",
        "_Call.perform",
        "ConsensusServer._job_done",
        "ProgressTracker.acknowledge",
        "ServerConnection._settle",
    }
)
BUSY_DISK = (None, "consensus.storage.disk_worker")
"""The end of a job that is no group of writes, such as the preparation of a segment: its task then begins the next."""
AN_ELECTION = frozenset({"begin_pre_vote", "begin_vote", "PeerLinks.send", "DiskWorker.submit", "Leader.__init__"})


def told(heading: str) -> list[tuple[str, str]]:
    """The module and function of each row below a heading of the document."""
    chapter = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n#", 1)[0]
    return [(path.removesuffix(".py").replace("/", "."), function) for path, function in ROW.findall(chapter)]


def differences(walk: Walk, heading: str) -> list[str]:
    """What the document and the tracer do not agree on."""
    rows = told(heading)
    entered = {(module, function) for (_, module), functions in walk.hops.items() for function in functions}
    unseen = [f"told but not seen: {row}" for row in rows if row not in entered]
    untold = [
        f"seen but not told: {before} -> {module} by {', '.join(sorted(functions))}"
        for (before, module), functions in walk.hops.items()
        if not any((module, function) in rows for function in functions)
    ]
    counted = [] if len(rows) == len(walk.hops) else [f"{len(rows)} hops are told, {len(walk.hops)} seen: {walk.hops}"]
    return unseen + untold + counted


@pytest.mark.parametrize(("heading", "most"), [("One entry", HOPS_MAX), ("One election", HOPS_MAX)])
def test_a_walk_has_at_most_thirty_hops(heading: str, most: int) -> None:
    assert 0 < len(told(heading)) <= most


async def test_the_walk_of_an_entry_is_what_the_tracer_sees_on_the_leader(tmp_path: Path) -> None:
    tracer = WalkTracer()
    with tracer.installed(), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            # Given a leader with two followers, and a client that has found it
            group = LoopbackGroup(tmp_path, nursery, options=QUIET, eager=True)
            for server in group.ids:
                with serving(server):
                    await group.start(server)
            leader = await group.leader()
            client = group.client()
            await nursery.start(client.run)
            assert (await client.submit([clock_entry(1_000)])).outcome is Outcome.COMMITTED
            # When it submits an entry
            with tracer.recording(leader, AN_ENTRY) as walk:
                assert (await client.submit([clock_entry(2_000)])).outcome is Outcome.COMMITTED
                await until_reached(walk)
            nursery.cancel_scope.cancel()
    # Then the entry has passed what the document says
    assert differences(walk, "One entry") == []


async def elected_walk(directory: Path, tracer: WalkTracer) -> Walk | None:
    """The walk of the server that starts last and campaigns at once.

    None if another server was quicker after all, or if its disk was still at work for the start (`BUSY_DISK`).
    """
    async with trio.open_nursery() as nursery:
        group = LoopbackGroup(directory, nursery, options=QUIET, eager=True)
        for server in group.ids[:-1]:
            with serving(server):
                await group.start(server)
        candidate = group.ids[-1]
        with tracer.recording(candidate, AN_ELECTION) as walk:
            with serving(candidate):
                await group.start(candidate)
            elected = await group.leader() == candidate
            if elected:
                await until_reached(walk)
        nursery.cancel_scope.cancel()
    return walk if elected and BUSY_DISK not in walk.hops else None


async def test_the_walk_of_an_election_is_what_the_tracer_sees_on_the_candidate(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tracer = WalkTracer()
    walk = None
    with tracer.installed(), trio.fail_after(120):
        while walk is None:
            walk = await elected_walk(tmp_path_factory.mktemp("walk"), tracer)
    assert differences(walk, "One election") == []
