"""Split keyrings merge again: an admitted liar sends two nodes different keys, then stops.

Two rules of `gossip.core.keyring_exchange` are needed. A keyring without any current open key is refused. An unreadable
sender receives the keys in a box for its identity. Without both rules, the two nodes can never read each other again; a
test with planted bugs proves it.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.keyring import DATED_LIMIT, ClockBound, DatedKey, Keyring
from gossip.core.messages import KeyringUpdate
from gossip.core.options import SwimOptions
from gossip.wire.codec import encode
from gossip.wire.identity import Signer, sign_keys
from gossip.wire.seal import ANY_NODE, SALT_BYTES, Sealed
from tests.simulation.gossip_wire_group import WireGroup, WireNode, key_of

OPTIONS = SwimOptions.loopback()
SECONDS_TO_MERGE = 60
LIAR = Signer(key_of(100))


def send_keyring(group: WireGroup, node: WireNode, chain: Keyring) -> None:
    """Send a keyring like an admitted identity that has every key of the node."""
    envelope = Sealed(node.ring, group.random.randbytes(SALT_BYTES), ANY_NODE)
    group.offer(node, envelope.seal(encode(sign_keys(KeyringUpdate(chain), LIAR.key))), node.address)


def replaced(chain: Keyring, name: int, clock: int) -> list[Keyring]:
    """Return two steps to a ring without a key of `chain`; each step shares a key with the previous one."""
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


def merges(group: WireGroup) -> bool:
    for _ in range(SECONDS_TO_MERGE):
        if group.agreed():
            return True
        group.run(1_000)
    return False


def split(group: WireGroup, steps: int) -> None:
    """Send each node the steps toward a different ring, at one moment."""
    for number, node in enumerate(group.nodes):
        for chain in replaced(node.chain, number, ClockBound(0).at(group.now) - 1_000)[-steps:]:
            send_keyring(group, node, chain)


def test_keyring_replaced_in_one_step_is_refused() -> None:
    group = settled(3, seed=1)
    before = {node.chain for node in group.nodes}
    split(group, steps=1)
    assert {node.chain for node in group.nodes} == before
    assert merges(group)


def test_keyrings_split_in_two_steps_merge_through_boxes() -> None:
    group = settled(3, seed=2)
    split(group, steps=2)
    assert len({node.chain.primary for node in group.nodes}) == 3
    assert not frozenset.intersection(*(node.chain.open_keys for node in group.nodes)), "no node can read another"
    assert merges(group)


@pytest.mark.parametrize("steps", [1, 2])
def test_split_keyrings_without_rules_never_merge(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossip.core.keyring_exchange.KeyringExchange.repair", lambda *_: None)
    monkeypatch.setattr("gossip.core.keyring.Keyring.open_keys", frozenset({b"in common"}))
    group = settled(2, seed=3)
    split(group, steps)
    assert not merges(group)


@st.composite
def drawn_chains(draw: st.DrawFn) -> list[tuple[int, Keyring]]:
    """Draw valid keyrings of a few keys, each for one of two nodes, with usual and far later dates."""
    dates = st.one_of(st.integers(1, 30), st.integers(2**31, 2**31 + 30))
    keys = st.integers(1, 24).map(lambda number: bytes([number]) * 32)
    entries = st.builds(DatedKey, dates, keys, st.booleans())
    several = st.lists(entries, min_size=1, max_size=DATED_LIMIT, unique_by=lambda each: each.key)
    sent = []
    for _ in range(draw(st.integers(1, 6))):
        some = draw(several)
        primary = draw(st.sampled_from([each.key for each in some]))
        sent.append((draw(st.integers(0, 1)), Keyring(tuple(sorted(some)), primary, draw(dates))))
    return sent


@given(drawn_chains(), st.integers(0, 2**16))
def test_keyrings_after_random_chains_merge(sent: list[tuple[int, Keyring]], seed: int) -> None:
    group = settled(2, seed)
    random = Random(seed)
    for number, chain in sent:
        send_keyring(group, group.nodes[number], chain)
        group.run(random.choice((0, 0, 3, 400)))
    assert merges(group)
