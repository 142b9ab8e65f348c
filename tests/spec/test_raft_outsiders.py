"""During leader contact, appends, snapshots, announcements and replies of a non-voter do not raise a term.

The handshake proves the identity of a server, not its election. A leader is a voter of the newest or the previous
configuration. So a follower whose log has both may refuse all other servers. A follower with an older log must not
refuse permanently: it accepts others when its own leader was unresponsive for the minimum election timeout. The
scenarios `new_server_leads_before_one_knows_it` and `fetch_new_server_leads_before_one_knows_it` test a whole group.
"""

import pytest

from consensus.core.drops import Drop
from consensus.core.effects import ChangeRefusal, Persist, Role, Send
from consensus.core.entry_data import configuration_entry
from consensus.core.messages import (
    AppendEntries,
    AppendReply,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    InstallSnapshot,
    Message,
    RefusalReason,
    RequestVote,
)
from consensus.core.model import MAX_NUMBER, LogId, ServerId
from consensus.core.options import lan
from tests.spec.fetch_bench import FetchBench
from tests.spec.membership_bench import Group, plain
from tests.spec.raft_bench import FOUR, ONE, THREE, TWO, Bench, group, suffix

AT = LogId
OUTSIDER = 9
MINIMUM_MS = lan().election_timeout_min_ms
REFUSED = Drop.OUTSIDE_LEADER_OF_LATER_TERM
PUSHED = (
    AppendEntries(term=6, leader=OUTSIDER, previous=AT(1, 5), entries=suffix(2, 6), commit=2, correlation=1),
    InstallSnapshot(
        term=6, leader=OUTSIDER, last=AT(9, 6), configuration=group(3), offset=0, data=b"x", done=True, correlation=1
    ),
)
ANNOUNCED = (
    BeginQuorumEpoch(term=6, leader=OUTSIDER, correlation=1),
    EndQuorumEpoch(term=6, leader=OUTSIDER, preferred=(ONE,), correlation=1),
)


def kind(message: Message) -> str:
    return type(message).__name__


def refused_without_effect(bench: Bench, leader: ServerId, term: int) -> bool:
    """Return True if the latest step kept term, leader and log, and sent one refusal with our term."""
    terms = [send.message.term for send in bench.all(Send) if send.recipient == OUTSIDER]
    about = bench.about
    return (about.term, about.leader, terms, bench.all(Persist)) == (term, leader, [term], []) and (
        bench.raft._replica.dropped[REFUSED] == 1
    )


@pytest.mark.parametrize("message", PUSHED, ids=kind)
def test_append_of_outsider_keeps_follower_with_its_leader(message: Message) -> None:
    # Given a follower of server 2, with an uncommitted entry
    bench = Bench(5, 5)
    assert bench.append(5, AT(2, 5)).success
    deadline = bench.raft.deadline
    # When server 9, which is not in its configuration, sends a message as the leader of term 6
    bench.receive(OUTSIDER, message, after_ms=MINIMUM_MS - 1)
    # Then the follower keeps server 2 as its leader, cuts nothing, and does not restart its timer
    assert refused_without_effect(bench, TWO, 5)
    assert (bench.terms, bench.about.commit_index, bench.raft.deadline) == ([5, 5], 0, deadline)
    assert bench.append(5, AT(2, 5), suffix(3, 5)).success


@pytest.mark.parametrize("message", PUSHED, ids=kind)
def test_append_of_outsider_deposes_no_leader(message: Message) -> None:
    bench = Bench(4).lead()
    bench.receive(OUTSIDER, message)
    assert refused_without_effect(bench, ONE, 5)
    assert bench.is_(Role.LEADER)


@pytest.mark.parametrize("message", ANNOUNCED, ids=kind)
def test_epoch_of_outsider_keeps_follower_with_its_leader(message: Message) -> None:
    bench = FetchBench(5)
    bench.follow(TWO, 5)
    bench.receive(OUTSIDER, message, after_ms=MINIMUM_MS - 1)
    assert refused_without_effect(bench, TWO, 5)


@pytest.mark.parametrize("message", ANNOUNCED, ids=kind)
def test_epoch_of_outsider_deposes_no_leader(message: Message) -> None:
    bench = FetchBench(4).lead()
    bench.receive(OUTSIDER, message)
    assert refused_without_effect(bench, ONE, 5)
    assert bench.is_(Role.LEADER)


def test_fetch_reply_naming_outsider_as_leader_ignored() -> None:
    bench = FetchBench(5)
    fetch = bench.follow(TWO, 5)
    bench.reply(fetch, leader=OUTSIDER, term=6, error=RefusalReason.STALE_TERM)
    assert (bench.about.term, bench.about.leader) == (5, TWO)
    assert OUTSIDER not in bench.fetches


def test_transfer_vote_request_of_outsider_refused() -> None:
    """A leader transfers leadership only to voters.

    Otherwise TimeoutNow could make all servers accept candidates, and raise terms.
    """
    bench = Bench(5)
    bench.append(5, AT(1, 5))
    bench.receive(OUTSIDER, RequestVote(term=6, candidate=OUTSIDER, last=AT(9, 5), correlation=1, transfer=True))
    assert (bench.about.term, bench.about.leader) == (5, TWO)
    bench.receive(THREE, RequestVote(term=6, candidate=THREE, last=AT(9, 5), correlation=1, transfer=True))
    assert bench.about.term == 6


def test_unknown_leader_followed_after_election_timeout() -> None:
    """The leader was added while this follower was disconnected. Its appends contain that configuration."""
    # Given a follower of server 2 that does not know server 4, which has joined and is the leader
    bench = Bench(configuration=group(3))
    bench.append(1, entries=suffix(1, 1), commit=1)
    bench.now += MINIMUM_MS - 1
    assert not bench.append(2, AT(1, 1), sender=FOUR).success
    # When server 2 was unresponsive for the minimum election timeout
    bench.now += 1
    reply = bench.append(2, AT(1, 1), [configuration_entry(2, plain(1, 2, 3, 4))], 2, sender=FOUR)
    # Then the follower accepts server 4 as leader, and has it in its configuration from now on
    assert (reply.success, bench.about.leader, bench.about.configuration) == (True, FOUR, plain(1, 2, 3, 4))
    assert bench.append(3, AT(2, 2), sender=TWO).success
    assert bench.append(4, AT(2, 2), sender=FOUR).success


def test_removed_server_may_lead_before_commitment() -> None:
    """Quote: "Before this point, it may be the case that only a server from C_old can be elected leader"."""
    # Given a follower of server 2 whose log has an uncommitted configuration without server 3
    bench = Bench(configuration=group(3))
    assert bench.append(
        1, entries=[configuration_entry(1, plain(1, 2, 3)), configuration_entry(1, plain(1, 2))], commit=1
    ).success
    # When server 3 leads the next term, Then the follower accepts it
    assert bench.append(2, AT(2, 1), sender=THREE).success
    # When the configuration is committed, Then server 3 still leads its term, but no later one
    assert bench.append(2, AT(2, 1), suffix(3, 2), commit=3, sender=THREE).success
    assert bench.append(2, AT(3, 2), suffix(4, 2), commit=4, sender=THREE).success
    assert not bench.append(3, AT(4, 2), sender=THREE).success


def test_new_server_without_configuration_follows_any_leader() -> None:
    bench = Bench(configuration=plain())
    assert bench.append(7, entries=[configuration_entry(7, plain(1, 2, 3))]).success
    assert bench.append(8, AT(1, 7), sender=THREE).success


def with_learner() -> Group:
    """Return server 1 as the leader of 2 and 3, with the learner 4, which has just received an append."""
    bench = Group().become_leader()
    bench.change(plain(1, 2, 3, learners=(4,)))
    bench.store(2, 3)
    while FOUR not in bench.sent:
        bench.expire()
    return bench


@pytest.mark.parametrize("term", [2, MAX_NUMBER])
def test_learner_reply_of_later_term_deposes_no_leader(term: int) -> None:
    """Before the learner knew a leader, any server could raise its term, so voters must not adopt that term."""
    bench = with_learner()
    bench.receive(FOUR, AppendReply(term=term, success=False, next_index=1, correlation=bench.sent[FOUR].correlation))
    assert (bench.about.role, bench.about.term) == (Role.LEADER, 1)
    assert bench.raft._replica.dropped[Drop.REPLY_OF_NON_VOTER] == 1


def test_learner_in_later_term_promoted_after_voters_reach_it() -> None:
    # Given a learner that replies from term 2 to the leader of term 1
    bench = with_learner()
    bench.change(plain(1, 2, 3, 4), change_id=2)
    bench.refused(FOUR, bench.sent[FOUR], hint=1, term=2)
    # Then the leader refuses its promotion with the reason
    assert bench.answers[-1].refusal is ChangeRefusal.NEW_SERVER_IN_LATER_TERM
    assert bench.is_(Role.LEADER)
    # When the voters reach term 2 on their own, Then the learner gets entries as usual
    bench.receive(TWO, AppendReply(term=2, success=False, next_index=1, correlation=0))
    assert bench.is_(Role.FOLLOWER)
    bench.expire()
    bench.grant(TWO)
    assert bench.about.term == 3
    bench.refused(FOUR, bench.sent[FOUR], hint=1)
    bench.store(4)
    progress = {follower.server_id: follower.match for follower in bench.about.followers}
    assert progress[FOUR] == bench.about.last.index
