"""Bound of logical clocks: the time of day. A clock accepted by one member is acceptable to all others."""

import pytest
from msgspec.structs import replace

from gossip.core.effects import UserEventReceived
from gossip.core.events import KeyringChanged, UserEventRequested
from gossip.core.keyring import CLOCK_LIMIT, HEAD_START, ClockBound, DatedKey, Keyring
from gossip.core.messages import DropReason, KeyringUpdate
from gossip.core.swim import Swim
from gossip.core.user_events import CLOCK_EVENT
from tests.simulation.gossip_network import GossipNetwork, node_id
from tests.spec.gossip_story import Story
from tests.spec.test_gossip_keyring import FIRST, key, sealed_node
from tests.spec.test_gossip_user_events import deliveries, make_event, receive_messages, user_messages_in

IN_2026_MS = 1_767_225_600_000
YEAR_MS = 31_557_600_000


def chain_at(clock: int) -> Keyring:
    """Return the first chain with a second key, which is in use from that clock time on."""
    return Keyring((*FIRST.keys, DatedKey(clock, key(2))), key(2), clock)


def test_clock_scale_lasts_two_hundred_years() -> None:
    assert ClockBound(IN_2026_MS).at(200 * YEAR_MS) < CLOCK_LIMIT - 1
    assert ClockBound(IN_2026_MS).at(1) - ClockBound(IN_2026_MS).at(0) > 1_000
    assert ClockBound(1 << 60).at(1 << 60) == CLOCK_LIMIT - 1, (
        "at the end the bound is the last value, for any time of day"
    )
    assert ClockBound(-5).at(-5) == HEAD_START


@pytest.mark.parametrize("steps", [1, 2, 1_000])
def test_member_with_old_keyring_accepts_latest(steps: int) -> None:
    clock_bound = ClockBound(IN_2026_MS).at(0)
    pushed, lagging = (sealed_node(), sealed_node())
    for story in (pushed, lagging):
        story.swim = Swim(story.us, story.options, story.swim._random, 0, keys=FIRST, unix_ms=IN_2026_MS)
        story.add_peers(1)
    for step in range(1, steps + 1):
        pushed.now += 1_000
        pushed.receive(1, KeyringUpdate(chain_at(clock_bound * step // steps)))
    now = pushed.swim.keyring
    assert now is not None
    assert now.clock == clock_bound
    lagging.receive(1, KeyringUpdate(now))
    assert lagging.swim.keyring == now


def test_operator_can_change_keys_at_clock_bound() -> None:
    story, other = sealed_node(), sealed_node()
    for each in (story, other):
        each.add_peers(1)
        each.receive(1, KeyringUpdate(chain_at(ClockBound(0).at(0))))
    chain = story.swim.keyring
    assert chain is not None
    story.step(KeyringChanged(chain.install(key(3)).use(key(3))))
    changed = story.swim.keyring
    assert changed is not None
    other.now += 1
    other.receive(1, KeyringUpdate(changed))
    assert other.swim.keyring == changed
    assert changed.primary == key(3)


def test_keyring_ahead_of_time_of_day_refused_until_then() -> None:
    story = sealed_node().with_peers(1)
    update = KeyringUpdate(chain_at(ClockBound(0).at(60_000)))
    story.receive(1, update)
    assert (story.swim.keyring, story.dropped(DropReason.BAD_KEYRING)) == (FIRST, 1)
    story.now += 60_000
    story.receive(1, update)
    assert story.swim.keyring == update.keyring


def test_event_at_clock_bound_accepted_by_lagging_member() -> None:
    story = Story().with_peers(1)
    far = make_event(ClockBound(0).at(0))
    assert deliveries(receive_messages(story, far)) == [far]
    story.step(UserEventRequested("word", b"later"))
    (later,) = [each for each in user_messages_in(story.pass_time(2_000)) if each.body == b"later"][:1]
    other = Story().with_peers(1)
    other.now = story.now
    later = replace(later, message_id=replace(later.message_id, origin=node_id(1)))  # both nodes are node 0
    assert deliveries(receive_messages(other, later)) == [later]


def test_sender_below_floor_receives_clock_event() -> None:
    """The event moves the receiver's clock. Its application does not receive the event."""
    story = Story().with_peers(1)
    limit = story.options.user_messages_remembered
    for n in range(limit + 1):
        receive_messages(story, make_event(HEAD_START - limit + n))
    story.pass_time(60_000, answering=(1,))
    clock_events = [
        user_message
        for n in range(5)
        for user_message in user_messages_in(
            [*receive_messages(story, make_event(1 + n)), *story.pass_time(1_000, answering=(1,))]
        )
        if user_message.name == CLOCK_EVENT
    ]
    assert {user_message.message_id.time for user_message in clock_events} == {HEAD_START + 1}, (
        "the same event, sent several times"
    )
    other = Story().with_peers(1)
    other.now = 1_000
    assert deliveries(receive_messages(other, clock_events[0])) == []
    assert other.swim._user_events.clock == HEAD_START + 1


@pytest.mark.parametrize("random_seed", range(3))
def test_member_with_old_clock_is_received_again(random_seed: int) -> None:
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
