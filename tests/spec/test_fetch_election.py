"""Elections of KRaft (KIP-595): Vote, BeginQuorumEpoch, EndQuorumEpoch, the leader's progress and the cluster id."""

import pytest

from consensus.core.effects import Halt, Persist, Role, Send
from consensus.core.events import ClusterIdKnown, DeadlineReached
from consensus.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    Fetch,
    FetchReply,
    RefusalReason,
    RequestVote,
    VoteReply,
)
from consensus.core.model import Configuration, HardState, LogId, ServerId
from consensus.core.options import lan
from tests.effort import each_case
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, group


def test_new_leader_announces_itself_to_all_voters() -> None:
    """The leader sends BeginQuorumEpoch to all voters of the quorum."""
    bench = FetchBench(1).lead()
    assert [begin.term for begin in bench.sent(BeginQuorumEpoch)] == [2, 2]


def test_leader_repeats_announcement_until_endorsed() -> None:
    """A fetch in the new epoch also counts as an endorsement."""
    bench = FetchBench(1, voters=4).lead()
    (begin,) = bench.sent(BeginQuorumEpoch, TWO)
    bench.receive(TWO, BeginQuorumEpochReply(term=2, leader=ONE, correlation=begin.correlation))
    bench.fetch(THREE, LogId(1, 1))
    bench.step(DeadlineReached(), after_ms=500)
    assert [send.recipient for send in bench.all(Send) if isinstance(send.message, BeginQuorumEpoch)] == [FOUR]


def test_announcement_of_older_epoch_rejected() -> None:
    bench = FetchBench(1, term=5)
    reply = bench.begin(TWO, 4)
    assert (reply.error, reply.term) == (RefusalReason.STALE_TERM, 5)
    assert bench.about.leader is None


def test_announcement_of_second_leader_rejected() -> None:
    """If A leads epoch 5, a request from B in the same epoch is rejected."""
    bench = FetchBench(1)
    bench.begin(TWO, 5)
    assert bench.begin(THREE, 5).error is RefusalReason.ANOTHER_LEADER
    assert bench.about.leader == TWO


def test_candidate_follows_leader_of_its_epoch() -> None:
    bench = FetchBench(1)
    bench.campaign()
    assert (bench.about.role, bench.about.term) == (Role.CANDIDATE, 2)
    fetch = bench.follow(THREE, 2)
    assert (bench.about.role, bench.about.leader, fetch.term) == (Role.FOLLOWER, THREE, 2)


def test_announcement_reply_waits_for_durable_epoch() -> None:
    bench = FetchBench(1, fast=False)
    bench.begin(TWO, 6)
    (persist,) = bench.all(Persist)
    (held,) = (send.after for send in bench.all(Send) if isinstance(send.message, BeginQuorumEpochReply))
    assert (persist.hard_state, held) == (HardState(6), persist.number)


def test_fenced_leader_follows_larger_epoch() -> None:
    """If the error has a larger epoch, the leader adopts it and follows the leader of that epoch."""
    bench = FetchBench(1).lead()
    (begin,) = bench.sent(BeginQuorumEpoch, TWO)
    answer = BeginQuorumEpochReply(term=8, leader=THREE, correlation=begin.correlation, error=RefusalReason.STALE_TERM)
    bench.receive(TWO, answer)
    assert (bench.about.role, bench.about.term, bench.about.leader) == (Role.FOLLOWER, 8, THREE)
    assert bench.sent(Fetch, THREE)


def test_voter_without_fetch_reply_campaigns() -> None:
    """An election starts if no FetchResponse from the current leader arrives within the fetch timeout."""
    bench = FetchBench(1)
    bench.follow(TWO, 2)
    bench.campaign()
    assert [vote.term for vote in bench.sent(RequestVote)] == [3, 3]


def test_leader_replies_postpone_campaign() -> None:
    bench = FetchBench(1)
    fetch = bench.follow(TWO, 2)
    for _ in range(40):
        bench.reply(fetch)
        bench.step(DeadlineReached(), after_ms=100)
        fetch = bench.fetches[TWO]
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, 2)


def test_leader_without_fetches_resigns() -> None:
    """A leader without fetches from a majority of the quorum resigns after the fetch timeout."""
    bench = FetchBench(1).lead()
    bench.step(DeadlineReached(), after_ms=900)
    bench.fetch(TWO, LogId(2, 2), commit=2)
    bench.step(DeadlineReached(), after_ms=900)
    assert bench.is_(Role.LEADER)
    bench.step(DeadlineReached(), after_ms=100)
    assert bench.is_(Role.FOLLOWER)


def test_observer_fetches_do_not_postpone_resignation() -> None:
    bench = FetchBench(1).lead()
    for _ in range(10):
        bench.fetch(FOUR, LogId(2, 2), commit=2)
        bench.step(DeadlineReached(), after_ms=100)
    assert bench.is_(Role.FOLLOWER)


def test_resigning_leader_sorts_successors_by_log_length() -> None:
    """The preferred successors are sorted in descending order by the replicated offset of each voter."""
    bench = FetchBench(1, 1, 1, voters=5).lead()
    for voter, position in ((TWO, LogId(1, 1)), (FOUR, LogId(3, 1)), (FIVE, LogId(2, 1))):
        bench.fetch(voter, position)
    bench.step(DeadlineReached(), after_ms=1_000)
    ends = bench.sent(EndQuorumEpoch)
    assert len(ends) == 4
    assert {end.preferred for end in ends} == {(FOUR, FIVE, TWO, THREE)}


def test_deposed_leader_sends_no_end_of_epoch() -> None:
    bench = FetchBench(1).lead()
    bench.fetch(TWO, LogId(1, 1), term=9)
    assert bench.sent(EndQuorumEpoch) == []


@each_case(("place", "wait_ms"), [(0, 0), (1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (9, 1_000)])
def test_successors_campaign_in_list_order(place: int, wait_ms: int) -> None:
    """Successor 0 campaigns immediately, successor N after MIN(retryBackOffMaxMs, retryBackoffMs * 2^(N - 1))."""
    assert (lan().heartbeat_ms, lan().election_timeout_min_ms) == (100, 1_000)
    bench = FetchBench(1, voters=12)
    bench.begin(TWO, 2)
    others = list(range(3, 13))
    reply = bench.end(TWO, 2, *others[:place], 1, *others[place:])
    assert (reply.error, reply.term) == (None, 2)
    if wait_ms:
        assert bench.sent(RequestVote) == []
        bench.step(DeadlineReached(), after_ms=wait_ms - 1)
        assert bench.sent(RequestVote) == []
        bench.step(DeadlineReached(), after_ms=1)
    assert len(bench.sent(RequestVote)) == 11


def test_end_of_epoch_allows_votes() -> None:
    bench = FetchBench(1)
    bench.begin(TWO, 2)
    assert not bench.request_vote(3, LogId(9, 2), THREE).granted
    bench.end(TWO, 2, 3, 1)
    assert bench.request_vote(3, LogId(9, 2), THREE).granted


def test_end_of_older_epoch_rejected() -> None:
    bench = FetchBench(1)
    bench.begin(TWO, 5)
    assert bench.end(THREE, 4, 1).error is RefusalReason.STALE_TERM


def test_end_of_epoch_of_unknown_leader_rejected() -> None:
    """A request is also rejected if its leader is not the known leader of the epoch."""
    bench = FetchBench(1, term=5)
    assert bench.end(THREE, 5, 1).error is RefusalReason.ANOTHER_LEADER
    assert bench.end(THREE, 6, 1).error is RefusalReason.ANOTHER_LEADER
    bench.begin(TWO, 7)
    assert bench.end(THREE, 7, 1).error is RefusalReason.ANOTHER_LEADER
    assert bench.about.leader == TWO


def test_end_of_epoch_without_own_id_rejected() -> None:
    """A server that is not among the preferred successors replies INCONSISTENT_VOTER_SET."""
    bench = FetchBench(1)
    bench.begin(TWO, 5)
    assert bench.end(TWO, 5, 3, 4).error is RefusalReason.INCONSISTENT_VOTERS


def test_end_of_epoch_accepted_after_refused_fetch() -> None:
    bench = FetchBench(1)
    fetch = bench.follow(TWO, 2)
    bench.reply(fetch, error=RefusalReason.NOT_LEADER, leader=None)
    assert bench.about.leader is None
    assert bench.end(TWO, 2, 1, 3).error is None
    assert bench.sent(RequestVote)


def test_vote_for_non_voter_refused_but_epoch_adopted() -> None:
    """Vote, step 4a. The epoch is adopted, because an incomplete change may make the candidate a voter."""
    bench = FetchBench(1)
    reply = bench.request_vote(4, LogId(1, 1), FOUR)
    assert (reply.granted, reply.error, reply.term) == (False, RefusalReason.INCONSISTENT_VOTERS, 4)
    assert bench.about.term == 4


def test_vote_for_non_voter_with_longer_log_granted() -> None:
    """A refusal could block every election after a change of the voters that has reached only one server."""
    bench = FetchBench(1)
    assert bench.request_vote(4, LogId(2, 1), FOUR).granted


def test_vote_granted_once_per_epoch() -> None:
    """Vote, step 3: a second grant in an epoch goes only to the same candidate."""
    bench = FetchBench(1)
    assert bench.request_vote(4, LogId(1, 1), TWO).granted
    assert not bench.request_vote(4, LogId(1, 1), THREE).granted
    assert bench.request_vote(4, LogId(1, 1), TWO).granted


def test_vote_request_of_other_cluster_refused() -> None:
    """Vote, step 1: INCONSISTENT_CLUSTER_ID. In a vote it is only a rejection."""
    bench = FetchBench(1, cluster_id="ours")
    bench.receive(TWO, RequestVote(term=4, candidate=TWO, last=LogId(9, 3), correlation=7, cluster_id="theirs"))
    (reply,) = bench.sent(VoteReply, TWO)
    assert (reply.granted, reply.error) == (False, RefusalReason.FOREIGN_CLUSTER)
    assert (bench.about.term, bench.all(Halt)) == (1, [])


@pytest.mark.parametrize(("own", "remote"), [(None, "theirs"), ("ours", None), ("ours", "ours")])
def test_unknown_cluster_id_not_compared(own: str | None, remote: str | None) -> None:
    """An unknown cluster id is null, and the receiver skips the validation."""
    bench = FetchBench(1, cluster_id=own)
    assert bench.begin(TWO, 3, remote).error is None
    leader = FetchBench(1, cluster_id=own).lead()
    (reply,) = leader.fetch(TWO, LogId(1, 1), cluster_id=remote)
    assert reply.error is None


def test_fetch_of_other_cluster_refused() -> None:
    """Fetch, step 1: the cluster id must match unless it is null."""
    bench = FetchBench(1, cluster_id="ours").lead()
    (reply,) = bench.fetch(TWO, LogId(2, 2), cluster_id="theirs", term=9)
    assert (reply.error, reply.leader) == (RefusalReason.FOREIGN_CLUSTER, ONE)
    assert (bench.about.term, bench.about.commit_index) == (2, 0)


def test_fetch_reply_of_other_cluster_halts_follower() -> None:
    """INCONSISTENT_CLUSTER_ID in a fetch reply is fatal: the elected leader has another cluster id."""
    bench = FetchBench(1, cluster_id="ours")
    fetch = bench.follow(TWO, 2)
    bench.reply(fetch, error=RefusalReason.FOREIGN_CLUSTER)
    (halt,) = bench.all(Halt)
    assert "server 2" in halt.reason
    assert "ours" in halt.reason


def test_announcement_of_other_cluster_halts_server() -> None:
    """A server exits if it receives BeginQuorumEpoch from an elected leader with another cluster id."""
    bench = FetchBench(1, cluster_id="ours")
    assert bench.begin(TWO, 2, "theirs").error is RefusalReason.FOREIGN_CLUSTER
    assert bench.all(Halt)
    assert bench.about.term == 1


def test_cluster_id_of_unelected_sender_does_not_halt() -> None:
    """If such a sender halted this server, one misconfigured server could stop a correct majority."""
    bench = FetchBench(1, term=3, cluster_id="ours")
    assert bench.begin(FIVE, 9, "theirs").error is RefusalReason.FOREIGN_CLUSTER
    assert bench.all(Halt) == []
    bench.begin(TWO, 2, "theirs")
    assert bench.all(Halt) == []
    bench.end(TWO, 9, 1, cluster_id="theirs")
    assert (bench.all(Halt), bench.about.term) == ([], 3)


def test_cluster_id_from_log_included_in_requests() -> None:
    """All fetch requests include the cluster id after its commitment."""
    bench = FetchBench(1)
    assert bench.follow(TWO, 2).cluster_id is None
    bench.step(ClusterIdKnown("ours"))
    bench.reply(bench.fetches[TWO])
    bench.step(DeadlineReached(), after_ms=100)
    assert bench.fetches[TWO].cluster_id == "ours"
    bench.campaign()
    assert {vote.cluster_id for vote in bench.sent(RequestVote)} == {"ours"}


def test_observer_tries_voters_in_random_order() -> None:
    """On initialization an observer sends fetches to random voters until it finds the leader."""
    orders = set()
    for seed in range(20):
        bench = FetchBench(voters=5, configuration=_without_one(), seed=seed)
        tried: list[ServerId] = [*bench.fetches]
        while len(tried) < 4:
            bench.step(DeadlineReached(), after_ms=600)
            tried += [send.recipient for send in bench.all(Send) if isinstance(send.message, Fetch)]
        assert sorted(tried) == [2, 3, 4, 5]
        orders.add(tuple(tried))
        last = bench.fetches[tried[-1]]
        leader = tried[0]
        bench.reply(last, sender=tried[-1], leader=leader, term=3, error=RefusalReason.STALE_TERM)
        assert bench.about.leader == leader
        assert bench.sent(Fetch, leader)
    assert len(orders) > 5


def test_observer_never_campaigns() -> None:
    bench = FetchBench(voters=5, configuration=_without_one())
    for _ in range(10):
        bench.campaign()
        assert bench.sent(RequestVote) == []
    assert bench.about.term == 0


def test_redirected_server_still_grants_votes() -> None:
    bench = FetchBench(1)
    fetch = bench.follow(TWO, 2)
    bench.reply(fetch, error=RefusalReason.STALE_TERM, term=4, leader=THREE)
    assert bench.request_vote(5, LogId(1, 1), TWO).granted


def test_confirmation_needs_reply_to_request_of_its_round() -> None:
    """A fetch does not confirm a round: it may have been sent before the election of another leader."""
    bench = FetchBench(1).lead()
    leader = bench.raft._role.as_leader
    assert leader is not None
    leader.replication.confirm(5)
    bench.fetch(TWO, LogId(2, 2))
    assert leader.tracker.confirmed_round < 5
    (begin,) = bench.sent(BeginQuorumEpoch, TWO) or _begins_now(bench)
    bench.receive(TWO, BeginQuorumEpochReply(term=2, leader=ONE, correlation=begin.correlation))
    assert leader.tracker.confirmed_round == 5


def test_description_has_position_of_each_replica() -> None:
    bench = FetchBench(1).lead()
    bench.fetch(TWO, LogId(2, 2), commit=2)
    two, three = bench.about.followers
    assert (two.server_id, two.match, two.next, two.in_flight, two.contact_ms) == (TWO, 2, 3, 1, 0)
    assert (three.server_id, three.match, three.contact_ms) == (THREE, 0, None)
    assert bench.sent(FetchReply) == []


def _begins_now(bench: FetchBench) -> list[BeginQuorumEpoch]:
    """Return the announcement that `confirm` queued; it leaves with the next step."""
    bench.step(DeadlineReached())
    return bench.sent(BeginQuorumEpoch, TWO)


def _without_one() -> Configuration:
    return Configuration(group(5).voters[1:])
