"""Stored keyrings and generations load again, and invalid times stored by earlier versions are repaired."""

import logging
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.wire.keys.box import EraKey, KeyBoxError, seal_key
from bridge.wire.keys.farm_key import farm_key_text, new_farm_key, parse_farm_key
from gossip.core.keyring import CLOCK_LIMIT, DatedKey, Keyring
from gossip.core.member import LAST_GENERATION, NodeId
from gossip.core.messages import KeyringUpdate
from gossip.node.state_files import (
    KEYS_FILE,
    StateError,
    begin_generation,
    keep_generation,
    keep_keys,
    known_keyring,
    load_keyring,
)
from gossip.wire.codec import encode
from tests.effort import each_case
from tests.node.test_identities import Node, farm_key, identity, public

__all__ = ["farm_key"]
NODE = NodeId(b"\x01" * 8)
EXTREMES = (0, 1, 2**31, 2**32 - 1, 2**53 - 1, 2**53, 2**60, 2**63 - 1, 2**64 - 1)


def unsound(time: int) -> Keyring:
    """Return a keyring that an earlier version made from a forged box."""
    label = Keyring.of(b"1" * 32).label
    return Keyring((DatedKey(time, b"1" * 32, retired=True), DatedKey(time, b"9" * 32)), b"9" * 32, time, 1, label)


def stored_by_an_earlier_version(directory: Path, keyring: Keyring) -> bytes:
    content = keyring.label + encode(KeyringUpdate(keyring))
    data = b"garlic farm keys 1\n" + sha256(content).digest() + content
    path = directory / KEYS_FILE
    path.touch(mode=0o600)
    path.write_bytes(data)
    return data


@pytest.mark.parametrize("time", [2**53, 2**60, 2**63 - 1, 2**64 - 1])
def test_stored_time_out_of_range_is_repaired_with_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, time: int
) -> None:
    bad = unsound(time)
    before = stored_by_an_earlier_version(tmp_path, bad)
    seen = known_keyring(tmp_path, bad.label)
    assert (tmp_path / KEYS_FILE).read_bytes() == before, "reading does not change the file"
    with caplog.at_level(logging.WARNING):
        loaded = load_keyring(tmp_path, bad.label)
    assert loaded is not None
    assert loaded == seen == bad.repaired()
    assert loaded.label == bad.label
    assert "held a time that no node accepts" in caplog.text
    caplog.clear()
    assert load_keyring(tmp_path, bad.label) == loaded
    assert caplog.text == "", "it was stored again"


@each_case("time", EXTREMES)
def test_keyring_is_stored_only_if_it_loads(tmp_path: Path, time: int) -> None:
    bad = unsound(time)
    try:
        keep_keys(tmp_path, bad)
    except StateError:
        assert not bad.is_sound()
        assert not (tmp_path / KEYS_FILE).exists()
    else:
        assert known_keyring(tmp_path, bad.label) == bad


@each_case("number", [*EXTREMES, LAST_GENERATION - 1, LAST_GENERATION, LAST_GENERATION + 1, -1])
def test_generation_is_stored_only_if_it_loads(tmp_path: Path, number: int) -> None:
    try:
        keep_generation(tmp_path, NODE, number)
    except StateError:
        assert not 0 < number <= LAST_GENERATION
        assert begin_generation(tmp_path, NODE) == 1
    else:
        if number < LAST_GENERATION:
            assert begin_generation(tmp_path, NODE) == number + 1
        else:
            with pytest.raises(StateError, match="starts as a new node"):
                begin_generation(tmp_path, NODE)


@pytest.mark.parametrize("used_at", EXTREMES)
async def test_era_with_any_time_of_use_is_adopted(farm_key: Path, tmp_path: Path, used_at: int) -> None:
    node = Node(1, farm_key)
    label, key = node.keys.filed.label, b"n" * 32
    box = seal_key(EraKey(1, used_at, key), public(1), label)
    node.state = replace(
        node.state, rekeying=replace(node.state.rekeying, era=1, boxes={identity(1).node_id.hex(): box})
    )
    assert await node.identities._follow_era()
    ring = node.agent.keyring
    assert (ring.primary, ring.era) == (key, 1)
    keep_keys(tmp_path, ring)
    assert known_keyring(tmp_path, label) == ring
    exported = node.keys.filed.following(ring)
    assert parse_farm_key(farm_key_text(exported)) == exported, "`keys export` works at the node"
    assert seal_key(EraKey(ring.era + 1, ring.clock + 1, key), public(2), label), "the next eviction works too"
    assert not node.halted


@pytest.mark.parametrize("era", [1, 2**32 - 1])
async def test_era_without_box_keeps_keys_without_alarm(farm_key: Path, era: int) -> None:
    node = Node(1, farm_key)
    before = node.agent.keyring
    node.state = replace(node.state, rekeying=replace(node.state.rekeying, era=era, boxes={}))
    assert not await node.identities._follow_era()
    assert node.agent.keyring == before
    assert node.identities.alarms.active() == (), "with `key-retired` no member would export the keys"


@each_case(("era", "used_at"), [(0, 1), (2**32, 1), (1, 2**64), (1, -1), (-1, 1)])
def test_box_with_invalid_number_raises_one_error(era: int, used_at: int) -> None:
    with pytest.raises(KeyBoxError, match="cannot be in a box"):
        seal_key(EraKey(era, used_at, bytes(32)), public(1), b"12345678")


def test_later_era_of_two_key_files_wins() -> None:
    old = replace(new_farm_key(3), epoch=CLOCK_LIMIT - 1)
    assert replace(old, era=1, epoch=5).age > old.age
