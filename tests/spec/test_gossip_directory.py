"""Which members a full directory forgets: a flood of names displaces only its own."""

import pytest

from gossip.core.events import SeedsGiven
from gossip.core.member import NodeId, Status
from gossip.core.messages import AliveUpdate, JoinAck
from gossip.core.options import SwimOptions
from gossip.simulation.network import address_of, node_id
from tests.spec.gossip_story import Story, info_of, verdict

LIMIT = 20
FLOOD = range(1_000, 1_500)


def full_of(*numbers: int) -> Story:
    """A node with peer 1 and a directory that is full of these and 100, 101, ...; peer 1 named them."""
    story = Story(options=SwimOptions(directory_limit=LIMIT))
    story.befriend(1)
    story.hear_of(*numbers, *range(100, 100 + LIMIT - 1 - len(numbers)))
    assert len(known(story)) == LIMIT
    return story


def known(story: Story) -> list[NodeId]:
    return [member.node_id for member in story.swim.describe().members]


@pytest.mark.parametrize("told_twice", [False, True])
def test_a_flood_of_identities_takes_one_place_and_washes_out_no_quiet_member(told_twice: bool) -> None:  # noqa: FBT001
    story = full_of(2, 3)
    before = known(story)
    for number in FLOOD:
        story.now += 1
        for _ in range(1 + told_twice):
            story.hear_news(1, AliveUpdate(info_of(number)))
    after = known(story)
    assert len(after) == LIMIT
    assert len(set(before) - set(after)) == 1
    assert node_id(FLOOD[-1]) in after, "a newcomer still has its chance"


def test_a_member_that_spoke_to_us_stays_while_there_is_one_that_never_did() -> None:
    story = full_of(2)
    story.hear(2, story.ping(2))
    for number in FLOOD:
        story.now += 1
        story.hear_news(1, AliveUpdate(info_of(number)))
    assert {node_id(1), node_id(2)} <= set(known(story))


def test_the_sample_of_a_welcome_does_not_push_out_the_member_that_welcomes() -> None:
    story = full_of(2)
    story.step(SeedsGiven((address_of(60),)))
    story.pass_time(1, answering=(1,))
    story.hear(60, JoinAck(info_of(60), tuple(info_of(number) for number in (61, 62, 63))))
    assert node_id(60) in known(story)
    assert all(peer in known(story) for peer in story.swim.membership.links)


def test_the_tombstones_of_those_we_never_met_go_first() -> None:
    story = full_of(2, 3)
    story.hear(2, story.ping(2))
    story.hear_news(1, verdict(2, Status.DEAD, by=1), verdict(3, Status.DEAD, by=1))
    story.hear_of(50)
    assert story.status(2) is Status.DEAD
    assert story.status(3) is None
    assert story.status(100) is Status.ALIVE


def test_among_those_that_we_met_the_longest_unmentioned_goes() -> None:
    story = Story(options=SwimOptions(directory_limit=LIMIT))
    story.befriend(1)
    numbers = range(2, LIMIT + 1)
    for number in numbers:
        story.hear_of(number)
        story.now += 1
        story.hear(number, story.ping(number))
    story.hear_of(2)
    story.hear_of(50)
    assert story.status(3) is None
    assert story.status(2) is Status.ALIVE
