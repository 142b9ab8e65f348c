"""Rings that were told apart come together again: an admitted liar tells two nodes different keys, and then is silent.

Without the two rules of `gossip.core.keyring_exchange` (a chain of which no key opens what opens now is refused; who
cannot be read is told the keys in a box for its identity) the two end deaf to each other for good: the mutants show
that.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.core.keyring import DATED_LIMIT, ClockBound, DatedKey, Keyring
from gossip.core.messages import KeyringUpdate
from gossip.core.options import SwimOptions
from gossip.wire.codec import encode
from gossip.wire.identity import Signer, sign_keys
from gossip.wire.seal import ANY_NODE, SALT_BYTES, Sealed
from tests.simulation.gossip_wire_group import WireGroup, WireNode, key_of

OPTIONS = SwimOptions.loopback()
SECONDS_TO_MEND = 60
LIAR = Signer(key_of(100))


def tell(group: WireGroup, node: WireNode, chain: Keyring) -> None:
    """As an identity that may tell keys does, and who has every key that the node has."""
    envelope = Sealed(node.ring, group.random.randbytes(SALT_BYTES), ANY_NODE)
    group.offer(node, envelope.seal(encode(sign_keys(KeyringUpdate(chain), LIAR.key))), node.address)


def replaced(chain: Keyring, name: int, clock: int) -> list[Keyring]:
    """Two steps to a ring that has nothing in common with `chain`, each with a key in common with the one before."""
    fresh = [bytes([name, number]) * 16 for number in range(DATED_LIMIT)]
    first = Keyring.of(fresh[0], (chain.primary,), (), clock)
    entries = (DatedKey(clock + 1 + number, key) for number, key in enumerate(fresh))
    return [first, Keyring(tuple(sorted(entries)), fresh[0], clock + 1)]


def settled(size: int, seed: int) -> WireGroup:
    group = WireGroup(size, seed, OPTIONS)
    group.run(3_000)
    assert group.agreed()
    group.forget_seeds()
    return group


def mends(group: WireGroup) -> bool:
    for _ in range(SECONDS_TO_MEND):
        if group.agreed():
            return True
        group.run(1_000)
    return False


def split(group: WireGroup, steps: int) -> None:
    """Tell each node the steps towards a ring of its own, at one moment."""
    for number, node in enumerate(group.nodes):
        for chain in replaced(node.chain, number, ClockBound(0).at(group.now) - 1_000)[-steps:]:
            tell(group, node, chain)


def test_fresh_keys_in_one_step_are_refused_and_the_group_stays_together() -> None:
    group = settled(3, seed=1)
    before = {node.chain for node in group.nodes}
    split(group, steps=1)
    assert {node.chain for node in group.nodes} == before
    assert mends(group)


def test_rings_that_were_split_in_two_steps_come_together_through_boxes() -> None:
    group = settled(3, seed=2)
    split(group, steps=2)
    assert len({node.chain.primary for node in group.nodes}) == 3
    assert not frozenset.intersection(*(node.chain.open_keys for node in group.nodes)), "no node can read another"
    assert mends(group)


@pytest.mark.parametrize("steps", [1, 2])
def test_without_the_rules_the_same_rings_stay_split_for_good(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossip.core.keyring_exchange.KeyringExchange.repair", lambda *_: None)
    monkeypatch.setattr("gossip.core.keyring.Keyring.open_keys", frozenset({b"in common"}))
    group = settled(2, seed=3)
    split(group, steps)
    assert not mends(group)


@st.composite
def told_chains(draw: st.DrawFn) -> list[tuple[int, Keyring]]:
    """Sound chains of a few keys, each for one of two nodes; dates as honest chains have them, and far later ones."""
    dates = st.one_of(st.integers(1, 30), st.integers(2**31, 2**31 + 30))
    keys = st.integers(1, 24).map(lambda number: bytes([number]) * 32)
    entries = st.builds(DatedKey, dates, keys, st.booleans())
    several = st.lists(entries, min_size=1, max_size=DATED_LIMIT, unique_by=lambda each: each.key)
    told = []
    for _ in range(draw(st.integers(1, 6))):
        some = draw(several)
        primary = draw(st.sampled_from([each.key for each in some]))
        told.append((draw(st.integers(0, 1)), Keyring(tuple(sorted(some)), primary, draw(dates))))
    return told


@given(told_chains(), st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_whatever_chains_two_nodes_are_told_they_never_split_for_good(
    told: list[tuple[int, Keyring]], seed: int
) -> None:
    group = settled(2, seed)
    random = Random(seed)
    for number, chain in told:
        tell(group, group.nodes[number], chain)
        group.run(random.choice((0, 0, 3, 400)))
    assert mends(group)
