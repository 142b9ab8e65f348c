"""The keyring: changes may arrive in any order, and all members end with the same ring."""

import dataclasses
from collections.abc import Callable
from functools import reduce
from itertools import pairwise, permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gossip.core.effects import Effect, Send, UseKeyring
from gossip.core.events import KeyringChanged, Received, Unreadable
from gossip.core.keyring import CLOCK_LIMIT, DATED_LIMIT, INSTALLED_LIMIT, KEYS_LIMIT, DatedKey, Keyring, KeyringError
from gossip.core.messages import DOMAIN, DropReason, JoinNak, KeyringUpdate, Payload, PingRequest, RefusalCode
from gossip.core.swim import Swim
from tests.effort import each_case
from tests.simulation.gossip_network import GossipNetwork, address_of, node_id
from tests.spec.gossip_story import Story, sent


def key(number: int) -> bytes:
    return bytes([number]) * 32


ALIKE = (bytes(28) + (39269).to_bytes(4, "big"), bytes(28) + (43248).to_bytes(4, "big"))
"""Two keys with the same id, found by search: a holder of the farm's key finds such a pair quickly."""
FIRST = Keyring.of(key(1), (), (), epoch=1)
IN_USE = FIRST.install(key(2)).use(key(2))
ROTATED = IN_USE.remove(key(1))


def sealed_node(chain: Keyring = FIRST) -> Story:
    story = Story()
    story.swim = Swim(story.us, story.options, story.swim._random, 0, keys=chain)
    return story


def ping_with(story: Story, by: int, digest: bytes) -> PingRequest:
    ping = story.ping(by)
    payload = Payload(capacity=8, peer_count=1, keys_digest=digest)
    own, other = ping.source_id, ping.target_id
    return PingRequest(own, ping.source_incarnation, other, ping.target_incarnation, ping.seq, 0, payload=payload)


def used_keyrings(effects: list[Effect]) -> list[Keyring]:
    return [each.keyring for each in effects if isinstance(each, UseKeyring)]


# -- the chain ---------------------------------------------------------------------------------------------------------


def test_rotation_is_install_use_remove() -> None:
    installed = FIRST.install(key(2))
    assert (installed.primary, installed.others, installed.retired) == (key(1), (key(2),), ())
    in_use = installed.use(key(2))
    assert (in_use.primary, in_use.others, in_use.retired) == (key(2), (key(1),), ())
    removed = in_use.remove(key(1))
    assert (removed.primary, removed.others, removed.retired) == (key(2), (), (key(1),))
    assert len({each.digest for each in (FIRST, installed, in_use, removed)}) == 4


def test_steps_splitting_group_refused() -> None:
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


def test_repeated_steps_are_idempotent() -> None:
    installed = FIRST.install(key(2))
    assert installed.install(key(2)) == installed
    assert installed.use(key(1)) == installed
    assert ROTATED.merge(ROTATED) == ROTATED


Step = tuple[str, int]
steps = st.tuples(st.sampled_from(["install", "use", "remove"]), st.integers(1, 6))


def chain_after(taken: list[Step], chain: Keyring = FIRST) -> Keyring:
    for step, number in taken:
        try:
            chain = getattr(chain, step)(key(number))
        except KeyringError:
            continue
    return chain


@given(st.lists(st.lists(steps, max_size=8), min_size=2, max_size=4))
def test_chains_merge_to_same_result_in_any_order(histories: list[list[Step]]) -> None:
    chains = [chain_after(each) for each in histories]
    results = {reduce(Keyring.merge, order).digest for order in permutations(chains)}
    assert len(results) == 1
    merged = reduce(Keyring.merge, chains)
    assert merged.is_sound()
    assert merged.merge(chains[0]) == merged


@given(st.lists(st.lists(st.tuples(st.sampled_from(["use", "remove"]), st.integers(1, 6)), max_size=8), min_size=2))
def test_key_removed_by_one_operator_is_retired_everywhere(histories: list[list[Step]]) -> None:
    common = Keyring.of(key(1), tuple(key(number) for number in range(2, 7)), (), epoch=1)
    chains = [chain_after(each, common) for each in histories]
    merged = reduce(Keyring.merge, chains)
    removed = {each for chain in chains for each in chain.retired} - {merged.primary}
    assert removed <= set(merged.retired)


def forged_chains(count: int) -> st.SearchStrategy[Keyring]:
    """Return a strategy for all sound chains of up to `count` keys: a holder of the farm's key may push any of them."""
    entries = st.builds(DatedKey, st.integers(1, 40), st.integers(1, count).map(key), st.booleans())
    some = st.lists(entries, max_size=DATED_LIMIT, unique_by=lambda entry: entry.key)
    return st.builds(forged_chain, some, st.integers(1, count).map(key), st.integers(0, 40))


def forged_chain(entries: list[DatedKey], primary: bytes, used_at: int) -> Keyring:
    """Return a chain of these entries. A primary that is not among them is added first."""
    own_place = [] if primary in {each.key for each in entries} else [DatedKey(0, primary)]
    return Keyring(tuple(sorted([*own_place, *entries])), primary, used_at)


@given(st.lists(forged_chains(40), min_size=3, max_size=6), st.randoms(use_true_random=False), st.data())
def test_chains_beyond_limit_merge_alike_in_any_order(
    chains: list[Keyring], random: Random, data: st.DataObject
) -> None:
    first, second, third = chains[:3]
    assert all(each.is_sound() for each in chains)
    assert first.merge(second) == second.merge(first)
    assert first.merge(first) == first
    assert first.merge(second).merge(third) == first.merge(second.merge(third))
    expected = reduce(Keyring.merge, chains)
    assert expected.is_sound()
    # As in a group: nodes that meet merge, duplicates are merged twice, and some chains change between merges.
    heap = chains + [random.choice(chains) for _ in range(data.draw(st.integers(0, 4), label="duplicates"))]
    while len(heap) > 1:
        random.shuffle(heap)
        heap.append(heap.pop().merge(heap.pop()))
    assert heap == [expected]


@given(
    st.lists(
        st.one_of(
            forged_chains(60), st.lists(st.tuples(st.sampled_from(["install", "use", "remove"]), st.integers(1, 60)))
        ),
        min_size=2,
        max_size=8,
    )
)
def test_changed_or_merged_chain_supersedes_earlier_one(story: list[Keyring | list[Step]]) -> None:
    chain = FIRST
    for change in story:
        before = chain
        chain = chain.merge(change) if isinstance(change, Keyring) else chain_after(change, chain)
        assert chain.is_sound()
        assert chain.merge(before) == before.merge(chain) == chain, "a member that receives it adopts it"


def test_endless_rotations_stay_bounded() -> None:
    chain = FIRST
    old = None
    for number in range(2, 60):
        before = chain
        chain = chain.install(key(number)).use(key(number)).remove(before.primary)
        assert len(chain.keys) <= KEYS_LIMIT
        assert chain.is_sound()
        if number == 10:
            old = before
    assert old is not None
    assert chain.merge(old) == chain, "a member that was offline does not restore a key"


def test_old_primary_opens_after_another_key_is_used() -> None:
    chain = FIRST
    for number in range(2, 2 + KEYS_LIMIT):
        chain = chain.install(key(number)).remove(key(number))
    assert key(2) not in {each.key for each in chain.keys}, "keys newer than the primary were dropped"
    installed = chain.install(key(99))
    rotated = installed.use(key(99))
    assert rotated.is_sound(), "otherwise members would refuse the change, and its file could not be read"
    assert key(1) in rotated.others, "the others still seal with it"
    assert installed.merge(rotated) == rotated.merge(installed) == rotated


FILED = Keyring.of(key(1), (key(2), key(3)), tuple(key(number) for number in range(10, 23)), epoch=4)
"""The chain of a full key file: sixteen keys of the same age."""


def test_open_keys_kept_when_equally_old_key_dropped() -> None:
    changed = FILED.install(key(50))
    assert len(changed.keys) == KEYS_LIMIT
    assert set(changed.others) == {key(2), key(3), key(50)}
    assert len(changed.retired) == len(FILED.retired) - 1
    assert changed.is_sound()
    assert FILED.merge(changed) == changed.merge(FILED) == changed, "other members keep them, too"


def test_open_key_older_than_dropped_key_is_kept() -> None:
    chain = FIRST.install(key(2))
    for number in range(10, 10 + KEYS_LIMIT):
        chain = chain.install(key(number)).use(key(number)).remove(chain.primary)
    assert key(11) not in {each.key for each in chain.keys}, "newer keys were dropped"
    assert key(2) in chain.others
    offline = FIRST.install(key(2)).install(key(10)).use(key(10))
    returned = offline.merge(chain)
    assert returned == chain.merge(offline) == chain
    assert key(1) not in {each.key for each in returned.keys}, "removed and dropped while it was offline"


def test_removed_key_of_any_age_stays_removed() -> None:
    changed = FILED.install(key(50))
    removed = changed.remove(key(2))
    assert removed.merge(changed) == changed.merge(removed) == removed
    assert removed.merge(FILED) == removed


@given(st.lists(st.lists(st.tuples(st.sampled_from(["install", "use", "remove"]), st.integers(1, 60)), max_size=6)))
def test_merge_keeps_keys_open_on_both_sides(histories: list[list[Step]]) -> None:
    chains = [FILED, *(chain_after(each, FILED) for each in histories)]
    for one, other in pairwise(chains):
        merged = one.merge(other)
        open_at_both = {*one.others, one.primary} & {*other.others, other.primary}
        assert open_at_both <= {merged.primary, *merged.others}


def test_primary_older_than_all_entries_has_its_place() -> None:
    forged = forged_chain(
        [DatedKey(100 + number, key(50 + number)) for number in range(DATED_LIMIT)], key(49), used_at=1
    )
    merged = FILED.merge(forged)
    assert len(merged.keys) == KEYS_LIMIT
    assert merged.primary == key(1)
    assert merged.keys[0] == DatedKey(0, key(1))
    used_next = merged.use(key(60))
    assert key(1) in used_next.others, "the others still seal with it"
    assert used_next.is_sound()


def test_removal_wins_over_new_date_of_same_time() -> None:
    removed = FILED.remove(key(2))
    for number in range(30, 36):
        dated = FILED.install(key(number)).remove(key(number))
        assert key(2) in dated.others
        assert key(2) in removed.merge(dated).retired


@each_case(
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
def test_unsound_chain_refused(chain: Keyring) -> None:
    assert not chain.is_sound()
    story = sealed_node().with_peers(1)
    assert story.receive(1, KeyringUpdate(chain)) == []
    assert (story.swim.keyring, story.dropped(DropReason.BAD_KEYRING)) == (FIRST, 1)


def test_chain_with_colliding_key_id_refused() -> None:
    ours, theirs = (Keyring.of(each, (), (), epoch=1) for each in ALIKE)
    story = sealed_node(ours).with_peers(1)
    assert theirs.is_sound()
    assert story.receive(1, KeyringUpdate(theirs)) == []
    assert (story.swim.keyring, story.dropped(DropReason.BAD_KEYRING)) == (ours, 1)
    with pytest.raises(KeyringError, match="the id of another one"):
        ours.install(ALIKE[1])


def test_chain_repr_hides_keys() -> None:
    assert key(7).hex() not in repr(KeyringUpdate(FIRST.install(b"7" * 32)))
    assert "7777" not in repr(KeyringUpdate(FIRST.install(b"7" * 32)))
    assert "7777" not in repr(DatedKey(1, b"7" * 32))


# -- exchange within the group -----------------------------------------------------------------------------------------


def test_change_sent_to_peers_before_use() -> None:
    story = sealed_node().with_peers(1, 2)
    effects = story.step(KeyringChanged(ROTATED))
    assert [type(each).__name__ for each in effects] == ["Send", "Send", "UseKeyring"]
    assert {target for target, _ in sent(effects, KeyringUpdate)} == {address_of(1), address_of(2)}
    assert used_keyrings(effects) == [ROTATED]


def test_change_without_peers_sent_to_known_members() -> None:
    story = sealed_node().with_peers(1, 2)
    for number in (1, 2):
        story.receive(number, JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, story.last_ping_of(number)))
    effects = story.step(KeyringChanged(ROTATED))
    assert {target for target, _ in sent(effects, KeyringUpdate)} == {address_of(1), address_of(2)}
    assert isinstance(effects[-1], UseKeyring)


def test_received_change_forwarded_once() -> None:
    story = sealed_node().with_peers(1, 2)
    effects = story.receive(1, KeyringUpdate(IN_USE))
    assert used_keyrings(effects) == [IN_USE]
    assert len(sent(effects, KeyringUpdate)) == 2
    assert story.receive(2, KeyringUpdate(IN_USE)) == []


def test_unrelated_keys_accepted_only_in_box() -> None:
    story = sealed_node().with_peers(1)
    unrelated = Keyring.of(key(9), (), (key(1),), epoch=7)
    for chain in (ROTATED, unrelated):
        assert story.receive(1, KeyringUpdate(chain)) == []
    assert story.swim.keyring == FIRST
    assert story.dropped(DropReason.KEYRING_WOULD_SPLIT) == 2
    assert used_keyrings(story.step(Received(address_of(1), KeyringUpdate(ROTATED), boxed=True))) == [ROTATED]


def test_member_without_keys_gets_them_in_box() -> None:
    story = sealed_node().with_peers(1)
    known = story.swim.membership.get(node_id(1))
    assert known is not None
    known.info = replace(known.info, credential=b"its public key and a signature")
    effects = story.step(Unreadable(address_of(1)))
    assert effects == [Send(address_of(1), KeyringUpdate(FIRST), node_id(1), boxed_for=known.info.credential)]
    assert story.step(Unreadable(address_of(7))) == []


def test_members_with_different_digests_exchange_chains() -> None:
    story = sealed_node(ROTATED).with_peers(1)
    assert sent(story.receive(1, ping_with(story, 1, ROTATED.digest)), KeyringUpdate) == []
    behind = story.receive(1, ping_with(story, 1, FIRST.digest))
    assert sent(behind, KeyringUpdate) == [(address_of(1), KeyringUpdate(ROTATED))]
    assert sent(story.receive(1, ping_with(story, 1, b"")), KeyringUpdate) == [], (
        "an unsealed node does not have a chain"
    )


def test_chain_exchanges_and_changes_are_limited() -> None:
    story = sealed_node().with_peers(1)
    exchanges = [sent(story.receive(1, ping_with(story, 1, b"differs!")), KeyringUpdate) for _ in range(300)]
    assert sum(len(each) for each in exchanges) <= 100
    taken = 0
    chain = FIRST
    for number in range(10, 60):
        older = chain.others
        chain = reduce(Keyring.remove, older, chain.install(key(number)).use(key(number)))
        taken += len(used_keyrings(story.receive(1, KeyringUpdate(chain))))
    assert taken <= 20
    assert story.dropped(DropReason.RATE_LIMITED) > 0


def test_unsealed_node_accepts_no_keys() -> None:
    story = Story().with_peers(1)
    assert story.receive(1, KeyringUpdate(FIRST)) == []
    assert story.step(KeyringChanged(FIRST)) == []
    assert story.swim.keyring is None


@pytest.mark.parametrize("random_seed", range(3))
def test_concurrent_rotations_end_with_one_ring(random_seed: int) -> None:
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


def test_new_era_retires_all_other_keys() -> None:
    before = Keyring.of(key(1), (key(2),), (key(3),), 5)
    after = before.rekeyed(key(9), 1, before.clock + 1)
    assert after.is_sound()
    assert (after.primary, after.others, set(after.retired)) == (key(9), (), {key(1), key(2), key(3)})
    with pytest.raises(KeyringError):
        after.rekeyed(key(8), 1, after.clock + 1)


def test_changes_of_earlier_era_are_void() -> None:
    before = Keyring.of(key(1), (), (), 5)
    after = before.rekeyed(key(9), 1, before.clock + 1)
    thief = before.install(key(7)).use(key(7))
    thief = dataclasses.replace(thief, used_at=CLOCK_LIMIT - 1)
    assert after.merge(thief) == thief.merge(after) == after


def test_members_with_different_keys_agree_in_new_era() -> None:
    one = Keyring.of(key(1), (), (), 5)
    other = one.install(key(2))
    used_at = other.clock + 1
    left, right = one.rekeyed(key(9), 1, used_at), other.rekeyed(key(9), 1, used_at)
    assert left.merge(right) == right.merge(left)
    assert left.merge(right).primary == key(9)


def test_era_from_member_refused() -> None:
    story = sealed_node().with_peers(1)
    forged = FIRST.rekeyed(key(9), 1, FIRST.clock + 1)
    effects = story.receive(1, KeyringUpdate(forged))
    assert used_keyrings(effects) == []
    assert story.swim.keyring == FIRST


def test_new_era_key_used_before_it_is_sent() -> None:
    story = sealed_node().with_peers(1, 2)
    effects = story.step(KeyringChanged(FIRST.rekeyed(key(9), 1, FIRST.clock + 1)))
    assert [type(each).__name__ for each in effects] == ["UseKeyring", "Send", "Send"], (
        "otherwise the old key would seal the new one"
    )
