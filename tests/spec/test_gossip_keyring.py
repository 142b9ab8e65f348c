"""The keyring: whatever order changes arrive in, all members end with the same ring."""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import pairwise, permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.core.effects import Effect, Send, UseKeyring
from gossip.core.events import KeyringChanged, Received, Unreadable
from gossip.core.keyring import CLOCK_LIMIT, DATED_LIMIT, INSTALLED_LIMIT, KEYS_LIMIT, DatedKey, Keyring, KeyringError
from gossip.core.messages import DOMAIN, DropReason, JoinNak, KeyringUpdate, Payload, PingRequest, RefusalCode
from gossip.core.swim import Swim
from gossip.simulation.network import GossipNetwork, address_of, node_id
from tests.spec.gossip_story import Story, sent


def key(number: int) -> bytes:
    """A key for a small number."""
    return bytes([number]) * 32


ALIKE = (bytes(28) + (39269).to_bytes(4, "big"), bytes(28) + (43248).to_bytes(4, "big"))
"""Two keys with the same id, found by search: a holder of the farm's key finds such a pair in a moment."""
FIRST = Keyring.of(key(1), (), (), epoch=1)
IN_USE = FIRST.install(key(2)).use(key(2))
ROTATED = IN_USE.remove(key(1))


def keyed(chain: Keyring = FIRST) -> Story:
    """A node whose datagrams are sealed."""
    story = Story()
    story.swim = Swim(story.us, story.options, story.swim._random, 0, keys=chain)
    return story


def ping_with(story: Story, by: int, digest: bytes) -> PingRequest:
    """A ping of a node that has the keyring of this digest."""
    ping = story.ping(by)
    payload = Payload(capacity=8, peer_count=1, keys_digest=digest)
    own, other = ping.source_id, ping.target_id
    return PingRequest(own, ping.source_incarnation, other, ping.target_incarnation, ping.seq, 0, payload=payload)


def used(effects: list[Effect]) -> list[Keyring]:
    """The chains that the agent is told to use."""
    return [each.keyring for each in effects if isinstance(each, UseKeyring)]


# -- the chain ---------------------------------------------------------------------------------------------------------


def test_install_use_and_remove_are_the_steps_of_a_rotation() -> None:
    installed = FIRST.install(key(2))
    assert (installed.primary, installed.others, installed.retired) == (key(1), (key(2),), ())
    in_use = installed.use(key(2))
    assert (in_use.primary, in_use.others, in_use.retired) == (key(2), (key(1),), ())
    removed = in_use.remove(key(1))
    assert (removed.primary, removed.others, removed.retired) == (key(2), (), (key(1),))
    assert len({each.digest for each in (FIRST, installed, in_use, removed)}) == 4


def test_a_step_that_would_cut_the_group_off_from_itself_is_refused_in_words() -> None:
    refused: list[tuple[Callable[[], Keyring], str]] = [
        (lambda: FIRST.use(key(9)), "not installed"),
        (lambda: FIRST.remove(key(1)), "in use"),
        (lambda: FIRST.remove(key(9)), "not installed"),
        (lambda: ROTATED.install(key(1)), "cannot return"),
        (lambda: ROTATED.use(key(1)), "not installed"),
        (lambda: FIRST.install(b"short"), "32 bytes"),
    ]
    for step, words in refused:
        with pytest.raises(KeyringError, match=words):
            step()
    full = reduce(lambda chain, number: chain.install(key(number)), range(2, INSTALLED_LIMIT + 1), FIRST)
    with pytest.raises(KeyringError, match="remove one first"):
        full.install(key(99))


def test_repeated_steps_change_nothing() -> None:
    installed = FIRST.install(key(2))
    assert installed.install(key(2)) == installed
    assert installed.use(key(1)) == installed
    assert ROTATED.merge(ROTATED) == ROTATED


Step = tuple[str, int]
steps = st.tuples(st.sampled_from(["install", "use", "remove"]), st.integers(1, 6))


def walked(taken: list[Step], chain: Keyring = FIRST) -> Keyring:
    """The chain of an operator who tried these steps."""
    for step, number in taken:
        try:
            chain = getattr(chain, step)(key(number))
        except KeyringError:
            continue
    return chain


@given(st.lists(st.lists(steps, max_size=8), min_size=2, max_size=4))
@settings(max_examples=150, deadline=None)
def test_in_whatever_order_chains_merge_the_result_is_the_same(walks: list[list[Step]]) -> None:
    chains = [walked(each) for each in walks]
    results = {reduce(Keyring.merge, order).digest for order in permutations(chains)}
    assert len(results) == 1
    merged = reduce(Keyring.merge, chains)
    assert merged.is_sound()
    assert merged.merge(chains[0]) == merged


@given(st.lists(st.lists(st.tuples(st.sampled_from(["use", "remove"]), st.integers(1, 6)), max_size=8), min_size=2))
@settings(max_examples=100, deadline=None)
def test_what_one_of_many_operators_removed_opens_nowhere(walks: list[list[Step]]) -> None:
    common = Keyring.of(key(1), tuple(key(number) for number in range(2, 7)), (), epoch=1)
    chains = [walked(each, common) for each in walks]
    merged = reduce(Keyring.merge, chains)
    removed = {each for chain in chains for each in chain.retired} - {merged.primary}
    assert removed <= set(merged.retired)


def lies(count: int) -> st.SearchStrategy[Keyring]:
    """Any sound chain of some of that many keys: what a holder of the farm's key may push, in no honest order."""
    entries = st.builds(DatedKey, st.integers(1, 40), st.integers(1, count).map(key), st.booleans())
    some = st.lists(entries, max_size=DATED_LIMIT, unique_by=lambda entry: entry.key)
    return st.builds(lie, some, st.integers(1, count).map(key), st.integers(0, 40))


def lie(entries: list[DatedKey], primary: bytes, used_at: int) -> Keyring:
    """A chain of these, with the primary in its own place if it is not one of them."""
    own_place = [] if primary in {each.key for each in entries} else [DatedKey(0, primary)]
    return Keyring(tuple(sorted([*own_place, *entries])), primary, used_at)


@given(st.lists(lies(40), min_size=3, max_size=6), st.randoms(use_true_random=False), st.data())
@settings(max_examples=300, deadline=None)
def test_chains_beyond_the_limit_merge_alike_in_any_order_grouping_and_repetition(
    chains: list[Keyring], random: Random, data: st.DataObject
) -> None:
    first, second, third = chains[:3]
    assert all(each.is_sound() for each in chains)
    assert first.merge(second) == second.merge(first)
    assert first.merge(first) == first
    assert first.merge(second).merge(third) == first.merge(second.merge(third))
    expected = reduce(Keyring.merge, chains)
    assert expected.is_sound()
    # As a group does it: nodes that meet merge, what arrives twice is merged twice, and some changes on the way.
    heap = chains + [random.choice(chains) for _ in range(data.draw(st.integers(0, 4), label="told twice"))]
    while len(heap) > 1:
        random.shuffle(heap)
        heap.append(heap.pop().merge(heap.pop()))
    assert heap == [expected]


@given(
    st.lists(
        st.one_of(lies(60), st.lists(st.tuples(st.sampled_from(["install", "use", "remove"]), st.integers(1, 60)))),
        min_size=2,
        max_size=8,
    )
)
@settings(max_examples=150, deadline=None)
def test_a_change_or_a_merge_only_adds_to_what_is_known(story: list[Keyring | list[Step]]) -> None:
    chain = FIRST
    for happened in story:
        before = chain
        chain = chain.merge(happened) if isinstance(happened, Keyring) else walked(happened, chain)
        assert chain.is_sound()
        assert chain.merge(before) == before.merge(chain) == chain, "who hears of it follows"


def test_rotations_without_end_stay_bounded_and_forgotten_keys_do_not_come_back() -> None:
    chain = FIRST
    slept_through = None
    for number in range(2, 60):
        before = chain
        chain = chain.install(key(number)).use(key(number)).remove(before.primary)
        assert len(chain.keys) <= KEYS_LIMIT
        assert chain.is_sound()
        if number == 10:
            slept_through = before
    assert slept_through is not None
    assert chain.merge(slept_through) == chain, "a member that slept brings no key back to life"


def test_a_primary_older_than_forgotten_keys_still_opens_after_another_is_used() -> None:
    chain = FIRST
    for number in range(2, 2 + KEYS_LIMIT):
        chain = chain.install(key(number)).remove(key(number))
    assert key(2) not in {each.key for each in chain.keys}, "younger keys than the primary were forgotten"
    installed = chain.install(key(99))
    rotated = installed.use(key(99))
    assert rotated.is_sound(), "others would refuse the change, and the file kept of it could not be read again"
    assert key(1) in rotated.others, "the others still seal with it"
    assert installed.merge(rotated) == rotated.merge(installed) == rotated


FILED = Keyring.of(key(1), (key(2), key(3)), tuple(key(number) for number in range(10, 23)), epoch=4)
"""Out of a full key file: sixteen keys, all of the same age."""


def test_open_keys_are_not_forgotten_along_with_a_retired_key_of_the_same_age() -> None:
    changed = FILED.install(key(50))
    assert len(changed.keys) == KEYS_LIMIT
    assert set(changed.others) == {key(2), key(3), key(50)}
    assert len(changed.retired) == len(FILED.retired) - 1
    assert changed.is_sound()
    assert FILED.merge(changed) == changed.merge(FILED) == changed, "members that hear of it keep them, too"


def test_an_open_key_older_than_the_retired_key_that_is_forgotten_stays() -> None:
    chain = FIRST.install(key(2))
    for number in range(10, 10 + KEYS_LIMIT):
        chain = chain.install(key(number)).use(key(number)).remove(chain.primary)
    assert key(11) not in {each.key for each in chain.keys}, "younger keys were forgotten"
    assert key(2) in chain.others
    asleep = FIRST.install(key(2)).install(key(10)).use(key(10))
    woken = asleep.merge(chain)
    assert woken == chain.merge(asleep) == chain
    assert key(1) not in {each.key for each in woken.keys}, "removed and forgotten while it slept"


def test_a_key_that_was_removed_stays_removed_however_old_it_is() -> None:
    changed = FILED.install(key(50))
    removed = changed.remove(key(2))
    assert removed.merge(changed) == changed.merge(removed) == removed
    assert removed.merge(FILED) == removed


@given(st.lists(st.lists(st.tuples(st.sampled_from(["install", "use", "remove"]), st.integers(1, 60)), max_size=6)))
@settings(max_examples=100, deadline=None)
def test_members_that_forget_keys_on_their_own_keep_open_what_is_open_at_both(walks: list[list[Step]]) -> None:
    chains = [FILED, *(walked(each, FILED) for each in walks)]
    for one, other in pairwise(chains):
        merged = one.merge(other)
        open_at_both = {*one.others, one.primary} & {*other.others, other.primary}
        assert open_at_both <= {merged.primary, *merged.others}


def test_a_primary_older_than_all_that_a_chain_remembers_has_a_place_of_its_own() -> None:
    told = lie([DatedKey(100 + number, key(50 + number)) for number in range(DATED_LIMIT)], key(49), used_at=1)
    merged = FILED.merge(told)
    assert len(merged.keys) == KEYS_LIMIT
    assert merged.primary == key(1)
    assert merged.keys[0] == DatedKey(0, key(1))
    used_next = merged.use(key(60))
    assert key(1) in used_next.others, "the others still seal with it"
    assert used_next.is_sound()


def test_a_removal_wins_over_a_key_that_is_dated_anew_at_the_same_moment() -> None:
    removed = FILED.remove(key(2))
    for number in range(30, 36):
        dated = FILED.install(key(number)).remove(key(number))
        assert key(2) in dated.others
        assert key(2) in removed.merge(dated).retired


@pytest.mark.parametrize(
    "chain",
    [
        Keyring((), key(1), 1),
        Keyring((DatedKey(1, key(1)),), key(2), 1),
        Keyring((DatedKey(1, key(1)), DatedKey(2, key(1))), key(1), 1),
        Keyring((DatedKey(1, b"short"),), b"short", 1),
        Keyring((DatedKey(1, key(1)),), key(1), CLOCK_LIMIT),
        Keyring(tuple(DatedKey(n, key(n)) for n in range(1, KEYS_LIMIT + 2)), key(1), 1),
        Keyring((DatedKey(0, key(2)), DatedKey(1, key(1))), key(1), 1),
        Keyring((DatedKey(0, key(1), retired=True),), key(1), 1),
        Keyring((DatedKey(1, ALIKE[0]), DatedKey(2, ALIKE[1])), ALIKE[0], 1),
    ],
)
def test_a_chain_that_breaks_the_rules_is_not_sound_and_not_taken(chain: Keyring) -> None:
    assert not chain.is_sound()
    story = keyed()
    story.befriend(1)
    assert story.hear(1, KeyringUpdate(chain)) == []
    assert (story.swim.keyring, story.dropped(DropReason.BAD_KEYRING)) == (FIRST, 1)


def test_a_chain_whose_key_would_take_the_id_of_ours_is_not_taken() -> None:
    ours, theirs = (Keyring.of(each, (), (), epoch=1) for each in ALIKE)
    story = keyed(ours)
    story.befriend(1)
    assert theirs.is_sound()
    assert story.hear(1, KeyringUpdate(theirs)) == []
    assert (story.swim.keyring, story.dropped(DropReason.BAD_KEYRING)) == (ours, 1)
    with pytest.raises(KeyringError, match="the id of another one"):
        ours.install(ALIKE[1])


def test_a_chain_prints_no_key() -> None:
    assert key(7).hex() not in repr(KeyringUpdate(FIRST.install(b"7" * 32)))
    assert "7777" not in repr(KeyringUpdate(FIRST.install(b"7" * 32)))
    assert "7777" not in repr(DatedKey(1, b"7" * 32))


# -- its way through the group -----------------------------------------------------------------------------------------


def test_a_change_is_told_to_all_peers_before_this_node_seals_with_it() -> None:
    story = keyed()
    story.befriend(1, 2)
    effects = story.step(KeyringChanged(ROTATED))
    assert [type(each).__name__ for each in effects] == ["Send", "Send", "UseKeyring"]
    assert {target for target, _ in sent(effects, KeyringUpdate)} == {address_of(1), address_of(2)}
    assert used(effects) == [ROTATED]


def test_a_change_without_peers_is_told_to_all_known_members() -> None:
    story = keyed()
    story.befriend(1, 2)
    for number in (1, 2):
        story.hear(number, JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, story.pinged(number)))
    effects = story.step(KeyringChanged(ROTATED))
    assert {target for target, _ in sent(effects, KeyringUpdate)} == {address_of(1), address_of(2)}
    assert isinstance(effects[-1], UseKeyring)


def test_a_change_that_was_received_is_gossiped_further_once() -> None:
    story = keyed()
    story.befriend(1, 2)
    effects = story.hear(1, KeyringUpdate(IN_USE))
    assert used(effects) == [IN_USE]
    assert len(sent(effects, KeyringUpdate)) == 2
    assert story.hear(2, KeyringUpdate(IN_USE)) == []


def test_keys_of_which_none_opens_what_opens_now_are_refused_unless_they_come_in_a_box() -> None:
    story = keyed()
    story.befriend(1)
    strange = Keyring.of(key(9), (), (key(1),), epoch=7)
    for chain in (ROTATED, strange):
        assert story.hear(1, KeyringUpdate(chain)) == []
    assert story.swim.keyring == FIRST
    assert story.dropped(DropReason.KEYRING_WOULD_SPLIT) == 2
    assert used(story.step(Received(address_of(1), KeyringUpdate(ROTATED), boxed=True))) == [ROTATED]


def test_a_member_whose_datagrams_no_key_opens_is_told_the_keys_in_a_box_and_a_stranger_nothing() -> None:
    story = keyed()
    story.befriend(1)
    known = story.swim.membership.get(node_id(1))
    assert known is not None
    known.info = replace(known.info, credential=b"its public key and a signature")
    told = story.step(Unreadable(address_of(1)))
    assert told == [Send(address_of(1), KeyringUpdate(FIRST), node_id(1), boxed_for=known.info.credential)]
    assert story.step(Unreadable(address_of(7))) == []


def test_members_whose_digests_differ_exchange_their_chains() -> None:
    story = keyed(ROTATED)
    story.befriend(1)
    assert sent(story.hear(1, ping_with(story, 1, ROTATED.digest)), KeyringUpdate) == []
    behind = story.hear(1, ping_with(story, 1, FIRST.digest))
    assert sent(behind, KeyringUpdate) == [(address_of(1), KeyringUpdate(ROTATED))]
    assert sent(story.hear(1, ping_with(story, 1, b"")), KeyringUpdate) == [], "one that is not sealed has no chain"


def test_repairs_and_changes_are_limited() -> None:
    story = keyed()
    story.befriend(1)
    told = [sent(story.hear(1, ping_with(story, 1, b"differs!")), KeyringUpdate) for _ in range(300)]
    assert sum(len(each) for each in told) <= 100
    taken = 0
    chain = FIRST
    for number in range(10, 60):
        older = chain.others
        chain = reduce(Keyring.remove, older, chain.install(key(number)).use(key(number)))
        taken += len(used(story.hear(1, KeyringUpdate(chain))))
    assert taken <= 20
    assert story.dropped(DropReason.RATE_LIMITED) > 0


def test_a_node_in_clear_takes_no_keys() -> None:
    story = Story()
    story.befriend(1)
    assert story.hear(1, KeyringUpdate(FIRST)) == []
    assert story.step(KeyringChanged(FIRST)) == []
    assert story.swim.keyring is None


@pytest.mark.parametrize("random_seed", range(3))
def test_two_rotations_at_once_end_with_one_ring(random_seed: int) -> None:
    network = GossipNetwork(random_seed, loss=0.05, keys=FIRST)
    nodes = network.start(12)
    assert network.run_until(network.is_full_mesh, limit_ms=60_000)
    network.step(nodes[3], KeyringChanged(FIRST.install(key(2)).use(key(2))))
    network.step(nodes[8], KeyringChanged(FIRST.install(key(3)).use(key(3))))
    network.run(10_000)
    chains = {node.core.keyring for node in nodes}
    assert len(chains) == 1, f"random seed {random_seed}"
    (chain,) = chains
    assert chain is not None
    assert chain.primary == key(3)
    assert set(chain.others) == {key(1), key(2)}


def test_an_era_begins_with_one_key_and_retires_all_others() -> None:
    before = Keyring.of(key(1), (key(2),), (key(3),), 5)
    after = before.rekeyed(key(9), 1, before.clock + 1)
    assert after.is_sound()
    assert (after.primary, after.others, set(after.retired)) == (key(9), (), {key(1), key(2), key(3)})
    with pytest.raises(KeyringError):
        after.rekeyed(key(8), 1, after.clock + 1)


def test_whatever_was_done_to_the_keys_of_an_earlier_era_is_void() -> None:
    before = Keyring.of(key(1), (), (), 5)
    after = before.rekeyed(key(9), 1, before.clock + 1)
    thief = before.install(key(7)).use(key(7))
    thief = replace(thief, used_at=CLOCK_LIMIT - 1)
    assert after.merge(thief) == thief.merge(after) == after


def test_members_that_knew_different_keys_agree_within_the_era() -> None:
    one = Keyring.of(key(1), (), (), 5)
    other = one.install(key(2))
    used_at = other.clock + 1
    left, right = one.rekeyed(key(9), 1, used_at), other.rekeyed(key(9), 1, used_at)
    assert left.merge(right) == right.merge(left)
    assert left.merge(right).primary == key(9)


def test_an_era_is_never_taken_from_what_a_member_tells() -> None:
    story = keyed()
    story.befriend(1)
    forged = FIRST.rekeyed(key(9), 1, FIRST.clock + 1)
    effects = story.hear(1, KeyringUpdate(forged))
    assert used(effects) == []
    assert story.swim.keyring == FIRST


def test_the_key_of_a_new_era_is_in_use_before_any_member_is_told() -> None:
    story = keyed()
    story.befriend(1, 2)
    effects = story.step(KeyringChanged(FIRST.rekeyed(key(9), 1, FIRST.clock + 1)))
    assert [type(each).__name__ for each in effects] == ["UseKeyring", "Send", "Send"], (
        "the old key would carry the new one"
    )
