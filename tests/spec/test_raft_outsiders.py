"""A server without a vote moves no term while a leader is heard, by no append, snapshot, announcement or answer.

The handshake proves which server speaks, not that it was elected. A leader is a voter of the newest configuration, or
of the one before it, so a follower whose log has both may refuse any other. One whose log is older may not refuse
for ever: it listens when its own leader has been silent for the minimum election timeout. How a whole group converges
then is told by the stories `new_server_leads_before_one_knows_it` and `fetch_new_server_leads_before_one_knows_it`.
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
    """The kind of message, for the name of a test."""
    return type(message).__name__


def nothing_came_of_it(bench: Bench, leader: ServerId, term: int) -> bool:
    """Whether the latest step left term, leader, log and deadline as they were, and was refused at our term, once."""
    terms = [send.message.term for send in bench.all(Send) if send.recipient == OUTSIDER]
    about = bench.about
    return (about.term, about.leader, terms, bench.all(Persist)) == (term, leader, [term], []) and (
        bench.raft._replica.dropped[REFUSED] == 1
    )


@pytest.mark.parametrize("message", PUSHED, ids=kind)
def test_an_append_or_snapshot_of_a_later_term_from_outside_takes_no_follower_from_its_leader(message: Message) -> None:
    # Given a follower of server 2, with an entry that is not committed
    bench = Bench(5, 5)
    assert bench.append(5, AT(2, 5)).success
    deadline = bench.raft.deadline
    # When server 9, which is not in its configuration, speaks as leader of term 6
    bench.receive(OUTSIDER, message, after_ms=MINIMUM_MS - 1)
    # Then it follows server 2, has cut nothing, and its timer runs on
    assert nothing_came_of_it(bench, TWO, 5)
    assert (bench.terms, bench.about.commit_index, bench.raft.deadline) == ([5, 5], 0, deadline)
    assert bench.append(5, AT(2, 5), suffix(3, 5)).success


@pytest.mark.parametrize("message", PUSHED, ids=kind)
def test_an_append_or_snapshot_of_a_later_term_from_outside_deposes_no_leader(message: Message) -> None:
    bench = Bench(4)
    bench.lead()
    bench.receive(OUTSIDER, message)
    assert nothing_came_of_it(bench, ONE, 5)
    assert bench.is_(Role.LEADER)


@pytest.mark.parametrize("message", ANNOUNCED, ids=kind)
def test_an_announcement_of_a_later_epoch_from_outside_takes_no_follower_from_its_leader(message: Message) -> None:
    bench = FetchBench(5)
    bench.follow(TWO, 5)
    bench.receive(OUTSIDER, message, after_ms=MINIMUM_MS - 1)
    assert nothing_came_of_it(bench, TWO, 5)


@pytest.mark.parametrize("message", ANNOUNCED, ids=kind)
def test_an_announcement_of_a_later_epoch_from_outside_deposes_no_leader(message: Message) -> None:
    bench = FetchBench(4)
    bench.lead()
    bench.receive(OUTSIDER, message)
    assert nothing_came_of_it(bench, ONE, 5)
    assert bench.is_(Role.LEADER)


def test_a_fetch_reply_that_names_a_leader_of_a_later_epoch_outside_changes_nothing_while_ours_is_heard() -> None:
    bench = FetchBench(5)
    asked = bench.follow(TWO, 5)
    bench.reply(asked, leader=OUTSIDER, term=6, error=RefusalReason.STALE_TERM)
    assert (bench.about.term, bench.about.leader) == (5, TWO)
    assert OUTSIDER not in bench.asked


def test_a_handed_over_vote_request_from_outside_is_refused_while_a_leader_is_heard() -> None:
    """A leader hands over to voters alone; otherwise TimeoutNow would make all servers listen, and raise terms."""
    bench = Bench(5)
    bench.append(5, AT(1, 5))
    bench.receive(OUTSIDER, RequestVote(term=6, candidate=OUTSIDER, last=AT(9, 5), correlation=1, transfer=True))
    assert (bench.about.term, bench.about.leader) == (5, TWO)
    bench.receive(THREE, RequestVote(term=6, candidate=THREE, last=AT(9, 5), correlation=1, transfer=True))
    assert bench.about.term == 6


def test_a_leader_that_a_follower_does_not_know_yet_is_followed_after_the_minimum_election_timeout() -> None:
    """(It was added while this one was cut off, and the configuration with it comes by its own appends.)."""
    # Given a follower that heard server 2, and does not know that server 4 has joined and leads
    bench = Bench(configuration=group(3))
    bench.append(1, entries=suffix(1, 1), commit=1)
    bench.now += MINIMUM_MS - 1
    assert not bench.append(2, AT(1, 1), sender=FOUR).success
    # When server 2 has been silent for the minimum election timeout
    bench.now += 1
    reply = bench.append(2, AT(1, 1), [configuration_entry(2, plain(1, 2, 3, 4))], 2, sender=FOUR)
    # Then server 4 is followed, and in the group by the log from now on
    assert (reply.success, bench.about.leader, bench.about.configuration) == (True, FOUR, plain(1, 2, 3, 4))
    assert bench.append(3, AT(2, 2), sender=TWO).success
    assert bench.append(4, AT(2, 2), sender=FOUR).success


def test_a_server_that_is_being_removed_may_still_lead_a_later_term() -> None:
    """Before this point, it may be the case that only a server from C_old can be elected leader."""
    # Given a follower of server 2 whose log has a configuration without server 3, not committed
    bench = Bench(configuration=group(3))
    assert bench.append(
        1, entries=[configuration_entry(1, plain(1, 2, 3)), configuration_entry(1, plain(1, 2))], commit=1
    ).success
    # When server 3 leads the next term, Then it is followed
    assert bench.append(2, AT(2, 1), sender=THREE).success
    # When the configuration is committed, Then server 3 leads on in its term, and no later one
    assert bench.append(2, AT(2, 1), suffix(3, 2), commit=3, sender=THREE).success
    assert bench.append(2, AT(3, 2), suffix(4, 2), commit=4, sender=THREE).success
    assert not bench.append(3, AT(4, 2), sender=THREE).success


def test_a_newcomer_follows_any_leader_because_it_knows_of_no_configuration() -> None:
    bench = Bench(configuration=plain())
    assert bench.append(7, entries=[configuration_entry(7, plain(1, 2, 3))]).success
    assert bench.append(8, AT(1, 7), sender=THREE).success


def with_learner() -> Group:
    """Server 1 leads 2 and 3; server 4 is a learner that has just been sent something."""
    bench = Group()
    bench.become_leader()
    bench.change(plain(1, 2, 3, learners=(4,)))
    bench.store(2, 3)
    while FOUR not in bench.sent:
        bench.expire()
    return bench


@pytest.mark.parametrize("term", [2, MAX_NUMBER])
def test_the_reply_of_a_learner_in_a_later_term_deposes_no_leader(term: int) -> None:
    """(It may have been told a term of any height before it knew of a leader; no voter is to follow it there.)."""
    bench = with_learner()
    bench.receive(FOUR, AppendReply(term=term, success=False, next_index=1, correlation=bench.sent[FOUR].correlation))
    assert (bench.about.role, bench.about.term) == (Role.LEADER, 1)
    assert bench.raft._replica.dropped[Drop.REPLY_OF_NON_VOTER] == 1


def test_a_learner_in_a_later_term_gets_the_log_when_the_group_reaches_its_term_and_gets_no_vote_before() -> None:
    # Given a learner that answers from term 2 to the leader of term 1
    bench = with_learner()
    bench.change(plain(1, 2, 3, 4), change_id=2)
    bench.refused(FOUR, bench.sent[FOUR], hint=1, term=2)
    # Then its promotion is refused, and the leader says why
    assert bench.answers[-1].refusal is ChangeRefusal.NEW_SERVER_IN_LATER_TERM
    assert bench.is_(Role.LEADER)
    # When the voters come to term 2 by themselves, Then it is replicated to as ever
    bench.receive(TWO, AppendReply(term=2, success=False, next_index=1, correlation=0))
    assert bench.is_(Role.FOLLOWER)
    bench.expire()
    bench.grant(TWO)
    assert bench.about.term == 3
    bench.refused(FOUR, bench.sent[FOUR], hint=1)
    bench.store(4)
    progress = {follower.server_id: follower.match for follower in bench.about.followers}
    assert progress[FOUR] == bench.about.last.index
