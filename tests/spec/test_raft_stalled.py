"""A leader that gets replies but commits nothing resigns: its disk may hang, and another leader may work.

Check-quorum does not detect this. The followers reply to heartbeats, so the leader would stay until its disk works.
"""

import pytest
from msgspec.structs import replace

from consensus.core.effects import Outcome, Persist, ProposalResolved, Role, Send
from consensus.core.events import DeadlineReached, Proposed, SnapshotTaken
from consensus.core.messages import AppendEntries, EndQuorumEpoch, FetchSnapshot
from consensus.core.model import LogId, SnapshotDescription
from consensus.core.options import PolicyTimes, lan
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import TWO, Bench, group

AT = LogId
STALLED_MS = lan().stall_timeout_ms


def leader_of(bench: Bench) -> Bench:
    """Return a leader of two servers with a durable first entry on both; from then on its own disk hangs."""
    appends = [send for send in bench.lead().all(Send) if isinstance(send.message, AppendEntries)]
    if isinstance(bench, FetchBench):
        bench.fetch(TWO, bench.about.last)
    for append in appends:
        assert isinstance(append.message, AppendEntries)
        bench.matched(TWO, append.message)
    assert bench.about.commit_index == bench.about.last.index
    bench.fast = False
    return bench


def run_with_replies(bench: Bench, up_to_ms: int, *, stored: int) -> list[ProposalResolved]:
    """Pass time with replies of server 2, which has entries up to `stored`; return the resolved proposals."""
    resolved: list[ProposalResolved] = []
    while bench.now < up_to_ms and bench.is_(Role.LEADER):
        if isinstance(bench, FetchBench):
            term = bench.raft._replica.log.term_at(stored)
            assert term is not None
            bench.fetch(TWO, AT(stored, term), commit=bench.about.commit_index)
        bench.now = min(max(bench.now, bench.raft.deadline), bench.now + 100, up_to_ms)
        effects = bench.step(DeadlineReached())
        resolved += [effect for effect in effects if isinstance(effect, ProposalResolved)]
        for append in bench.appends(TWO):
            bench.matched(TWO, append, min(stored, append.previous.index + len(append.entries)))
    return resolved


@pytest.mark.parametrize("kind", [Bench, FetchBench], ids=["append", "fetch"])
def test_leader_without_commits_resigns_if_proposals_wait(kind: type[Bench]) -> None:
    # Given a leader of two servers whose own disk hangs
    bench = leader_of(kind(1, voters=2))
    stored = bench.about.last.index
    bench.propose(b"x", proposal_id=7)
    began_ms = bench.now
    # When its follower replies to every message, and has stored the proposal
    resolved = run_with_replies(bench, began_ms + STALLED_MS - 1, stored=stored + 1)
    assert bench.is_(Role.LEADER)
    resolved += run_with_replies(bench, began_ms + STALLED_MS, stored=stored + 1)
    # Then the leader resigns after five election timeouts, and its client receives an unknown outcome
    assert not bench.is_(Role.LEADER)
    assert [(answer.proposal_id, answer.outcome) for answer in resolved] == [(7, Outcome.UNKNOWN)]


def test_resigning_leader_names_successor_to_fetchers() -> None:
    bench = FetchBench(1, voters=2)
    leader_of(bench)
    stored = bench.about.last.index
    bench.propose(b"x")
    run_with_replies(bench, bench.now + STALLED_MS, stored=stored + 1)
    assert not bench.is_(Role.LEADER)
    (end,) = bench.sent(EndQuorumEpoch, TWO)
    assert end.preferred == (TWO,)


@pytest.mark.parametrize("kind", [Bench, FetchBench], ids=["append", "fetch"])
def test_leader_without_waiting_proposals_stays(kind: type[Bench]) -> None:
    bench = leader_of(kind(1, voters=2))
    stored = bench.about.last.index
    run_with_replies(bench, bench.now + 4 * STALLED_MS, stored=stored)
    assert bench.is_(Role.LEADER)
    # The time counts from the first waiting proposal.
    bench.propose(b"x")
    run_with_replies(bench, bench.now + STALLED_MS - 1, stored=stored)
    assert bench.is_(Role.LEADER)


@pytest.mark.parametrize("kind", [Bench, FetchBench], ids=["append", "fetch"])
def test_commit_extends_time_by_five_election_timeouts(kind: type[Bench]) -> None:
    bench = leader_of(kind(1, voters=2))
    stored = bench.about.last.index
    (first,) = (effect for effect in bench.propose(b"a", proposal_id=1) if isinstance(effect, Persist))
    bench.step(Proposed(proposal_id=2, commands=(b"b",)))
    run_with_replies(bench, bench.now + STALLED_MS - 1, stored=stored + 2)
    committed = bench.persisted(first.number)
    assert [effect.proposal_id for effect in committed if isinstance(effect, ProposalResolved)] == [1]
    run_with_replies(bench, bench.now + STALLED_MS - 1, stored=stored + 2)
    assert bench.is_(Role.LEADER)
    run_with_replies(bench, bench.now + 1, stored=stored + 2)
    assert not bench.is_(Role.LEADER)


def test_single_voter_stays_leader() -> None:
    """No other server could become the leader."""
    bench = Bench(1, voters=1).expired()
    assert bench.is_(Role.LEADER)
    bench.fast = False
    bench.propose(b"x")
    bench.step(DeadlineReached(), after_ms=10 * STALLED_MS)
    assert bench.is_(Role.LEADER)


def leader_with_snapshot(bench: Bench) -> Bench:
    """Return a leader whose log begins with a snapshot that its only follower lacks."""
    bench.lead()
    last = bench.about.last
    first = bench.appends(TWO)
    if isinstance(bench, FetchBench):
        bench.fetch(TWO, last)
    else:
        bench.matched(TWO, first[0])
    snapshot = SnapshotDescription(last, group(2), 1_000_000, 0)
    bench.step(SnapshotTaken(snapshot, last.index + 1))
    return bench


def test_leader_stays_while_follower_fetches_snapshot() -> None:
    # Given a follower that has lost its log, and fetches the snapshot, while a proposal waits for it
    bench = leader_with_snapshot(FetchBench(1, voters=2))
    last = bench.about.last
    bench.propose(b"x")
    # When it fetches a chunk every half second, for longer than the stall timeout
    for offset in range(0, 30_000, 1_000):
        bench.receive(
            TWO,
            FetchSnapshot(
                term=bench.about.term, replica=TWO, snapshot=last, offset=offset, max_bytes=1_000, correlation=offset
            ),
            after_ms=500,
        )
        bench.step(DeadlineReached())
    assert bench.is_(Role.LEADER)
    # Then the leader stays; but it resigns if the follower requests the same chunk repeatedly
    for _ in range(2 * STALLED_MS // 500):
        bench.receive(
            TWO,
            FetchSnapshot(
                term=bench.about.term, replica=TWO, snapshot=last, offset=29_000, max_bytes=1_000, correlation=1
            ),
            after_ms=500,
        )
        bench.step(DeadlineReached())
    assert not bench.is_(Role.LEADER)


def test_stall_timeout_of_zero_refused() -> None:
    with pytest.raises(ValueError, match="every limit of the raft tuning must be at least 1"):
        replace(lan(), policies=PolicyTimes(stall_timeout_ms=0))
