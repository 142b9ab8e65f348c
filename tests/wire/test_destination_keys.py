"""Master and transient keys of the farm's destination, and their files."""

from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.publishing.entries import LeafEntry
from bridge.wire.i2p.destination_keys import (
    DestinationKeyError,
    MasterKey,
    SigningKey,
    master_key_text,
    new_master_key,
    parse_master_key,
    parse_signing_key,
    signing_key_text,
)
from bridge.wire.i2p.meta_lease_set import LeaseSetError, MetaLease, decode, encode, verify
from bridge.wire.i2p.structures import ed25519_destination
from bridge.wire.keys.text import encode_key
from tests.destinations import new_demo_leaf
from tests.effort import each_case

NOW_S = 1_767_225_600
MASTER_PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
MASTER = MasterKey(ed25519_destination(MASTER_PRIVATE.public_key().public_bytes_raw(), b"p" * 32), MASTER_PRIVATE)
TRANSIENT = MASTER.sign_transient(NOW_S)
LEASES = (MetaLease(new_demo_leaf().hash, cost=0, ends_s=NOW_S + 900),)


def are_equal(one: SigningKey, other: SigningKey) -> bool:
    return (one.destination, one.offline, one.demo, one.session) == (
        other.destination,
        other.offline,
        other.demo,
        other.session,
    ) and one.private_key.private_bytes_raw() == other.private_key.private_bytes_raw()


def test_transient_key_of_30_days_round_trips() -> None:
    assert TRANSIENT.expires_s == TRANSIENT.can_sign_until_s == NOW_S + 30 * 86_400
    assert are_equal(parse_signing_key(signing_key_text(TRANSIENT)), TRANSIENT)


def test_transient_key_file_of_older_version_is_read() -> None:
    old = replace(TRANSIENT, session=None)
    assert "session" not in signing_key_text(old)
    assert are_equal(parse_signing_key(signing_key_text(old)), old)


def test_session_signed_by_another_key_is_refused() -> None:
    stranger = new_master_key()
    for session in (stranger.as_signing_key().sign_session(1), TRANSIENT.sign_session(1)):
        with pytest.raises(DestinationKeyError, match=r"the master did not sign `offline\.session`; make a new key"):
            parse_signing_key(signing_key_text(replace(TRANSIENT, session=session)))


def test_transient_key_signs_for_master_destination() -> None:
    structure = decode(encode(TRANSIENT.sign(NOW_S, LEASES)))
    assert structure.destination == MASTER.destination
    assert verify(structure).holds
    assert verify(structure).signed_by == "transient key"


def test_publication_signs_planned_entries() -> None:
    leaves = (new_demo_leaf(), new_demo_leaf())
    entries = [LeafEntry(leaf.base64, cost=10 * place, end_s=NOW_S + 1_230) for place, leaf in enumerate(leaves)]
    structure = decode(TRANSIENT.publication(NOW_S, entries))
    assert verify(structure).holds
    assert [(lease.destination_hash, lease.cost, lease.ends_s) for lease in structure.leases] == [
        (leaf.hash, 10 * place, NOW_S + 1_230) for place, leaf in enumerate(leaves)
    ]


def test_expired_transient_key_refuses_to_sign() -> None:
    ended = MASTER.sign_transient(NOW_S - 100, life_s=100)
    with pytest.raises(LeaseSetError, match="expired before publication: have a new one signed"):
        ended.sign(NOW_S, LEASES)


def test_transient_key_file_lacks_master_private_key() -> None:
    other = MASTER.sign_transient(NOW_S)
    assert other.private_key.private_bytes_raw() != TRANSIENT.private_key.private_bytes_raw()
    assert encode_key(MASTER.private_key.private_bytes_raw()) not in signing_key_text(TRANSIENT)


def test_master_key_from_file_signs_directly() -> None:
    again = parse_master_key(master_key_text(MASTER))
    assert again.destination == MASTER.destination
    direct = parse_signing_key(master_key_text(MASTER))
    assert direct.offline is None
    assert direct.expires_s is None
    assert direct.can_sign_until_s > NOW_S
    assert verify(direct.sign(NOW_S, LEASES)).signed_by == "destination"
    assert are_equal(parse_signing_key(signing_key_text(direct)), direct)


def test_structure_is_marked_demo_only_for_demo_key() -> None:
    demo = new_master_key(demo=True)
    for key in (demo.as_signing_key(), parse_signing_key(signing_key_text(demo.sign_transient(NOW_S)))):
        assert decode(encode(key.sign(NOW_S, LEASES))).is_demo
    assert not TRANSIENT.sign(NOW_S, LEASES).is_demo


def test_new_destinations_differ() -> None:
    assert len({new_demo_leaf().hash, new_demo_leaf().hash, new_master_key().destination.hash}) == 3


def test_transient_key_file_is_refused_as_master_key() -> None:
    with pytest.raises(DestinationKeyError, match="the master key file is needed"):
        parse_master_key(signing_key_text(TRANSIENT))


def test_invalid_key_lifetime_is_refused() -> None:
    for life_s in (0, -1, 1 << 32):
        with pytest.raises(DestinationKeyError, match="cannot end"):
            MASTER.sign_transient(NOW_S, life_s)


@each_case(
    ("old", "new", "reason"),
    [
        ("expires = 1769817600", "expires = 1769817601", "the master did not sign this key and expiry"),
        ("version = 1", "version = 7", "version 7"),
        ('kind = "transient"', 'kind = "lasting"', "enum"),
        ('kind = "transient"', 'kind = "master"', "does not belong"),
        ("[offline]", "[online]", "unknown field .known are version, kind,"),
        ("demo = false", 'demo = "no"', "bool"),
        ('private_key = "', 'private_key = "AAAA', "35 bytes where 32 belong"),
        ('destination = "', 'destination = "?', "I2P base64"),
        ("BQAEAAcAAA==", "BQAEAAEAAA==", "signs with type 1; only Ed25519"),
        ("\n[offline]\n", "\n", "unknown field|the .offline. table"),
        ('session = "', 'session = "AAAA', "cannot be used"),
        ('session = "', 'session = "?', "I2P base64"),
    ],
)
def test_key_file_error_names_fault_without_key(old: str, new: str, reason: str) -> None:
    text = signing_key_text(TRANSIENT)
    assert old in text
    with pytest.raises(DestinationKeyError, match=reason) as caught:
        parse_signing_key(text.replace(old, new, 1))
    assert encode_key(TRANSIENT.private_key.private_bytes_raw())[8:] not in str(caught.value)


def test_file_without_master_signature_is_refused() -> None:
    text = signing_key_text(TRANSIENT).partition("\n[offline]")[0]
    with pytest.raises(DestinationKeyError, match=r"offline\] table with the master's signature is missing"):
        parse_signing_key(text)


def test_private_key_of_another_destination_is_refused() -> None:
    mixed = master_key_text(replace(MASTER, private_key=TRANSIENT.private_key))
    with pytest.raises(DestinationKeyError, match="does not belong"):
        parse_master_key(mixed)


def test_repr_does_not_show_keys() -> None:
    shown = repr(MASTER) + repr(TRANSIENT) + str([TRANSIENT])
    for key in (MASTER.private_key, TRANSIENT.private_key):
        assert key.private_bytes_raw().hex() not in shown
        assert encode_key(key.private_bytes_raw()) not in shown
    assert MASTER.destination.address in shown


@settings(deadline=None)
@given(st.text(max_size=200))
def test_arbitrary_text_raises_destination_key_error(text: str) -> None:
    with pytest.raises(DestinationKeyError):
        parse_signing_key(text)
    with pytest.raises(DestinationKeyError):
        parse_master_key(text)


def test_mutated_key_file_errors_do_not_show_key() -> None:
    random = Random(3)
    text = signing_key_text(TRANSIENT)
    secret = encode_key(TRANSIENT.private_key.private_bytes_raw())
    refused = 0
    for _ in range(800):
        letters = list(text)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(letters))
            letters[at : at + random.choice((0, 1, 30))] = random.choice('=[]"\n #.{}\\0aA~\x00\u00e9\ud800')
        for parse in (parse_master_key, parse_signing_key):
            try:
                parse("".join(letters))
            except DestinationKeyError as error:
                message = str(error)
                refused += 1
                shown = [secret[at : at + 8] for at in range(0, 36, 8) if secret[at : at + 8] in message]
                if shown:
                    raise AssertionError(message) from error
    assert refused > 800


def test_misplaced_secret_in_key_file_is_not_shown() -> None:
    secret = encode_key(TRANSIENT.private_key.private_bytes_raw())
    text = signing_key_text(TRANSIENT)
    for damaged in (
        text.replace('private_key = "', 'private_key = ""\n"'),
        text.replace('private_key = "', f'private_key = ""\n"{secret}" = "'),
        text.replace('"transient"', f'"{secret}"'),
        text.replace('"transient"', f'"{secret} \' x"'),
        text.replace("[offline]", f'["{secret}"]'),
        text.replace("[offline]", f'[offline]\n"{secret}" = 1'),
    ):
        assert damaged != text
        with pytest.raises(DestinationKeyError) as caught:
            parse_signing_key(damaged)
        assert secret[:8] not in str(caught.value)
