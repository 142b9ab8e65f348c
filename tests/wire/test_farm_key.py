"""The farm key file: its content, the derived keys and credentials, and errors and reprs without keys."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.wire.keys.farm_key import (
    DigestCredentials,
    FarmKey,
    FarmKeyError,
    farm_key_text,
    new_farm_key,
    parse_farm_key,
)
from bridge.wire.keys.text import encode_key
from gossip.core.keyring import DATED_LIMIT, farm_label
from tests.effort import each_case

FIXED = FarmKey("farm", 3, 1, farm_label(bytes(range(32))), (bytes(range(32)),))


def rotate(farm_key: FarmKey) -> FarmKey:
    """Return the key file after a new key was installed and used, before the old one is removed."""
    key = os.urandom(32)
    return farm_key.following(farm_key.key_ring.install(key).use(key))


def test_new_farm_key_round_trips() -> None:
    made = new_farm_key(expect=5, cluster="north")
    assert parse_farm_key(farm_key_text(made)) == made
    assert (made.expect, made.cluster, made.epoch) == (5, "north", 1)


def test_exported_key_file_keeps_cluster_id_after_rotation() -> None:
    made = replace(new_farm_key(3), cluster_id=bytes(range(16)))
    text = farm_key_text(made)
    assert 'cluster_id = "000102030405060708090a0b0c0d0e0f"' in text
    assert parse_farm_key(text) == made
    assert rotate(made).cluster_id == made.cluster_id
    assert "cluster_id" not in farm_key_text(new_farm_key(3))


@pytest.mark.parametrize("text", ["", "00" * 15, "00" * 17, "zz" * 16])
def test_invalid_cluster_id_is_refused(text: str) -> None:
    named = farm_key_text(new_farm_key(3)) + f'cluster_id = "{text}"\n'
    with pytest.raises(FarmKeyError, match="`cluster_id` in the farm key file is not 32 hexadecimal digits"):
        parse_farm_key(named)


def test_new_farms_share_no_key_label_or_credentials() -> None:
    one, other = new_farm_key(3), new_farm_key(3)
    assert one.gossip_keys != other.gossip_keys
    assert one.label != other.label
    assert one.digest_credentials != other.digest_credentials


def test_label_of_founding_key_is_kept_after_rotation() -> None:
    made = new_farm_key(3)
    assert made.label == made.key_ring.label == farm_label(made.gossip_keys[0])
    turned = rotate(made)
    assert turned.label == turned.key_ring.label == made.label
    assert turned.epoch > made.epoch


def test_rotated_ring_seals_with_new_key_and_opens_with_old() -> None:
    made = new_farm_key(3)
    ring = rotate(made).key_ring
    assert ring.primary not in made.gossip_keys
    assert ring.others == made.gossip_keys


def test_merged_ring_uses_primary_of_later_epoch() -> None:
    made = new_farm_key(3)
    turned = rotate(made)
    for chain in (made.key_ring.merge(turned.key_ring), turned.key_ring.merge(made.key_ring)):
        assert chain.primary == turned.gossip_keys[0]
        assert chain.others == (made.gossip_keys[0],)


def test_repeated_rotation_keeps_ring_bounded() -> None:
    farm_key = new_farm_key(3)
    for _ in range(40):
        before = farm_key.gossip_keys[0]
        farm_key = rotate(farm_key)
        farm_key = farm_key.following(farm_key.key_ring.remove(before))
    assert len(farm_key.gossip_keys) == 1
    assert len(farm_key.retired_keys) == DATED_LIMIT - 1  # the primary key also has a date
    assert parse_farm_key(farm_key_text(farm_key)) == farm_key


def test_retired_keys_round_trip() -> None:
    farm_key = FarmKey("farm", 3, 2, FIXED.label, (bytes(32),), FIXED.gossip_keys)
    assert parse_farm_key(farm_key_text(farm_key)).key_ring.retired == FIXED.gossip_keys


def test_digest_credentials_depend_only_on_key_and_farm() -> None:
    (credentials,) = FIXED.digest_credentials
    assert FarmKey("farm", 9, 2, FIXED.label, FIXED.gossip_keys).digest_credentials == (credentials,)
    others = [
        FarmKey("other", 3, 1, FIXED.label, FIXED.gossip_keys),
        FarmKey("farm", 3, 1, bytes(8), FIXED.gossip_keys),
        FarmKey("farm", 3, 1, FIXED.label, (bytes(32),)),
    ]
    assert len({credentials.password, *(other.digest_credentials[0].password for other in others)}) == 4


def test_digest_credentials_list_sealing_key_first() -> None:
    made = new_farm_key(3)
    turned = rotate(made)
    assert turned.digest_credentials[1:] == made.digest_credentials
    removed = turned.following(turned.key_ring.remove(made.gossip_keys[0]))
    assert removed.digest_credentials == turned.digest_credentials[:1]


def test_digest_credentials_fit_quoted_header_string() -> None:
    (credentials,) = FIXED.digest_credentials
    assert (credentials.username + credentials.password).replace("-", "").isalnum()
    assert len(bytes.fromhex(credentials.password)) == 32


def test_repr_does_not_show_keys() -> None:
    shown = repr(FIXED) + repr(FIXED.key_ring) + repr(FIXED.digest_credentials)
    secret = FIXED.gossip_keys[0]
    for form in (secret.hex(), encode_key(secret), repr(secret), FIXED.digest_credentials[0].password):
        assert form not in shown
    assert repr(DigestCredentials("name", "word")) == "DigestCredentials(username='name')"


@each_case(
    ("old", "new", "reason"),
    [
        ("version = 1", "version = 2", "this garlicfarm reads version 1: use a garlicfarm that reads version 2"),
        ("expect = 3", "expect = 0", "expect is 0: 1 to 9 founders"),
        ("expect = 3", "expect = 10", "expect is 10"),
        ("expect = 3", 'expect = "three"', r"Expected `int`, got `str` - at `\$.expect`"),
        ("expect = 3", "expected = 3", "unknown field|missing required field `expect`"),
        ("expect = 3", "", "missing required field `expect`"),
        ('cluster = "farm"', 'cluster = "-"', "cluster name '-'"),
        ('cluster = "farm"', 'cluster = "a b"', "cluster name 'a b'"),
        ("epoch = 1", "epoch = 0", ">= 1"),
        ("label = ", "label = 1 #", "Expected `str`"),
        ('label = "', 'label = "0', "16 hexadecimal digits"),
        ("gossip_keys = [", "gossip_keys = [] #", "not TOML|length >= 1"),
        ("AAEC", "AA!!", r"`gossip_keys\[0\]` is not base64"),
        ("AAECAwQF", "", r"`gossip_keys\[0\]` has 26 bytes where 32 belong"),
        ("retired_keys = [", "retired_keys = [[", "not TOML"),
    ],
)
def test_key_file_error_names_fault_without_keys(old: str, new: str, reason: str) -> None:
    text = farm_key_text(FIXED)
    assert old in text
    with pytest.raises(FarmKeyError, match=reason) as caught:
        parse_farm_key(text.replace(old, new, 1))
    message = str(caught.value)
    assert encode_key(FIXED.gossip_keys[0])[4:] not in message
    assert caught.value.__cause__ is None


def test_repeated_key_in_ring_is_refused() -> None:
    text = farm_key_text(FarmKey("farm", 3, 1, FIXED.label, FIXED.gossip_keys, FIXED.gossip_keys))
    with pytest.raises(FarmKeyError, match="twice"):
        parse_farm_key(text)


def test_new_farm_key_with_invalid_arguments_is_refused() -> None:
    with pytest.raises(FarmKeyError, match="expect is 0"):
        new_farm_key(0)
    with pytest.raises(FarmKeyError, match="cluster name"):
        new_farm_key(3, 'x"\ny')


def test_error_names_command_that_makes_key_file() -> None:
    with pytest.raises(FarmKeyError, match="garlicfarm keys new-farm --expect N"):
        parse_farm_key("hello")


@settings(deadline=None)
@given(st.text(max_size=200))
def test_arbitrary_text_raises_farm_key_error(text: str) -> None:
    with pytest.raises(FarmKeyError):
        parse_farm_key(text)


@settings(deadline=None)
@given(st.integers(min_value=0), st.characters())
def test_changed_character_gives_key_or_farm_key_error(position: int, character: str) -> None:
    text = farm_key_text(FIXED)
    position %= len(text)
    try:
        parse_farm_key(text[:position] + character + text[position + 1 :])
    except FarmKeyError:
        return


def test_oversized_or_deeply_nested_file_is_refused() -> None:
    with pytest.raises(FarmKeyError):
        parse_farm_key("a = " + "[" * 20_000)
    with pytest.raises(FarmKeyError, match="at most 65536"):
        parse_farm_key("#" * 70_000)
