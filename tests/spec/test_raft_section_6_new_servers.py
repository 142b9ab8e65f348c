"""Section 6 of the Raft paper, by its sentences: new servers catch up before they vote (thesis section 4.2.1)."""

from msgspec.structs import replace

from consensus.core.effects import ChangeOutcome, ChangeRefusal, ConfigurationResolved, Role
from consensus.core.options import lan
from tests.spec.membership_bench import Group, joint, plain
from tests.spec.raft_bench import FOUR, ONE, THREE, Bench

MINIMUM_MS = lan().election_timeout_min_ms


def test_new_server_joins_as_non_voting_member() -> None:
    """Quote: "… the leader replicates log entries to them, but they are not considered for majorities"."""
    bench = Group().become_leader()
    bench.change(plain(1, 2, 3, 4))
    assert bench.replicated_to == [2, 3, 4]
    bench.propose(b"x")
    index = bench.about.last.index
    bench.bring_up(4)
    assert bench.about.commit_index < index
    assert bench.configuration == plain(1, 2, 3, 4)


def test_new_server_does_not_keep_leader_from_resigning() -> None:
    """Check-quorum counts only voters."""
    bench = Group().become_leader()
    bench.change(plain(1, 2, 3, 4))
    for _ in range(100):
        if not bench.is_(Role.LEADER):
            break
        bench.expire()
        if FOUR in bench.sent:
            bench.refused(FOUR, bench.sent[FOUR], hint=1)
    assert bench.is_(Role.FOLLOWER)
    assert bench.answers == [
        ConfigurationResolved(
            change_id=1, outcome=ChangeOutcome.REFUSED, refusal=ChangeRefusal.LEADERSHIP_LOST, position=None, leader=ONE
        )
    ]


def test_change_proceeds_when_new_servers_caught_up() -> None:
    """Quote: "Once the new servers have caught up with the rest of the cluster, the reconfiguration can proceed"."""
    bench = Group().become_leader()
    bench.change(plain(3, 4, 5))
    bench.bring_up(4)
    assert bench.configuration == plain(1, 2, 3)
    bench.bring_up(5)
    assert bench.configuration == joint((1, 2, 3), (3, 4, 5))


def test_long_catch_up_round_followed_by_another() -> None:
    """Thesis section 4.2.1: each round transfers the entries that arrived during the previous round."""
    bench = Group().become_leader()
    bench.change(plain(1, 2, 3, 4))
    bench.pass_time(MINIMUM_MS + 1, 2, 3)
    bench.propose(b"x")
    bench.matched(FOUR, bench.sent[FOUR])
    assert bench.configuration == plain(1, 2, 3)
    bench.matched(FOUR, bench.sent[FOUR])
    assert bench.configuration == plain(1, 2, 3, 4)


def test_returning_empty_server_catches_up_first() -> None:
    bench = Group().become_leader()
    bench.change(plain(1, 2))
    bench.store(2, 3)
    bench.change(plain(1, 2, 3))
    assert bench.configuration == plain(1, 2), "the entries from before its removal do not count"
    bench.expire()
    bench.refused(THREE, bench.sent[THREE], hint=1)
    assert bench.sent[THREE].previous.index == 0
    bench.matched(THREE, bench.sent[THREE])
    assert bench.configuration == plain(1, 2, 3)


def test_new_server_slow_in_all_rounds_refused() -> None:
    """Thesis section 4.2.1: after a limited number of rounds the change is aborted with an error."""
    bench = Group(options=replace(lan(), catch_up_rounds=3)).become_leader()
    bench.change(plain(1, 2, 3, 4))
    for _ in range(3):
        assert bench.answers == []
        goal = bench.about.last.index
        bench.pass_time(MINIMUM_MS + 1, 2, 3)
        bench.propose(b"x")
        bench.matched(FOUR, bench.sent[FOUR])
        bench.matched(FOUR, bench.sent[FOUR], up_to=goal)
    assert bench.answers == [
        ConfigurationResolved(
            change_id=1,
            outcome=ChangeOutcome.REFUSED,
            refusal=ChangeRefusal.CATCH_UP_TOO_SLOW,
            position=None,
            leader=ONE,
        )
    ]
    assert bench.configuration == plain(1, 2, 3)
    assert bench.replicated_to == [2, 3]


def test_unresponsive_new_server_refused() -> None:
    """Thesis section 4.2.1: an unavailable server must not block the change."""
    bench = Group(options=replace(lan(), catch_up_stall_ms=5_000)).become_leader()
    bench.change(plain(1, 2, 3, 4))
    began = bench.now
    while not bench.answers:
        bench.pass_time(1, 2, 3)
    assert bench.answers == [
        ConfigurationResolved(
            change_id=1,
            outcome=ChangeOutcome.REFUSED,
            refusal=ChangeRefusal.CATCH_UP_STALLED,
            position=None,
            leader=ONE,
        )
    ]
    assert bench.now - began == 5_000


def test_idle_learner_has_catch_up_time_from_request() -> None:
    """The timeout begins with the request, not with the last entry that the learner stored."""
    bench = Group(options=replace(lan(), catch_up_stall_ms=5_000)).become_leader()
    bench.change(plain(1, 2, 3, learners=(4,)))
    bench.store(2)
    bench.pass_time(10_000, 2, 3)
    bench.change(plain(1, 2, 3, 4), change_id=2)
    assert len(bench.answers) == 1
    bench.pass_time(4_000, 2, 3)
    assert len(bench.answers) == 1
    bench.store(4)
    assert bench.configuration == plain(1, 2, 3, 4)


def test_new_server_of_later_term_refused() -> None:
    """The server was a member earlier, or belongs to another cluster. It can join only with an empty log."""
    bench = Group().become_leader()
    bench.change(plain(1, 2, 3, 4))
    while FOUR not in bench.sent:
        bench.expire()
    bench.refused(FOUR, bench.sent[FOUR], hint=1, term=9)
    refusal = ChangeRefusal.NEW_SERVER_IN_LATER_TERM
    assert bench.answers == [
        ConfigurationResolved(change_id=1, outcome=ChangeOutcome.REFUSED, refusal=refusal, position=None, leader=ONE)
    ]
    assert bench.is_(Role.LEADER)
    assert bench.about.term == 1


def test_learner_gets_log_without_vote_or_campaign() -> None:
    """A learner is a non-voting member while the configuration lists it as one."""
    bench = Group().become_leader()
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
