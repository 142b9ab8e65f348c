"""A node's gossip metadata: its size limit of 512 bytes, round trips, and refused hostile bytes."""

from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.formation.founding import EXPECT_MAX, FormationNotice, Founder, Founding, Promise
from bridge.core.formation.member import NodeMetadata, RoleHint
from bridge.wire.membership.metadata import (
    ADMISSIONS_LIMIT,
    MetadataError,
    decode_metadata,
    encode_metadata,
    fitting_admissions,
)
from tests.effort import each_case

FOUNDERS = tuple(bytes([number]) * 8 for number in range(EXPECT_MAX))
PROMISE = FormationNotice(promise=Promise(FOUNDERS, 2**48 - 1, b"n" * 16))
FOUNDING = FormationNotice(founding=Founding(tuple(Founder(each, 2**48 - 1, b"n" * 16) for each in FOUNDERS)))
PLAIN = NodeMetadata(cluster="farm", name="node-1", role=RoleHint.ELIGIBLE)
FULL = NodeMetadata(
    cluster="c" * 32,
    name="n" * 32,
    role=RoleHint.VOTER,
    raft_id=2**31 - 1,
    endpoint="tcp://" + "h" * 80 + ":65535",
    fingerprint=b"f" * 32,
    feature_level=65_535,
    notice=PROMISE,
)


@each_case(
    "metadata",
    [
        PLAIN,
        FULL,
        replace(FULL, notice=FOUNDING),
        replace(FULL, notice=FormationNotice(proposal=FOUNDERS[:3])),
        replace(PLAIN, endpoint="tcp://[fe80::1]:7669"),
        replace(FULL, admissions=((b"n" * 8, 4), (b"m" * 8, 2**31 - 1))),
        replace(PLAIN, endpoint="tcp://127.0.0.1:1", role=RoleHint.OBSERVER),
    ],
)
def test_metadata_round_trips(metadata: NodeMetadata) -> None:
    assert decode_metadata(encode_metadata(metadata)) == metadata


def test_largest_metadata_fits_into_512_bytes() -> None:
    assert len(encode_metadata(FULL)) <= 512
    assert len(encode_metadata(replace(FULL, notice=FOUNDING))) <= 512


def test_admissions_are_cut_to_size_of_metadata() -> None:
    admissions = tuple((bytes([number]) * 8, 2**31 - 1) for number in range(ADMISSIONS_LIMIT + 1))
    fullest = fitting_admissions(replace(FULL, notice=FOUNDING, admissions=admissions))
    assert fullest.admissions == admissions[:2]
    assert len(encode_metadata(fullest)) <= 512
    assert fitting_admissions(replace(PLAIN, admissions=admissions)).admissions == admissions[:ADMISSIONS_LIMIT]


def test_elements_of_later_versions_are_ignored() -> None:
    fields = cbor2.loads(encode_metadata(FULL))
    assert decode_metadata(cbor2.dumps([*fields, b"", b"", "later", [1, 2]])) == FULL


@each_case("value", [b"n" * 8, b"n" * 11, b"n" * 8 + b"\xff" * 4, bytes(60), [[b"n" * 8, 4]], "x", None])
def test_invalid_admissions_are_refused(value: object) -> None:
    with pytest.raises(MetadataError, match=r"admission|\$\[9\]"):
        decode_metadata(cbor2.dumps([*cbor2.loads(encode_metadata(FULL)), value]))


def test_endorsement_is_appended_as_last_element() -> None:
    notice = FormationNotice(promise=Promise((b"a" * 8, b"b" * 8), 5, b"n" * 16), endorsement=b"e" * 16)
    encoded = encode_metadata(replace(FULL, notice=notice))
    assert decode_metadata(encoded).notice == notice
    assert cbor2.loads(encoded)[10] == b"e" * 16


@each_case("value", [b"e", b"e" * 15, b"e" * 17, "e" * 16, None])
def test_endorsement_of_wrong_length_is_refused(value: object) -> None:
    fields = cbor2.loads(encode_metadata(FULL))
    with pytest.raises(MetadataError, match=r"endorsement|\$\[10\]"):
        decode_metadata(cbor2.dumps([*fields, b"", value]))


def changed_metadata(position: int, value: Any) -> bytes:
    fields = cbor2.loads(encode_metadata(FULL))
    fields[position] = value
    return cbor2.dumps(fields)


FOUNDER_LIST = [bytes(founder) for founder in FOUNDERS]


@each_case(
    ("data", "reason"),
    [
        (b"", "CBOR"),
        (b"\xff" * 10, "CBOR"),
        (bytes(513), "at most 512 bytes"),
        (cbor2.dumps({}), "CBOR"),
        (cbor2.dumps([1] * 8), "at least length 9"),
        (changed_metadata(0, 1), r"at `\$\[0\]`"),
        (changed_metadata(0, value=True), r"at `\$\[0\]`"),
        (changed_metadata(1, ""), r"at `\$\[1\]`"),
        (changed_metadata(1, "x" * 33), r"at `\$\[1\]`"),
        (changed_metadata(1, b"farm"), r"at `\$\[1\]`"),
        (changed_metadata(2, "a\nb"), r"at `\$\[2\]`"),
        (changed_metadata(3, 3), r"at `\$\[3\]`"),
        (changed_metadata(3, None), r"at `\$\[3\]`"),
        (changed_metadata(4, 2**31), r"at `\$\[4\]`"),
        (changed_metadata(4, value=True), r"at `\$\[4\]`"),
        (changed_metadata(5, "http://a:1"), r"at `\$\[5\]`"),
        (changed_metadata(5, "tcp://a:0"), r"at `\$\[5\]`"),
        (changed_metadata(5, "tcp://a:65536"), "no port is above 65535"),
        (changed_metadata(5, "tcp://a b:1"), r"at `\$\[5\]`"),
        (changed_metadata(6, b"f" * 31), r"at `\$\[6\]`"),
        (changed_metadata(7, 2**16), r"at `\$\[7\]`"),
        (changed_metadata(8, []), r"at `\$\[8\]`"),
        (changed_metadata(8, 5), r"at `\$\[8\]`"),
        (changed_metadata(8, [9, FOUNDER_LIST]), r"at `\$\[8\]\[0\]`"),
        (changed_metadata(8, [1, FOUNDER_LIST]), r"`array` of at .* at `\$\[8\]`"),
        (changed_metadata(8, [0, FOUNDER_LIST, 1, b"n" * 16]), r"`array` of at .* at `\$\[8\]`"),
        (changed_metadata(8, [0, []]), r"at `\$\[8\]\[1\]`"),
        (changed_metadata(8, [0, [bytes([n]) * 8 for n in range(10)]]), r"at `\$\[8\]\[1\]`"),
        (changed_metadata(8, [0, [b"short"]]), r"at `\$\[8\]\[1\]\[0\]`"),
        (changed_metadata(8, [0, FOUNDER_LIST[::-1]]), "ascending"),
        (changed_metadata(8, [0, [FOUNDERS[0], FOUNDERS[0]]]), "ascending"),
        (changed_metadata(8, [1, FOUNDER_LIST, 2**48, b"n" * 16]), r"at `\$\[8\]\[2\]`"),
        (changed_metadata(8, [1, FOUNDER_LIST, 0, b"n" * 15]), r"at `\$\[8\]\[3\]`"),
        (changed_metadata(8, [2, FOUNDER_LIST]), r"at `\$\[8\]\[1\]`"),
        (changed_metadata(8, [2, b""]), "1 to 9 times 30 bytes"),
        (changed_metadata(8, [2, b"f" * 29]), "1 to 9 times 30 bytes"),
        (changed_metadata(8, [2, b"f" * 300]), "1 to 9 times 30 bytes"),
        (changed_metadata(8, [2, b"f" * 60]), "ascending"),
        (changed_metadata(8, [2, FOUNDER_LIST, 0, b"c" * 16]), r"at `\$\[8\]\[1\]`"),
    ],
)
def test_invalid_metadata_raises_with_reason(data: bytes, reason: str) -> None:
    with pytest.raises(MetadataError, match=reason):
        decode_metadata(data)


def test_encode_refuses_invalid_metadata() -> None:
    for metadata, reason in (
        (replace(FULL, name="a b"), r"at `\$\[2\]`"),
        (replace(FULL, endpoint="tcp://nowhere"), r"at `\$\[5\]`"),
        (replace(FULL, notice=FormationNotice(proposal=FOUNDERS[::-1])), "ascending"),
    ):
        with pytest.raises(MetadataError, match=reason):
            encode_metadata(metadata)


@settings(deadline=None)
@given(st.binary(max_size=520))
def test_random_bytes_raise_metadata_error(data: bytes) -> None:
    with pytest.raises(MetadataError):
        decode_metadata(data)


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([FULL, replace(FULL, notice=FOUNDING), PLAIN]))
def test_mutated_metadata_round_trips_or_raises(random: Random, metadata: NodeMetadata) -> None:
    data = bytearray(encode_metadata(metadata))
    for _ in range(random.randint(1, 4)):
        data[random.randrange(len(data))] = random.randrange(256)
    try:
        decoded = decode_metadata(bytes(data))
    except MetadataError:
        return
    assert decode_metadata(encode_metadata(decoded)) == decoded


def test_truncated_metadata_is_refused() -> None:
    data = encode_metadata(FULL)
    for length in range(len(data)):
        with pytest.raises(MetadataError):
            decode_metadata(data[:length])
