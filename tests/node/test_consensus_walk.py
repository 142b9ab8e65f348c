"""Comparison of a tracer with the two walks of `docs/reference/walks.md`: one entry, one election."""

import re
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from consensus.core.effects import Outcome
from consensus.sessions.dedup_state_machine import clock_entry
from tests.node.loopback_group import CALM, LoopbackGroup
from tests.node.walk_tracer import Walk, WalkTracer, serving, until_reached

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "reference" / "walks.md"
HOPS_MAX = 30
ROW = re.compile(r"^\| \d+ \| \[`[\w.]+`\]\((?:\.\./)+(consensus/[\w/]+\.py)#([\w.]+)\)", re.MULTILINE)
QUIET = replace(CALM, heartbeat_ms=1_500)
"""Options with rare heartbeats, so that the traced entry is the leader's only work."""

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
"""The hop of the disk worker's task, which begins a job after a job without writes, such as a prepared segment."""
AN_ELECTION = frozenset({"begin_pre_vote", "begin_vote", "PeerLinks.send", "DiskWorker.submit", "Leader.__init__"})


def documented(heading: str) -> list[tuple[str, str]]:
    """Return the module and function of each row below a heading of the document."""
    chapter = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n#", 1)[0]
    return [(path.removesuffix(".py").replace("/", "."), function) for path, function in ROW.findall(chapter)]


def differences(walk: Walk, heading: str) -> list[str]:
    """Return the differences between the document and the tracer."""
    rows = documented(heading)
    entered = {(module, function) for (_, module), functions in walk.hops.items() for function in functions}
    untraced = [f"documented but not traced: {row}" for row in rows if row not in entered]
    undocumented = [
        f"traced but not documented: {before} -> {module} by {', '.join(sorted(functions))}"
        for (before, module), functions in walk.hops.items()
        if not any((module, function) in rows for function in functions)
    ]
    counted = (
        []
        if len(rows) == len(walk.hops)
        else [f"{len(rows)} hops are documented, {len(walk.hops)} traced: {walk.hops}"]
    )
    return untraced + undocumented + counted


@pytest.mark.parametrize(("heading", "most"), [("One entry", HOPS_MAX), ("One election", HOPS_MAX)])
def test_walk_has_at_most_thirty_hops(heading: str, most: int) -> None:
    assert 0 < len(documented(heading)) <= most


async def test_walk_of_entry_equals_trace_on_leader(tmp_path: Path) -> None:
    tracer = WalkTracer()
    with tracer.installed(), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            # Given a leader with two followers, and a client connected to it
            group = LoopbackGroup(tmp_path, nursery, options=QUIET, eager=True)
            for server in group.ids:
                with serving(server):
                    await group.start(server)
            leader = await group.leader()
            client = group.client()
            await nursery.start(client.run)
            assert (await client.submit([clock_entry(1_000)])).outcome is Outcome.COMMITTED
            # When the client submits an entry
            with tracer.recording(leader, AN_ENTRY) as walk:
                assert (await client.submit([clock_entry(2_000)])).outcome is Outcome.COMMITTED
                await until_reached(walk)
            nursery.cancel_scope.cancel()
    # Then the traced hops equal the documented hops
    assert differences(walk, "One entry") == []


async def elected_walk(directory: Path, tracer: WalkTracer) -> Walk | None:
    """Return the walk of the server that starts last and campaigns immediately.

    Return None if another server was elected, or if its disk still worked for the start (`BUSY_DISK`).
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


async def test_walk_of_election_equals_trace_on_candidate(tmp_path_factory: pytest.TempPathFactory) -> None:
    tracer = WalkTracer()
    walk = None
    with tracer.installed(), trio.fail_after(120):
        while walk is None:
            walk = await elected_walk(tmp_path_factory.mktemp("walk"), tracer)
    assert differences(walk, "One election") == []
