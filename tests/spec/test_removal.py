"""Removal of a server by an operator: its reports no longer count, and the leader removes it from the group."""

from msgspec.structs import replace

from bridge.core.farm.operator_commands import RemovalChanged
from bridge.core.formation.member import MemberStatus
from bridge.core.log.records import Removal
from bridge.core.log.weights import CommandRefused
from bridge.core.membership.reconcile import HandOver, Remove
from bridge.core.publishing.publisher_election import PublisherChanged
from tests.spec.farm_stories import MASTER, Log, report
from tests.spec.test_reconcile import SETTINGS, SETTLE_MS, Story

THREE = tuple(bytes([number]) * 8 for number in (1, 2, 3))


def farm_of_three() -> Log:
    log = Log(founders=THREE)
    log.append(report(1), report(2), report(3))
    return log


# -- the state machine -------------------------------------------------------------------------------------------------


def test_removed_server_stops_publishing_and_its_leaves_too() -> None:
    log = farm_of_three()
    assert log.publisher == 1
    assert log.append(Removal(1, removed=True)) == [RemovalChanged(1, removed=True), PublisherChanged(MASTER, 2, 1)]
    assert log.leaves.keys() == {"leaf02", "leaf03"}
    assert log.append(report(1)) == []
    assert 1 not in log.farm.state.servers


def test_restored_server_counts_from_next_report() -> None:
    log = farm_of_three()
    log.append(Removal(1, removed=True), Removal(1, removed=False))
    assert log.leaves.keys() == {"leaf02", "leaf03"}
    log.append(report(1))
    assert log.leaves.keys() == {"leaf01", "leaf02", "leaf03"}


def test_unchanged_removal_ignored_and_unknown_refused() -> None:
    log = farm_of_three()
    assert log.append(Removal(2, removed=False)) == []
    [refused] = log.append(Removal(9, removed=True))
    assert refused == CommandRefused("removal", "no server of this farm has the Raft id 9")
    assert log.farm.state.removed == ()


# -- the group ---------------------------------------------------------------------------------------------------------


def test_live_voter_removed_by_operator_immediately() -> None:
    story = Story(voters=5, rules=replace(SETTINGS, expect=3))
    story.removed = {4}
    assert story.run(3 * SETTLE_MS) == [Remove(4)]
    assert story.voters == {1, 2, 3, 5}


def test_restored_server_added_in_usual_steps() -> None:
    story = Story(voters=5)
    story.removed = {4}
    story.run(SETTLE_MS)
    story.removed = set()
    story.run(3 * SETTLE_MS)
    assert story.voters == {1, 2, 3, 4, 5}


def test_leader_to_be_removed_transfers_leadership_first() -> None:
    story = Story(voters=4)
    story.removed = {1}
    assert story.run(3 * SETTLE_MS) == [HandOver(), Remove(1)]
    assert (story.leader, story.voters) == (2, {2, 3, 4})


def test_removal_waits_for_replacement_voter() -> None:
    story = Story(voters=3)
    story.removed = {3}
    assert story.run(3 * SETTLE_MS) == []
    expected = (
        "an operator has requested the removal of node-3; not removed: a farm of 3 needs another voter as a"
        " replacement first"
    )
    assert expected in story.decision.waits
    story.lead(3)
    story.status[1] = MemberStatus.ALIVE
    assert story.run(3 * SETTLE_MS) == [], "the leader does not transfer leadership either"
    assert any("not removed" in text for text in story.decision.waits)


def test_learner_replaces_voter_to_be_removed() -> None:
    story = Story(voters=3, others=1)
    story.removed = {3}
    story.run(5 * SETTLE_MS)
    assert story.voters == {1, 2, 4}
