"""How far a logical clock may be told: to the time of day. What one member may believe, every other may, too."""

from dataclasses import replace

import pytest

from gossip.core.effects import UserEventReceived
from gossip.core.events import KeyringChanged, UserEventRequested
from gossip.core.keyring import CLOCK_LIMIT, HEAD_START, ClockBound, DatedKey, Keyring
from gossip.core.messages import DropReason, KeyringUpdate
from gossip.core.swim import Swim
from gossip.core.user_events import CLOCK_EVENT
from gossip.simulation.network import GossipNetwork, node_id
from tests.spec.gossip_story import Story
from tests.spec.test_gossip_keyring import FIRST, key, keyed
from tests.spec.test_gossip_user_events import heard, tell, user_messages_in, word

IN_2026_MS = 1_767_225_600_000
YEAR_MS = 31_557_600_000


def chain_at(clock: int) -> Keyring:
    """The first chain with a second key, which is in use at that time."""
    return Keyring((*FIRST.keys, DatedKey(clock, key(2))), key(2), clock)


def test_the_scale_lasts_for_two_hundred_years_whatever_lies_are_told() -> None:
    assert ClockBound(IN_2026_MS).at(200 * YEAR_MS) < CLOCK_LIMIT - 1
    assert ClockBound(IN_2026_MS).at(1) - ClockBound(IN_2026_MS).at(0) > 1_000
    assert ClockBound(1 << 60).at(1 << 60) == CLOCK_LIMIT - 1, (
        "and then it ends, whatever the clock of the machine says"
    )
    assert ClockBound(-5).at(-5) == HEAD_START


@pytest.mark.parametrize("steps", [1, 2, 1_000])
def test_a_member_that_missed_every_lie_of_others_takes_what_they_have_now(steps: int) -> None:
    clock_bound = ClockBound(IN_2026_MS).at(0)
    pushed, missed = (keyed(), keyed())
    for story in (pushed, missed):
        story.swim = Swim(story.us, story.options, story.swim._random, 0, keys=FIRST, unix_ms=IN_2026_MS)
        story.befriend(1)
    for step in range(1, steps + 1):
        pushed.now += 1_000
        pushed.hear(1, KeyringUpdate(chain_at(clock_bound * step // steps)))
    now = pushed.swim.keyring
    assert now is not None
    assert now.clock == clock_bound
    missed.hear(1, KeyringUpdate(now))
    assert missed.swim.keyring == now


def test_after_the_farthest_lie_the_operator_can_change_the_keys_at_once() -> None:
    story, other = keyed(), keyed()
    for each in (story, other):
        each.befriend(1)
        each.hear(1, KeyringUpdate(chain_at(ClockBound(0).at(0))))
    chain = story.swim.keyring
    assert chain is not None
    story.step(KeyringChanged(chain.install(key(3)).use(key(3))))
    changed = story.swim.keyring
    assert changed is not None
    other.now += 1
    other.hear(1, KeyringUpdate(changed))
    assert other.swim.keyring == changed
    assert changed.primary == key(3)


def test_a_clock_ahead_of_the_time_of_day_is_refused_until_that_has_come() -> None:
    story = keyed()
    story.befriend(1)
    news = KeyringUpdate(chain_at(ClockBound(0).at(60_000)))
    story.hear(1, news)
    assert (story.swim.keyring, story.dropped(DropReason.BAD_KEYRING)) == (FIRST, 1)
    story.now += 60_000
    story.hear(1, news)
    assert story.swim.keyring == news.keyring


def test_events_after_a_far_lie_reach_the_members_that_missed_it() -> None:
    story = Story()
    story.befriend(1)
    far = word(ClockBound(0).at(0))
    assert heard(tell(story, far)) == [far]
    story.step(UserEventRequested("word", b"later"))
    (later,) = [each for each in user_messages_in(story.pass_time(2_000)) if each.body == b"later"][:1]
    other = Story()
    other.befriend(1)
    other.now = story.now
    later = replace(later, message_id=replace(later.message_id, origin=node_id(1)))  # both stories are node 0
    assert heard(tell(other, later)) == [later]


def test_a_sender_far_below_our_floor_is_told_our_clock_seldom_and_no_application_hears_of_it() -> None:
    story = Story()
    story.befriend(1)
    remembered = story.options.user_messages_remembered
    for n in range(remembered + 1):
        tell(story, word(HEAD_START - remembered + n))
    story.pass_time(60_000, answering=(1,))
    told = [
        user_message
        for n in range(5)
        for user_message in user_messages_in([*tell(story, word(1 + n)), *story.pass_time(1_000, answering=(1,))])
        if user_message.name == CLOCK_EVENT
    ]
    assert {user_message.message_id.time for user_message in told} == {HEAD_START + 1}, "one word, told several times"
    other = Story()
    other.befriend(1)
    other.now = 1_000
    assert heard(tell(other, told[0])) == []
    assert other.swim._user_events.clock == HEAD_START + 1


@pytest.mark.parametrize("random_seed", range(3))
def test_a_member_whose_clock_others_were_lied_past_is_heard_again(random_seed: int) -> None:
    network = GossipNetwork(random_seed)
    nodes = network.start(8)
    assert network.run_until(network.is_full_mesh, limit_ms=60_000)
    for node in nodes[1:]:
        node.core._user_events.clock = node.core._user_events._floor = HEAD_START
    words: list[bytes] = []
    network.watch = lambda _, effect: (
        words.append(effect.user_event.body) if isinstance(effect, UserEventReceived) else None
    )
    for body in (b"lost", b"heard"):
        network.step(nodes[0], UserEventRequested("word", body))
        network.run(15_000)
    assert words == 7 * [b"heard"], f"random seed {random_seed}"
