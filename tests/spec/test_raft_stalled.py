"""A leader that is answered but commits nothing gives way: its disk may hang, and another could do better.

Check-quorum does not see it. The followers answer heartbeats, so the leader would stay for as long as its disk hangs.
"""

from dataclasses import replace

import pytest

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
    """The leader of two servers, its first entry durable with both; from then on its own disk hangs."""
    appends = [send for send in bench.lead() if isinstance(send, Send) and isinstance(send.message, AppendEntries)]
    if isinstance(bench, FetchBench):
        bench.fetch(TWO, bench.about.last)
    for append in appends:
        assert isinstance(append.message, AppendEntries)
        bench.matched(TWO, append.message)
    assert bench.about.commit_index == bench.about.last.index
    bench.fast = False
    return bench


def live_on(bench: Bench, up_to_ms: int, *, stored: int) -> list[ProposalResolved]:
    """Both followers go on answering, and hold entries up to `stored`; returns what clients were told."""
    told: list[ProposalResolved] = []
    while bench.now < up_to_ms and bench.is_(Role.LEADER):
        if isinstance(bench, FetchBench):
            term = bench.raft._replica.log.term_at(stored)
            assert term is not None
            bench.fetch(TWO, AT(stored, term), commit=bench.about.commit_index)
        bench.now = min(max(bench.now, bench.raft.deadline), bench.now + 100, up_to_ms)
        effects = bench.step(DeadlineReached())
        told += [effect for effect in effects if isinstance(effect, ProposalResolved)]
        for append in bench.appends(TWO):
            bench.matched(TWO, append, min(stored, append.previous.index + len(append.entries)))
    return told


@pytest.mark.parametrize("kind", [Bench, FetchBench], ids=["append", "fetch"])
def test_a_leader_that_commits_nothing_while_proposals_wait_resigns(kind: type[Bench]) -> None:
    # Given a leader of two servers whose own disk hangs
    bench = leader_of(kind(1, voters=2))
    stored = bench.about.last.index
    bench.propose(b"x", proposal_id=7)
    began_ms = bench.now
    # When its follower answers all the time, and has even stored what was proposed
    told = live_on(bench, began_ms + STALLED_MS - 1, stored=stored + 1)
    assert bench.is_(Role.LEADER)
    told += live_on(bench, began_ms + STALLED_MS, stored=stored + 1)
    # Then after five election timeouts the leader gives way, and its client is told that the outcome is unknown
    assert not bench.is_(Role.LEADER)
    assert [(answer.proposal_id, answer.outcome) for answer in told] == [(7, Outcome.UNKNOWN)]


def test_where_followers_fetch_it_names_the_next_leader() -> None:
    bench = FetchBench(1, voters=2)
    leader_of(bench)
    stored = bench.about.last.index
    bench.propose(b"x")
    live_on(bench, bench.now + STALLED_MS, stored=stored + 1)
    assert not bench.is_(Role.LEADER)
    (end,) = bench.sent(EndQuorumEpoch, TWO)
    assert end.preferred == (TWO,)


@pytest.mark.parametrize("kind", [Bench, FetchBench], ids=["append", "fetch"])
def test_a_leader_for_which_no_proposal_waits_stays_however_long_it_commits_nothing(kind: type[Bench]) -> None:
    bench = leader_of(kind(1, voters=2))
    stored = bench.about.last.index
    live_on(bench, bench.now + 4 * STALLED_MS, stored=stored)
    assert bench.is_(Role.LEADER)
    # And the time is counted from the first proposal that waits.
    bench.propose(b"x")
    live_on(bench, bench.now + STALLED_MS - 1, stored=stored)
    assert bench.is_(Role.LEADER)


@pytest.mark.parametrize("kind", [Bench, FetchBench], ids=["append", "fetch"])
def test_each_commit_gives_a_leader_five_election_timeouts_more(kind: type[Bench]) -> None:
    bench = leader_of(kind(1, voters=2))
    stored = bench.about.last.index
    (first,) = (effect for effect in bench.propose(b"a", proposal_id=1) if isinstance(effect, Persist))
    bench.step(Proposed(proposal_id=2, commands=(b"b",)))
    live_on(bench, bench.now + STALLED_MS - 1, stored=stored + 2)
    committed = bench.persisted(first.number)
    assert [effect.proposal_id for effect in committed if isinstance(effect, ProposalResolved)] == [1]
    live_on(bench, bench.now + STALLED_MS - 1, stored=stored + 2)
    assert bench.is_(Role.LEADER)
    live_on(bench, bench.now + 1, stored=stored + 2)
    assert not bench.is_(Role.LEADER)


def test_the_only_voter_stays_because_no_server_could_take_over() -> None:
    bench = Bench(1, voters=1)
    bench.expire()
    assert bench.is_(Role.LEADER)
    bench.fast = False
    bench.propose(b"x")
    bench.step(DeadlineReached(), after_ms=10 * STALLED_MS)
    assert bench.is_(Role.LEADER)


def compacted(bench: Bench) -> Bench:
    """A leader whose log begins with a snapshot that its only follower lacks."""
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


def test_a_leader_stays_while_its_follower_takes_a_snapshot_chunk_by_chunk() -> None:
    # Given a follower that has lost its log, and fetches the snapshot; a proposal waits for it
    bench = compacted(FetchBench(1, voters=2))
    last = bench.about.last
    bench.propose(b"x")
    # When it takes a chunk every half second, for longer than a leader that commits nothing may stay
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
    # Then it still leads; but not if the follower asks for the same chunk again and again
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


def test_a_tuning_without_patience_is_refused() -> None:
    with pytest.raises(ValueError, match="every limit of the raft tuning must be at least 1"):
        replace(lan(), policies=PolicyTimes(stall_timeout_ms=0))
