"""Eviction from a full directory: a flood of identities displaces one earlier member, then only its own entries."""

import pytest

from gossip.core.events import SeedsGiven
from gossip.core.member import NodeId, Status
from gossip.core.messages import AliveUpdate, JoinAck
from gossip.core.options import SwimOptions
from tests.simulation.gossip_network import address_of, node_id
from tests.spec.gossip_story import Story, info_of, verdict

LIMIT = 20
FLOOD = range(1_000, 1_500)


def full_of(*numbers: int) -> Story:
    """Return a node with peer 1 and a directory filled by peer 1 with these nodes and 100, 101, ..."""
    story = Story(options=SwimOptions(directory_limit=LIMIT)).with_peers(1)
    story.discover(*numbers, *range(100, 100 + LIMIT - 1 - len(numbers)))
    assert len(known(story)) == LIMIT
    return story


def known(story: Story) -> list[NodeId]:
    return [member.node_id for member in story.swim.describe().members]


@pytest.mark.parametrize("repeated", [False, True])
def test_flood_of_identities_displaces_one_member(repeated: bool) -> None:  # noqa: FBT001
    story = full_of(2, 3)
    before = known(story)
    for number in FLOOD:
        story.now += 1
        for _ in range(1 + repeated):
            story.receive_updates(1, AliveUpdate(info_of(number)))
    after = known(story)
    assert len(after) == LIMIT
    assert len(set(before) - set(after)) == 1
    assert node_id(FLOOD[-1]) in after, "a new node still gets a place"


def test_flood_of_identities_keeps_met_members() -> None:
    story = full_of(2)
    story.receive(2, story.ping(2))
    for number in FLOOD:
        story.now += 1
        story.receive_updates(1, AliveUpdate(info_of(number)))
    assert {node_id(1), node_id(2)} <= set(known(story))


def test_members_in_join_ack_do_not_displace_its_sender() -> None:
    story = full_of(2)
    story.step(SeedsGiven((address_of(60),)))
    story.pass_time(1, answering=(1,))
    story.receive(60, JoinAck(info_of(60), tuple(info_of(number) for number in (61, 62, 63))))
    assert node_id(60) in known(story)
    assert all(peer in known(story) for peer in story.swim.membership.links)


def test_tombstones_of_unmet_members_dropped_first() -> None:
    story = full_of(2, 3)
    story.receive(2, story.ping(2))
    story.receive_updates(1, verdict(2, Status.DEAD, by=1), verdict(3, Status.DEAD, by=1))
    story.discover(50)
    assert story.status(2) is Status.DEAD
    assert story.status(3) is None
    assert story.status(100) is Status.ALIVE


def test_longest_unmentioned_contact_dropped_next() -> None:
    story = Story(options=SwimOptions(directory_limit=LIMIT)).with_peers(1)
    numbers = range(2, LIMIT + 1)
    for number in numbers:
        story.discover(number)
        story.now += 1
        story.receive(number, story.ping(number))
    story.discover(2)
    story.discover(50)
    assert story.status(3) is None
    assert story.status(2) is Status.ALIVE
