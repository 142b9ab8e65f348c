"""How far a logical clock may be told: to the time of day. What one member may believe, every other may, too."""

from dataclasses import replace

import pytest

from gossip.core.effects import BroadcastHeard
from gossip.core.events import KeysChanged, SayRequested
from gossip.core.horizon import CLOCK_LIMIT, HEAD_START, Horizon
from gossip.core.keychain import ChainKey, KeyChain
from gossip.core.messages import KeyNews
from gossip.core.rumours import CLOCK_WORD
from gossip.core.swim import Swim
from gossip.simulation.network import GossipNetwork, node_id
from tests.spec.gossip_story import Story
from tests.spec.test_gossip_keys import FIRST, key, keyed
from tests.spec.test_gossip_rumours import heard, rumours_in, tell, word

IN_2026_MS = 1_767_225_600_000
YEAR_MS = 31_557_600_000


def chain_at(clock: int) -> KeyChain:
    """The first chain with a second key, which somebody uses at that time."""
    return KeyChain((*FIRST.keys, ChainKey(clock, key(2))), key(2), clock)


def test_the_scale_lasts_for_two_hundred_years_however_anybody_lies() -> None:
    assert Horizon(IN_2026_MS).at(200 * YEAR_MS) < CLOCK_LIMIT - 1
    assert Horizon(IN_2026_MS).at(1) - Horizon(IN_2026_MS).at(0) > 1_000
    assert Horizon(1 << 60).at(1 << 60) == CLOCK_LIMIT - 1, "and then it ends, whatever the clock of the machine says"
    assert Horizon(-5).at(-5) == HEAD_START


@pytest.mark.parametrize("steps", [1, 2, 1_000])
def test_a_member_that_missed_every_lie_of_others_takes_what_they_have_now(steps: int) -> None:
    horizon = Horizon(IN_2026_MS).at(0)
    pushed, missed = (keyed(), keyed())
    for story in (pushed, missed):
        story.swim = Swim(story.us, story.tuning, story.swim._random, 0, keys=FIRST, unix_ms=IN_2026_MS)
        story.befriend(1)
    for step in range(1, steps + 1):
        pushed.now += 1_000
        pushed.hear(1, KeyNews(chain_at(horizon * step // steps)))
    now = pushed.swim.keys
    assert now is not None
    assert now.clock == horizon
    missed.hear(1, KeyNews(now))
    assert missed.swim.keys == now


def test_after_the_farthest_lie_the_operator_can_change_the_keys_at_once() -> None:
    story, other = keyed(), keyed()
    for each in (story, other):
        each.befriend(1)
        each.hear(1, KeyNews(chain_at(Horizon(0).at(0))))
    chain = story.swim.keys
    assert chain is not None
    story.step(KeysChanged(chain.install(key(3)).use(key(3))))
    changed = story.swim.keys
    assert changed is not None
    other.now += 1
    other.hear(1, KeyNews(changed))
    assert other.swim.keys == changed
    assert changed.primary == key(3)


def test_a_clock_ahead_of_the_time_of_day_is_refused_until_that_has_come() -> None:
    story = keyed()
    story.befriend(1)
    news = KeyNews(chain_at(Horizon(0).at(60_000)))
    story.hear(1, news)
    assert (story.swim.keys, story.dropped("bad-keys")) == (FIRST, 1)
    story.now += 60_000
    story.hear(1, news)
    assert story.swim.keys == news.chain


def test_words_after_a_far_lie_are_heard_by_those_who_missed_it() -> None:
    story = Story()
    story.befriend(1)
    far = word(Horizon(0).at(0))
    assert heard(tell(story, far)) == [far]
    story.step(SayRequested("word", b"later"))
    (later,) = [each for each in rumours_in(story.pass_time(2_000)) if each.body == b"later"][:1]
    other = Story()
    other.befriend(1)
    other.now = story.now
    later = replace(later, rumour_id=replace(later.rumour_id, origin=node_id(1)))  # both stories are node 0
    assert heard(tell(other, later)) == [later]


def test_somebody_far_below_our_floor_is_told_our_clock_seldom_and_no_application_hears_of_it() -> None:
    story = Story()
    story.befriend(1)
    remembered = story.tuning.rumours_remembered
    for n in range(remembered + 1):
        tell(story, word(HEAD_START - remembered + n))
    story.pass_time(60_000, answering=(1,))
    told = [
        rumour
        for n in range(5)
        for rumour in rumours_in([*tell(story, word(1 + n)), *story.pass_time(1_000, answering=(1,))])
        if rumour.name == CLOCK_WORD
    ]
    assert {rumour.rumour_id.time for rumour in told} == {HEAD_START + 1}, "one word, told several times"
    other = Story()
    other.befriend(1)
    other.now = 1_000
    assert heard(tell(other, told[0])) == []
    assert other.swim._rumours.clock == HEAD_START + 1


@pytest.mark.parametrize("random_seed", range(3))
def test_a_member_whose_clock_others_were_lied_past_is_heard_again(random_seed: int) -> None:
    network = GossipNetwork(random_seed)
    nodes = network.start(8)
    assert network.run_until(network.is_full_mesh, limit_ms=60_000)
    for node in nodes[1:]:
        node.core._rumours.clock = node.core._rumours._floor = HEAD_START
    words: list[bytes] = []
    network.watch = lambda _, effect: (
        words.append(effect.broadcast.body) if isinstance(effect, BroadcastHeard) else None
    )
    for body in (b"lost", b"heard"):
        network.step(nodes[0], SayRequested("word", body))
        network.run(15_000)
    assert words == 7 * [b"heard"], f"random seed {random_seed}"
