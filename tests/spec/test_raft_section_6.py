"""Section 6 of the Raft paper (cluster membership changes), sentence by sentence.

What needs several servers at once is told in stories under `tests/scenarios/raft`; majorities alone are tested in
`test_raft_quorum.py`, the plan of a change in `test_raft_configuration.py`.
"""

from dataclasses import replace

import pytest

from consensus.core.configuration import ChangeRefusal
from consensus.core.dialect import GARLIC_FARM, ZMQ_RAFT
from consensus.core.effects import ChangeOutcome, ChangeResolved, Role, Send
from consensus.core.events import ChangeConfiguration
from consensus.core.messages import AppendReply, RequestVote, VoteReply
from consensus.core.position import Configuration, Entry, LogPosition, ServerId
from consensus.core.tuning import lan
from tests.spec.membership_bench import Group, joint, plain, servers
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, Bench

MINIMUM_MS = lan().election_timeout_min_ms


def in_joint_consensus() -> Group:
    """Server 1 leads 1 2 3, and has appended C_old,new towards 3 4 5, which nobody else has yet."""
    bench = Group()
    bench.take_office()
    bench.change(plain(3, 4, 5))
    bench.bring_up(4, 5)
    assert bench.configuration == joint((1, 2, 3), (3, 4, 5))
    return bench


# -- joint consensus ---------------------------------------------------------------------------------------------------


def test_any_approach_where_servers_switch_directly_from_old_to_new_is_unsafe() -> None:
    """In Raft the cluster first switches to a transitional configuration we call joint consensus."""
    bench = in_joint_consensus()
    assert bench.appended[-1].content == joint((1, 2, 3), (3, 4, 5))


def test_log_entries_are_replicated_to_all_servers_in_both_configurations() -> None:
    """Log entries are replicated to all servers in both configurations."""
    bench = in_joint_consensus()
    assert bench.replicated_to == [2, 3, 4, 5]
    assert {peer for peer, append in bench.sent.items() if bench.appended[-1] in append.entries} == {TWO, THREE, 4, 5}


@pytest.mark.parametrize(("old", "new"), [((1, 2, 3), (4, 5)), ((2, 3), (1, 4, 5))])
def test_any_server_from_either_configuration_may_serve_as_leader(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Any server from either configuration may serve as leader."""
    bench = Bench(configuration=joint(old, new), voters=5)
    bench.lead()
    assert bench.is_(Role.LEADER)


@pytest.mark.parametrize(
    ("granting", "role"),
    [((2, 4), Role.CANDIDATE), ((4, 5, 6), Role.CANDIDATE), ((2, 3), Role.CANDIDATE), ((2, 4, 5), Role.LEADER)],
)
def test_elections_require_separate_majorities_from_both_the_old_and_new_configurations(
    granting: tuple[int, ...], role: Role
) -> None:
    """Agreement (for elections and entry commitment) requires separate majorities from both ... configurations."""
    bench = Bench(configuration=joint((1, 2, 3), (4, 5, 6)), voters=6)
    bench.expire()
    bench.grant(*map(ServerId, granting))
    assert bench.is_(role)


@pytest.mark.parametrize(
    ("storing", "committed"), [((2,), False), ((4, 5), False), ((2, 4), False), ((2, 3, 4), True), ((2, 4, 5), True)]
)
def test_entry_commitment_requires_separate_majorities_from_both_configurations(
    storing: tuple[int, ...],
    committed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """... requires separate majorities from both the old and new configurations."""
    bench = in_joint_consensus()
    index = bench.about.last.index
    bench.store(*storing)
    assert (bench.about.commit_index >= index) is committed


def test_the_cluster_continues_servicing_client_requests_throughout_the_change() -> None:
    """... joint consensus allows the cluster to continue servicing client requests throughout the ... change."""
    bench = in_joint_consensus()
    bench.propose(b"meanwhile")
    index = bench.about.last.index
    bench.store(2, 3, 4)
    assert bench.about.commit_index >= index


def test_a_request_to_change_the_configuration_stores_the_joint_one_as_an_entry_and_replicates_it() -> None:
    """When the leader receives a request to change ..., it stores the configuration ... as a log entry."""
    bench = in_joint_consensus()
    assert bench.about.last == LogPosition(2, 1)
    assert bench.sent[TWO].entries == (Entry(1, joint((1, 2, 3), (3, 4, 5))),)


def test_a_server_always_uses_the_latest_configuration_in_its_log_committed_or_not() -> None:
    """Once a given server adds the new configuration entry to its log, it uses that ... for all future decisions."""
    bench = Bench(configuration=plain(1, 2, 3), voters=5)
    bench.append(term=1, entries=[Entry(1, plain(1, 2, 3)), Entry(1, joint((1, 2, 3), (1, 4, 5)))], commit=0)
    assert bench.about.configuration == joint((1, 2, 3), (1, 4, 5))
    bench.expire()
    assert [send.recipient for send in bench.all(Send)] == [TWO, THREE, FOUR, FIVE]
    assert all(isinstance(send.message, RequestVote) for send in bench.all(Send))


def test_a_configuration_is_taken_back_when_its_entry_is_truncated() -> None:
    """(The latest configuration in the log is, after a truncation, the one before.)."""
    bench = Bench()
    bench.append(term=1, entries=[Entry(1, plain(1, 2, 3)), Entry(1, joint((1, 2, 3), (1, 4, 5)))])
    bench.append(term=2, previous=LogPosition(1, 1), entries=[Entry(2, plain(1, 2, 3))], sender=THREE)
    assert bench.about.configuration == plain(1, 2, 3)


def test_the_leader_uses_the_rules_of_the_joint_configuration_to_commit_it() -> None:
    """... the leader will use the rules of C_old,new to determine when the log entry for C_old,new is committed."""
    bench = in_joint_consensus()
    bench.store(2)
    assert bench.about.commit_index < bench.about.last.index
    bench.store(4, 5)
    assert bench.about.commit_index >= 2


def test_once_the_joint_configuration_is_committed_the_leader_creates_the_entry_of_the_new_one() -> None:
    """It is now safe for the leader to create a log entry describing C_new and replicate it to the cluster."""
    bench = in_joint_consensus()
    bench.store(2, 4)
    assert bench.configuration.is_joint
    bench.store(3)
    assert bench.configuration == plain(3, 4, 5)
    assert bench.sent[FIVE].entries[-1] == Entry(1, plain(3, 4, 5))


def test_the_new_configuration_commits_under_the_rules_of_the_new_one_alone() -> None:
    """When the new configuration has been committed under the rules of C_new, the old configuration is irrelevant."""
    bench = in_joint_consensus()
    bench.store(2, 3, 4)
    assert bench.configuration == plain(3, 4, 5)
    bench.store(2)
    assert bench.answers == []
    bench.store(3)
    assert bench.answers == [ChangeResolved(1, ChangeOutcome.COMMITTED, None, LogPosition(3, 1), ONE)]


def test_a_new_leader_that_has_the_joint_configuration_finishes_the_change() -> None:
    """If the leader crashes, a new leader may be chosen under either C_old or C_old,new."""
    bench = Group(term=1, configuration=joint((1, 2, 3), (1, 4, 5)), voters=5)
    bench.lead()
    assert bench.configuration.is_joint
    bench.store(2, 4)
    assert bench.configuration == plain(1, 4, 5)
    bench.store(4)
    assert bench.about.commit_index == bench.about.last.index
    assert bench.answers == []


def test_the_new_servers_cannot_decide_alone() -> None:
    """... C_new cannot make unilateral decisions during this period."""
    bench = Bench(configuration=joint((2, 3), (1, 4, 5)), voters=5)
    bench.expire()
    bench.grant(FOUR, FIVE)
    assert bench.is_(Role.CANDIDATE)


# -- new servers catch up ----------------------------------------------------------------------------------------------


def test_new_servers_join_as_non_voting_members_that_are_not_considered_for_majorities() -> None:
    """... the leader replicates log entries to them, but they are not considered for majorities."""
    bench = Group()
    bench.take_office()
    bench.change(plain(1, 2, 3, 4))
    assert bench.replicated_to == [2, 3, 4]
    bench.propose(b"x")
    index = bench.about.last.index
    bench.bring_up(4)
    assert bench.about.commit_index < index
    assert bench.configuration == plain(1, 2, 3, 4)


def test_a_newcomer_does_not_keep_a_leader_in_office() -> None:
    """(Check-quorum counts voters.)."""
    bench = Group()
    bench.take_office()
    bench.change(plain(1, 2, 3, 4))
    for _ in range(100):
        if not bench.is_(Role.LEADER):
            break
        bench.expire()
        if FOUR in bench.sent:
            bench.refused(FOUR, bench.sent[FOUR], hint=1)
    assert bench.is_(Role.FOLLOWER)
    assert bench.answers == [ChangeResolved(1, ChangeOutcome.REFUSED, ChangeRefusal.LEADERSHIP_LOST, None, ONE)]


def test_once_the_new_servers_have_caught_up_the_reconfiguration_proceeds() -> None:
    """Once the new servers have caught up with the rest of the cluster, the reconfiguration can proceed."""
    bench = Group()
    bench.take_office()
    bench.change(plain(3, 4, 5))
    bench.bring_up(4)
    assert bench.configuration == plain(1, 2, 3)
    bench.bring_up(5)
    assert bench.configuration == joint((1, 2, 3), (3, 4, 5))


def test_a_round_that_lasts_longer_than_an_election_timeout_is_followed_by_another() -> None:
    """(Thesis section 4.2.1: each round carries what arrived during the one before.)."""
    bench = Group()
    bench.take_office()
    bench.change(plain(1, 2, 3, 4))
    bench.pass_time(MINIMUM_MS + 1, 2, 3)
    bench.propose(b"x")
    bench.matched(FOUR, bench.sent[FOUR])
    assert bench.configuration == plain(1, 2, 3)
    bench.matched(FOUR, bench.sent[FOUR])
    assert bench.configuration == plain(1, 2, 3, 4)


def test_a_newcomer_that_is_too_slow_in_every_round_is_given_up() -> None:
    """(Thesis section 4.2.1: a bounded number of rounds, else the change is aborted with an error.)."""
    bench = Group(tuning=replace(lan(), catch_up_rounds=3))
    bench.take_office()
    bench.change(plain(1, 2, 3, 4))
    for _ in range(3):
        assert bench.answers == []
        goal = bench.about.last.index
        bench.pass_time(MINIMUM_MS + 1, 2, 3)
        bench.propose(b"x")
        bench.matched(FOUR, bench.sent[FOUR])
        bench.matched(FOUR, bench.sent[FOUR], up_to=goal)
    assert bench.answers == [ChangeResolved(1, ChangeOutcome.REFUSED, ChangeRefusal.CATCH_UP_TOO_SLOW, None, ONE)]
    assert bench.configuration == plain(1, 2, 3)
    assert bench.replicated_to == [2, 3]


def test_a_newcomer_that_does_not_answer_is_given_up() -> None:
    """(Thesis section 4.2.1: an unavailable server must not hold up the change for ever.)."""
    bench = Group(tuning=replace(lan(), catch_up_stall_ms=5_000))
    bench.take_office()
    bench.change(plain(1, 2, 3, 4))
    began = bench.now
    while not bench.answers:
        bench.pass_time(1, 2, 3)
    assert bench.answers == [ChangeResolved(1, ChangeOutcome.REFUSED, ChangeRefusal.CATCH_UP_STALLED, None, ONE)]
    assert bench.now - began == 5_000


def test_a_learner_that_stood_still_for_long_has_its_time_to_catch_up_when_it_is_to_vote() -> None:
    """(Its patience begins with the request, not with the last entry that it took.)."""
    bench = Group(tuning=replace(lan(), catch_up_stall_ms=5_000))
    bench.take_office()
    bench.change(plain(1, 2, 3, learners=(4,)))
    bench.store(2)
    bench.pass_time(10_000, 2, 3)
    bench.change(plain(1, 2, 3, 4), change_id=2)
    assert len(bench.answers) == 1
    bench.pass_time(4_000, 2, 3)
    assert len(bench.answers) == 1
    bench.store(4)
    assert bench.configuration == plain(1, 2, 3, 4)


def test_a_newcomer_of_a_later_term_is_given_up_and_deposes_nobody() -> None:
    """(It was a member once, or of another cluster: it comes with an empty log, or not at all.)."""
    bench = Group()
    bench.take_office()
    bench.change(plain(1, 2, 3, 4))
    while FOUR not in bench.sent:
        bench.expire()
    bench.refused(FOUR, bench.sent[FOUR], hint=1, term=9)
    refusal = ChangeRefusal.NEW_SERVER_IN_LATER_TERM
    assert bench.answers == [ChangeResolved(1, ChangeOutcome.REFUSED, refusal, None, ONE)]
    assert bench.is_(Role.LEADER)
    assert bench.about.term == 1


def test_a_learner_gets_the_log_and_neither_votes_nor_commits_nor_campaigns() -> None:
    """(Learners are non-voting members for as long as the configuration says so.)."""
    bench = Group()
    bench.take_office()
    bench.change(plain(1, 2, 3, learners=(4,)))
    bench.store(2)
    assert bench.configuration.learner_ids == {FOUR}
    assert bench.answers[0].outcome is ChangeOutcome.COMMITTED
    bench.propose(b"x")
    index = bench.about.last.index
    bench.bring_up(4)
    assert bench.about.commit_index < index
    learner = Bench(configuration=plain(2, 3, learners=(1,)))
    for _ in range(3):
        learner.expire()
        assert learner.effects == []


# -- the leader leaves -------------------------------------------------------------------------------------------------


def test_a_leader_outside_the_new_configuration_replicates_and_does_not_count_itself() -> None:
    """... it replicates log entries but does not count itself in majorities."""
    bench = Group()
    bench.take_office()
    bench.change(plain(2, 3))
    assert bench.configuration == plain(2, 3)
    bench.store(2)
    assert bench.is_(Role.LEADER)
    assert bench.about.commit_index < bench.about.last.index


def test_a_leader_outside_the_new_configuration_steps_down_once_it_has_committed_it() -> None:
    """... the leader steps down (returns to follower state) once it has committed the C_new log entry."""
    bench = Group()
    bench.take_office()
    bench.change(plain(2, 3))
    bench.store(2)
    bench.matched(THREE, bench.sent[THREE])
    assert bench.answers == [ChangeResolved(1, ChangeOutcome.COMMITTED, None, LogPosition(2, 1), ONE)]
    assert bench.is_(Role.FOLLOWER)
    assert bench.about.term == 1


def test_a_removed_leader_does_not_campaign_once_the_new_configuration_is_committed() -> None:
    """(Its clients have others to turn to; its votes would only disturb.)."""
    bench = Group()
    bench.take_office()
    bench.change(plain(2, 3))
    bench.store(2)
    bench.matched(THREE, bench.sent[THREE])
    for _ in range(3):
        bench.expire()
        assert bench.effects == []


def test_before_the_new_configuration_is_committed_a_server_that_it_removes_may_campaign() -> None:
    """Before this point, it may be the case that only a server from C_old can be elected leader."""
    entries = (Entry(1, plain(1, 2)), Entry(1, plain(2)))
    bench = Bench(term=1, configuration=plain(1, 2), voters=2, entries=entries)
    bench.expire()
    bench.grant(TWO)
    assert bench.is_(Role.LEADER)


# -- removed servers ---------------------------------------------------------------------------------------------------


def test_a_vote_request_within_the_minimum_election_timeout_of_a_leaders_word_changes_nothing() -> None:
    """... it does not update its term or grant its vote."""
    bench = Bench(configuration=plain(1, 2, 3))
    bench.append(term=1, entries=[Entry(1, plain(1, 2, 3))], sender=TWO)
    reply = bench.ask(9, LogPosition(5, 5), sender=FOUR, after_ms=MINIMUM_MS - 1)
    assert (reply.granted, reply.term, bench.about.term) == (False, 1, 1)


def test_a_leader_is_not_deposed_by_the_larger_term_numbers_of_a_removed_server() -> None:
    """... if a leader is able to get heartbeats to its cluster, then it will not be deposed by larger terms."""
    bench = Group(voters=4)
    bench.take_office()
    bench.change(plain(1, 2, 3))
    bench.store(2, 3)
    assert bench.answers[0].outcome is ChangeOutcome.COMMITTED
    bench.ask(9, LogPosition(5, 1), sender=FOUR)
    assert bench.is_(Role.LEADER)
    bench.receive(FOUR, AppendReply(9, success=False, next_index=1, correlation=bench.sent[FOUR].correlation))
    assert bench.is_(Role.LEADER)


def test_a_removed_server_hears_of_its_removal_and_is_then_left_alone() -> None:
    """(A server that knows itself to be removed does not campaign.)."""
    bench = Group(voters=4)
    bench.take_office()
    bench.change(plain(1, 2, 3))
    assert bench.replicated_to == [2, 3, 4]
    bench.store(4)
    bench.store(2, 3)
    bench.expire()
    assert bench.sent[FOUR].commit == bench.about.last.index
    bench.pass_time(2 * MINIMUM_MS, 2, 3)
    assert bench.replicated_to == [2, 3]


def test_the_vote_goes_by_the_log_and_not_by_membership() -> None:
    """(A server whose log lacks the configuration that made the candidate a voter must still be able to elect it.)."""
    bench = Bench(configuration=plain(1, 2, 3))
    assert bench.ask(1, LogPosition(1, 1), sender=FIVE).granted


def test_servers_outside_the_configuration_do_not_count_in_an_election() -> None:
    """(Nor do those who were not asked.)."""
    bench = Bench()
    bench.expire()
    bench.receive(FOUR, VoteReply(1, granted=True, correlation=bench.correlation))
    bench.receive(FIVE, VoteReply(9, granted=False, correlation=bench.correlation))
    assert (bench.about.role, bench.about.term) == (Role.CANDIDATE, 1)


# -- one change at a time ----------------------------------------------------------------------------------------------


def refusals(bench: Group) -> list[ChangeRefusal | None]:
    """Why changes were refused so far."""
    return [answer.refusal for answer in bench.answers]


def test_there_is_no_change_before_the_leader_has_committed_an_entry_of_its_own_term() -> None:
    """(An unfinished change of an older leader may still commit elsewhere.)."""
    bench = Group()
    bench.lead()
    bench.change(plain(1, 2))
    assert refusals(bench) == [ChangeRefusal.NO_COMMIT_IN_TERM]
    assert bench.configuration == plain(1, 2, 3)


def test_there_is_no_change_while_another_is_under_way() -> None:
    """(While newcomers catch up, in joint consensus, and until C_new is committed.)."""
    bench = Group()
    bench.take_office()
    bench.change(plain(3, 4, 5), change_id=1)
    bench.change(plain(1, 2), change_id=2)
    bench.bring_up(4, 5)
    bench.change(plain(1, 2), change_id=3)
    bench.store(2, 4, 3)
    assert bench.configuration == plain(3, 4, 5)
    bench.change(plain(3, 4), change_id=4)
    assert refusals(bench) == [ChangeRefusal.CHANGE_UNDER_WAY] * 3
    bench.store(5)
    assert bench.answers[-1] == ChangeResolved(1, ChangeOutcome.COMMITTED, None, LogPosition(3, 1), ONE)


@pytest.mark.parametrize(
    ("target", "refusal"),
    [
        (Configuration(()), ChangeRefusal.NO_VOTERS),
        (Configuration((), learners=servers(1)), ChangeRefusal.NO_VOTERS),
        (plain(1, 2, 2), ChangeRefusal.SERVER_TWICE),
        (plain(1, 2, learners=(2,)), ChangeRefusal.SERVER_TWICE),
        (joint((1, 2), (3, 4)), ChangeRefusal.SERVER_TWICE),
        (plain(*range(1, 66)), ChangeRefusal.TOO_MANY_SERVERS),
    ],
)
def test_an_impossible_configuration_is_refused(target: Configuration, refusal: ChangeRefusal) -> None:
    """(Never zero voters, never a server twice.)."""
    bench = Group()
    bench.take_office()
    bench.change(target)
    assert refusals(bench) == [refusal]
    assert bench.about.last.index == 1


def test_a_change_to_what_is_already_there_succeeds_without_an_entry() -> None:
    """(A client that repeats its request after a lost answer is told that it is done.)."""
    bench = Group()
    bench.take_office()
    bench.change(plain(1, 2, 3))
    assert bench.answers[0].outcome is ChangeOutcome.COMMITTED
    assert bench.about.last.index == 1


def test_only_the_leader_changes_the_configuration() -> None:
    """(Others say who leads.)."""
    bench = Bench()
    bench.append(term=1, entries=[Entry(1, plain(1, 2, 3))], sender=TWO)
    bench.step(ChangeConfiguration(7, plain(1, 2)))
    assert bench.all(ChangeResolved) == [ChangeResolved(7, ChangeOutcome.REFUSED, ChangeRefusal.NOT_LEADER, None, TWO)]


def test_a_leader_that_loses_office_with_a_step_in_its_log_cannot_say_what_becomes_of_it() -> None:
    """(Unknown, never refused: another leader may finish it.)."""
    bench = in_joint_consensus()
    bench.refused(TWO, bench.sent[TWO], hint=1, term=2)
    assert bench.answers == [ChangeResolved(1, ChangeOutcome.UNKNOWN)]


# -- dialects ----------------------------------------------------------------------------------------------------------


def test_one_server_more_or_less_needs_no_joint_consensus() -> None:
    """(Any majority of the one shares a server with any majority of the other.)."""
    bench = Group()
    bench.take_office()
    bench.change(plain(1, 2))
    assert bench.configuration == plain(1, 2)


def test_a_dialect_without_joint_consensus_changes_one_server_at_a_time() -> None:
    """(More at once is refused, with the reason.)."""
    bench = Group(dialect=replace(GARLIC_FARM, joint=False))
    bench.take_office()
    bench.change(plain(1, 2, 4), change_id=1)
    assert refusals(bench) == [ChangeRefusal.MORE_THAN_ONE_SERVER]
    bench.change(plain(1, 2), change_id=2)
    bench.store(2)
    bench.change(plain(1, 2, 4), change_id=3)
    bench.bring_up(4)
    assert bench.configuration == plain(1, 2, 4)


def test_a_peer_that_lacks_the_extension_is_sent_no_joint_configuration() -> None:
    """(Its server would refuse the entry, and replication to it would stand still.)."""
    bench = Group(extended=False)
    bench.take_office()
    bench.change(plain(1, 4, 5), change_id=1)
    bench.change(plain(1, 2, 3, learners=(4,)), change_id=2)
    assert refusals(bench) == [ChangeRefusal.MORE_THAN_ONE_SERVER, ChangeRefusal.NO_LEARNERS]
    bench.change(plain(1, 2), change_id=3)
    assert bench.configuration == plain(1, 2)


def test_a_dialect_without_learners_in_configurations_refuses_them() -> None:
    """(Observers are what the protocol makes of them there.)."""
    bench = Group(dialect=ZMQ_RAFT)
    bench.take_office()
    bench.change(plain(1, 2, 3, learners=(4,)))
    assert refusals(bench) == [ChangeRefusal.NO_LEARNERS]
