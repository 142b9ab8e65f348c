"""KIP-595, Vote, BeginQuorumEpoch, EndQuorumEpoch, the leader's progress and the cluster id."""

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
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, group


def test_a_new_leader_announces_itself_to_every_voter() -> None:
    """It sends BeginQuorumEpoch to all of the voters in the quorum."""
    bench = FetchBench(1)
    bench.lead()
    assert [begin.term for begin in bench.sent(BeginQuorumEpoch)] == [2, 2]


def test_a_leader_announces_itself_until_each_voter_has_endorsed_it() -> None:
    """It keeps sending until the endorsement; a fetch of the new epoch is one, too."""
    bench = FetchBench(1, voters=4)
    bench.lead()
    (begin,) = bench.sent(BeginQuorumEpoch, TWO)
    bench.receive(TWO, BeginQuorumEpochReply(term=2, leader=ONE, correlation=begin.correlation))
    bench.fetch(THREE, LogId(1, 1))
    bench.step(DeadlineReached(), after_ms=500)
    assert [send.recipient for send in bench.all(Send) if isinstance(send.message, BeginQuorumEpoch)] == [FOUR]


def test_an_announcement_of_an_older_epoch_is_rejected() -> None:
    """If the epoch is smaller than the known one, the request is rejected."""
    bench = FetchBench(1, term=5)
    reply = bench.begin(TWO, 4)
    assert (reply.error, reply.term) == (RefusalReason.STALE_TERM, 5)
    assert bench.about.leader is None


def test_an_announcement_that_contradicts_the_known_leader_is_rejected() -> None:
    """If A is known to lead epoch 5, a request from B in the same epoch is rejected."""
    bench = FetchBench(1)
    bench.begin(TWO, 5)
    assert bench.begin(THREE, 5).error is RefusalReason.ANOTHER_LEADER
    assert bench.about.leader == TWO


def test_a_server_that_accepts_an_announcement_follows_and_fetches_at_once() -> None:
    """As soon as it accepts, it becomes a follower and begins to send fetches to the new leader."""
    bench = FetchBench(1)
    bench.campaign()
    asked = bench.follow(THREE, 2)
    assert (bench.about.role, bench.about.leader, asked.term) == (Role.FOLLOWER, THREE, 2)


def test_a_candidate_follows_the_leader_that_announces_itself_in_its_own_epoch() -> None:
    bench = FetchBench(1)
    bench.campaign()
    assert (bench.about.role, bench.about.term) == (Role.CANDIDATE, 2)
    asked = bench.follow(THREE, 2)
    assert (bench.about.role, bench.about.leader, asked.term) == (Role.FOLLOWER, THREE, 2)


def test_an_acceptance_leaves_when_the_epoch_is_durable() -> None:
    bench = FetchBench(1, fast=False)
    bench.begin(TWO, 6)
    (persist,) = bench.all(Persist)
    (held,) = (send.after for send in bench.all(Send) if isinstance(send.message, BeginQuorumEpochReply))
    assert (persist.hard_state, held) == (HardState(6), persist.number)


def test_a_fenced_leader_follows_the_larger_epoch() -> None:
    """If the error says that the voter knows a larger epoch, update the state and follow that leader."""
    bench = FetchBench(1)
    bench.lead()
    (begin,) = bench.sent(BeginQuorumEpoch, TWO)
    answer = BeginQuorumEpochReply(term=8, leader=THREE, correlation=begin.correlation, error=RefusalReason.STALE_TERM)
    bench.receive(TWO, answer)
    assert (bench.about.role, bench.about.term, bench.about.leader) == (Role.FOLLOWER, 8, THREE)
    assert bench.sent(Fetch, THREE)


def test_a_voter_that_gets_no_fetch_response_campaigns() -> None:
    """No FetchResponse from the current leader within the fetch timeout: a new election."""
    bench = FetchBench(1)
    bench.follow(TWO, 2)
    bench.campaign()
    assert [vote.term for vote in bench.sent(RequestVote)] == [3, 3]


def test_every_answer_of_the_leader_puts_the_campaign_off() -> None:
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    for _ in range(40):
        bench.reply(asked)
        bench.step(DeadlineReached(), after_ms=100)
        asked = bench.asked[TWO]
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, 2)


def test_a_leader_whose_voters_do_not_fetch_resigns() -> None:
    """Without fetches from a majority of the quorum within the fetch timeout it is no leader any more."""
    bench = FetchBench(1)
    bench.lead()
    bench.step(DeadlineReached(), after_ms=900)
    bench.fetch(TWO, LogId(2, 2), commit=2)
    bench.step(DeadlineReached(), after_ms=900)
    assert bench.is_(Role.LEADER)
    bench.step(DeadlineReached(), after_ms=100)
    assert bench.is_(Role.FOLLOWER)


def test_observers_do_not_keep_a_leader_from_resigning() -> None:
    bench = FetchBench(1)
    bench.lead()
    for _ in range(10):
        bench.fetch(FOUR, LogId(2, 2), commit=2)
        bench.step(DeadlineReached(), after_ms=100)
    assert bench.is_(Role.FOLLOWER)


def test_a_leader_that_resigns_names_its_successors_by_the_length_of_their_logs() -> None:
    """The preferred successors are sorted in descending order by each voter's replicated offset."""
    bench = FetchBench(1, 1, 1, voters=5)
    bench.lead()
    for voter, position in ((TWO, LogId(1, 1)), (FOUR, LogId(3, 1)), (FIVE, LogId(2, 1))):
        bench.fetch(voter, position)
    bench.step(DeadlineReached(), after_ms=1_000)
    ends = bench.sent(EndQuorumEpoch)
    assert len(ends) == 4
    assert {end.preferred for end in ends} == {(FOUR, FIVE, TWO, THREE)}


def test_a_leader_deposed_by_a_later_epoch_announces_no_end() -> None:
    bench = FetchBench(1)
    bench.lead()
    bench.fetch(TWO, LogId(1, 1), term=9)
    assert bench.sent(EndQuorumEpoch) == []


@pytest.mark.parametrize(("place", "wait_ms"), [(0, 0), (1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (9, 1_000)])
def test_successors_campaign_in_the_order_of_the_list(place: int, wait_ms: int) -> None:
    """The first does so at once; the N-th after MIN(retryBackOffMaxMs, retryBackoffMs * 2^(N - 1))."""
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


def test_a_server_that_heard_the_end_of_an_epoch_listens_to_candidates() -> None:
    bench = FetchBench(1)
    bench.begin(TWO, 2)
    assert not bench.ask(3, LogId(9, 2), THREE).granted
    bench.end(TWO, 2, 3, 1)
    assert bench.ask(3, LogId(9, 2), THREE).granted


def test_the_end_of_an_older_epoch_is_rejected() -> None:
    """If the epoch is smaller than the last known one, the request is rejected."""
    bench = FetchBench(1)
    bench.begin(TWO, 5)
    assert bench.end(THREE, 4, 1).error is RefusalReason.STALE_TERM


def test_the_end_of_an_epoch_whose_leader_is_not_known_is_rejected() -> None:
    """So is one if the leader id is not known for this epoch."""
    bench = FetchBench(1, term=5)
    assert bench.end(THREE, 5, 1).error is RefusalReason.ANOTHER_LEADER
    assert bench.end(THREE, 6, 1).error is RefusalReason.ANOTHER_LEADER
    bench.begin(TWO, 7)
    assert bench.end(THREE, 7, 1).error is RefusalReason.ANOTHER_LEADER
    assert bench.about.leader == TWO


def test_the_end_of_an_epoch_that_does_not_name_us_is_an_inconsistent_voter_set() -> None:
    """Then it checks whether it is among the preferred successors; if not, INCONSISTENT_VOTER_SET."""
    bench = FetchBench(1)
    bench.begin(TWO, 5)
    assert bench.end(TWO, 5, 3, 4).error is RefusalReason.INCONSISTENT_VOTERS


def test_the_end_is_understood_although_the_parked_fetch_was_turned_away_before() -> None:
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    bench.reply(asked, error=RefusalReason.NOT_LEADER, leader=None)
    assert bench.about.leader is None
    assert bench.end(TWO, 2, 1, 3).error is None
    assert bench.sent(RequestVote)


def test_a_candidate_that_is_no_voter_is_refused_but_its_epoch_is_adopted() -> None:
    """Vote, 4a: reject; but accept the epoch bump, for it may be part of an incomplete change of the voters."""
    bench = FetchBench(1)
    reply = bench.ask(4, LogId(1, 1), FOUR)
    assert (reply.granted, reply.error, reply.term) == (False, RefusalReason.INCONSISTENT_VOTERS, 4)
    assert bench.about.term == 4


def test_a_candidate_that_may_know_a_later_set_of_voters_is_judged_by_its_log() -> None:
    """Otherwise a change of the voters that reached only one server could leave no server that can win."""
    bench = FetchBench(1)
    assert bench.ask(4, LogId(2, 1), FOUR).granted


def test_a_vote_is_given_once_in_an_epoch_and_again_only_to_the_same_candidate() -> None:
    """Vote, 3: if already voted for this epoch, grant only if the ids match."""
    bench = FetchBench(1)
    assert bench.ask(4, LogId(1, 1), TWO).granted
    assert not bench.ask(4, LogId(1, 1), THREE).granted
    assert bench.ask(4, LogId(1, 1), TWO).granted


def test_a_vote_of_another_cluster_is_refused_and_changes_nothing() -> None:
    """Vote, 1: reject with INCONSISTENT_CLUSTER_ID; in a vote it is merely a rejection."""
    bench = FetchBench(1, cluster_id="ours")
    bench.receive(TWO, RequestVote(term=4, candidate=TWO, last=LogId(9, 3), correlation=7, cluster_id="theirs"))
    (reply,) = bench.sent(VoteReply, TWO)
    assert (reply.granted, reply.error) == (False, RefusalReason.FOREIGN_CLUSTER)
    assert (bench.about.term, bench.all(Halt)) == (1, [])


@pytest.mark.parametrize(("own", "told"), [(None, "theirs"), ("ours", None), ("ours", "ours")])
def test_a_cluster_id_that_either_side_does_not_know_is_not_compared(own: str | None, told: str | None) -> None:
    """If the cluster id is unknown it is null, and the receiver skips the validation."""
    bench = FetchBench(1, cluster_id=own)
    assert bench.begin(TWO, 3, told).error is None
    leader = FetchBench(1, cluster_id=own)
    leader.lead()
    (reply,) = leader.fetch(TWO, LogId(1, 1), cluster_id=told)
    assert reply.error is None


def test_a_fetch_of_another_cluster_is_refused_by_a_leader() -> None:
    """Fetch, 1: verify that the cluster id, if not null, matches."""
    bench = FetchBench(1, cluster_id="ours")
    bench.lead()
    (reply,) = bench.fetch(TWO, LogId(2, 2), cluster_id="theirs", term=9)
    assert (reply.error, reply.leader) == (RefusalReason.FOREIGN_CLUSTER, ONE)
    assert (bench.about.term, bench.about.commit_index) == (2, 0)


def test_a_leader_of_another_cluster_stops_a_follower_that_fetches_from_it() -> None:
    """The same error is fatal in the answer to a fetch: it conflicts with the elected leader's value."""
    bench = FetchBench(1, cluster_id="ours")
    asked = bench.follow(TWO, 2)
    bench.reply(asked, error=RefusalReason.FOREIGN_CLUSTER)
    (halt,) = bench.all(Halt)
    assert "server 2" in halt.reason
    assert "ours" in halt.reason


def test_the_announcement_of_a_leader_of_another_cluster_stops_the_server() -> None:
    """If at any time it receives BeginQuorumEpoch from an elected leader with another cluster id, it exits."""
    bench = FetchBench(1, cluster_id="ours")
    assert bench.begin(TWO, 2, "theirs").error is RefusalReason.FOREIGN_CLUSTER
    assert bench.all(Halt)
    assert bench.about.term == 1


def test_no_stranger_and_no_fenced_leader_stops_the_server() -> None:
    """Otherwise one misconfigured server could stop a majority that is right."""
    bench = FetchBench(1, term=3, cluster_id="ours")
    assert bench.begin(FIVE, 9, "theirs").error is RefusalReason.FOREIGN_CLUSTER
    assert bench.all(Halt) == []
    bench.begin(TWO, 2, "theirs")
    assert bench.all(Halt) == []
    bench.end(TWO, 9, 1, cluster_id="theirs")
    assert (bench.all(Halt), bench.about.term) == ([], 3)


def test_cluster_id_learned_from_log_is_in_every_request() -> None:
    """When the cluster id is committed, it is included in all fetch requests from then on."""
    bench = FetchBench(1)
    assert bench.follow(TWO, 2).cluster_id is None
    bench.step(ClusterIdKnown("ours"))
    bench.reply(bench.asked[TWO])
    bench.step(DeadlineReached(), after_ms=100)
    assert bench.asked[TWO].cluster_id == "ours"
    bench.campaign()
    assert {vote.cluster_id for vote in bench.sent(RequestVote)} == {"ours"}


def test_an_observer_tries_the_voters_in_random_order_until_one_knows_the_leader() -> None:
    """On initialization it sends fetch requests to random voters until it finds the leader."""
    orders = set()
    for seed in range(20):
        bench = FetchBench(voters=5, configuration=_without_one(), seed=seed)
        tried: list[ServerId] = [*bench.asked]
        while len(tried) < 4:
            bench.step(DeadlineReached(), after_ms=600)
            tried += [send.recipient for send in bench.all(Send) if isinstance(send.message, Fetch)]
        assert sorted(tried) == [2, 3, 4, 5]
        orders.add(tuple(tried))
        last = bench.asked[tried[-1]]
        leader = tried[0]
        bench.reply(last, sender=tried[-1], leader=leader, term=3, error=RefusalReason.STALE_TERM)
        assert bench.about.leader == leader
        assert bench.sent(Fetch, leader)
    assert len(orders) > 5


def test_an_observer_never_campaigns() -> None:
    bench = FetchBench(voters=5, configuration=_without_one())
    for _ in range(10):
        bench.campaign()
        assert bench.sent(RequestVote) == []
    assert bench.about.term == 0


def test_a_redirect_does_not_make_a_server_refuse_candidates() -> None:
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    bench.reply(asked, error=RefusalReason.STALE_TERM, term=4, leader=THREE)
    assert bench.ask(5, LogId(1, 1), TWO).granted


def test_a_confirmation_counts_only_by_an_answer_to_a_request_of_its_round() -> None:
    """A fetch says nothing about it: it may have been sent before another leader was elected."""
    bench = FetchBench(1)
    bench.lead()
    leader = bench.raft._role.as_leader
    assert leader is not None
    leader.replication.confirm(5)
    bench.fetch(TWO, LogId(2, 2))
    assert leader.tracker.confirmed_round < 5
    (begin,) = bench.sent(BeginQuorumEpoch, TWO) or _begins_now(bench)
    bench.receive(TWO, BeginQuorumEpochReply(term=2, leader=ONE, correlation=begin.correlation))
    assert leader.tracker.confirmed_round == 5


def test_the_description_tells_where_each_replica_fetches() -> None:
    bench = FetchBench(1)
    bench.lead()
    bench.fetch(TWO, LogId(2, 2), commit=2)
    two, three = bench.about.followers
    assert (two.server_id, two.match, two.next, two.in_flight, two.contact_ms) == (TWO, 2, 3, 1, 0)
    assert (three.server_id, three.match, three.contact_ms) == (THREE, 0, None)
    assert bench.sent(FetchReply) == []


def _begins_now(bench: FetchBench) -> list[BeginQuorumEpoch]:
    """What `confirm` has put into the outbox leaves with the next step."""
    bench.step(DeadlineReached())
    return bench.sent(BeginQuorumEpoch, TWO)


def _without_one() -> Configuration:
    return Configuration(group(5).voters[1:])
