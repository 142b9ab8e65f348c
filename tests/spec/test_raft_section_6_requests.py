"""Requests to change the members (Raft section 6): one at a time, with reasons of refusals, by set of features."""

from msgspec.structs import replace

from consensus.core.effects import ChangeOutcome, ChangeRefusal, ConfigurationResolved
from consensus.core.entry_data import configuration_entry
from consensus.core.events import ChangeConfiguration
from consensus.core.features import GARLIC_FARM, ZMQ_RAFT, JointConsensus
from consensus.core.model import Configuration, LogId
from tests.effort import each_case
from tests.spec.membership_bench import Group, in_joint_consensus, joint, plain, servers
from tests.spec.raft_bench import ONE, TWO, Bench

# -- one change at a time ----------------------------------------------------------------------------------------------


def refusals(bench: Group) -> list[ChangeRefusal | None]:
    return [answer.refusal for answer in bench.answers]


def test_change_refused_before_commit_in_own_term() -> None:
    """An unfinished change of an older leader may still commit elsewhere."""
    bench = Group().lead()
    bench.change(plain(1, 2))
    assert refusals(bench) == [ChangeRefusal.NO_COMMIT_IN_TERM]
    assert bench.configuration == plain(1, 2, 3)


def test_change_refused_while_another_is_pending() -> None:
    """A change is pending while new servers catch up, in joint consensus, and until C_new is committed."""
    bench = Group().become_leader()
    bench.change(plain(3, 4, 5), change_id=1)
    bench.change(plain(1, 2), change_id=2)
    bench.bring_up(4, 5)
    bench.change(plain(1, 2), change_id=3)
    bench.store(2, 4, 3)
    assert bench.configuration == plain(3, 4, 5)
    bench.change(plain(3, 4), change_id=4)
    assert refusals(bench) == [ChangeRefusal.CHANGE_UNDER_WAY] * 3
    bench.store(5)
    assert bench.answers[-1] == ConfigurationResolved(
        change_id=1, outcome=ChangeOutcome.COMMITTED, refusal=None, position=LogId(3, 1), leader=ONE
    )


@each_case(
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
def test_invalid_configuration_refused(target: Configuration, refusal: ChangeRefusal) -> None:
    bench = Group().become_leader()
    bench.change(target)
    assert refusals(bench) == [refusal]
    assert bench.about.last.index == 1


def test_change_to_current_configuration_succeeds() -> None:
    """A client that repeats its request after a lost reply gets the result without a new entry."""
    bench = Group().become_leader()
    bench.change(plain(1, 2, 3))
    assert bench.answers[0].outcome is ChangeOutcome.COMMITTED
    assert bench.about.last.index == 1


def test_change_at_follower_refused_with_leader() -> None:
    bench = Bench()
    bench.append(term=1, entries=[configuration_entry(1, plain(1, 2, 3))], sender=TWO)
    bench.step(ChangeConfiguration(7, plain(1, 2)))
    assert bench.all(ConfigurationResolved) == [
        ConfigurationResolved(
            change_id=7, outcome=ChangeOutcome.REFUSED, refusal=ChangeRefusal.NOT_LEADER, position=None, leader=TWO
        )
    ]


def test_pending_change_of_resigning_leader_is_unknown() -> None:
    """The outcome is unknown, not refused, because another leader may complete the change."""
    bench = in_joint_consensus()
    bench.refused(TWO, bench.sent[TWO], hint=1, term=2)
    assert bench.answers == [ConfigurationResolved(change_id=1, outcome=ChangeOutcome.UNKNOWN)]


# -- sets of features --------------------------------------------------------------------------------------------------


def test_protocol_without_joint_consensus_changes_one_server() -> None:
    bench = Group(features=replace(GARLIC_FARM, joint=JointConsensus.NEVER)).become_leader()
    bench.change(plain(1, 2, 4), change_id=1)
    assert refusals(bench) == [ChangeRefusal.MORE_THAN_ONE_SERVER]
    bench.change(plain(1, 2), change_id=2)
    bench.store(2)
    bench.change(plain(1, 2, 4), change_id=3)
    bench.bring_up(4)
    assert bench.configuration == plain(1, 2, 4)


def test_peer_without_extension_prevents_joint_change() -> None:
    """The peer would refuse the joint entry, and replication to it would stop."""
    bench = Group(extended=False).become_leader()
    bench.change(plain(1, 4, 5), change_id=1)
    bench.change(plain(1, 2, 3, learners=(4,)), change_id=2)
    assert refusals(bench) == [ChangeRefusal.MORE_THAN_ONE_SERVER, ChangeRefusal.NO_LEARNERS]
    bench.change(plain(1, 2), change_id=3)
    assert bench.configuration == plain(1, 2)


def test_protocol_without_learners_refuses_them() -> None:
    """In this protocol, observers are not part of the configuration."""
    bench = Group(1, features=ZMQ_RAFT).become_leader()
    bench.change(plain(1, 2, 3, learners=(4,)))
    assert refusals(bench) == [ChangeRefusal.NO_LEARNERS]
