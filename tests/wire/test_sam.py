"""Lines of SAM: texts of real bridges, the same words and pairs after encoding, and refusals."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.wire.i2p.destination_keys import DestinationKeyError, new_master_key
from bridge.wire.i2p.key_file import destination_of_sam_key, parse_sam_private_key, sam_private_key
from bridge.wire.i2p.sam import (
    LINE_LIMIT_BYTES,
    PAIRS_LIMIT,
    SamLine,
    SamLineError,
    encode_reply,
    encode_request,
    encode_text,
    parse_line,
    parse_peer,
)
from tests.effort import each_case

WORDS = st.sampled_from(["HELLO REPLY", "SESSION STATUS", "STREAM STATUS", "DEST REPLY", "QUIT"])
KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_characters='="'), min_size=1, max_size=30)
KEYS = KEYS.filter(lambda key: re.search(r"[\s\x7f]", key) is None)
VALUES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=100)


@each_case(
    ("line", "expected"),
    [
        (b"HELLO REPLY RESULT=OK VERSION=3.3\n", SamLine("HELLO REPLY", {"RESULT": "OK", "VERSION": "3.3"})),
        (b"HELLO REPLY RESULT=NOVERSION\r\n", SamLine("HELLO REPLY", {"RESULT": "NOVERSION"})),
        (
            b'STREAM STATUS RESULT=CANT_REACH_PEER MESSAGE="LeaseSet not found"\n',
            SamLine("STREAM STATUS", {"RESULT": "CANT_REACH_PEER", "MESSAGE": "LeaseSet not found"}),
        ),
        (b"DEST REPLY PUB=AA== PRIV=BB==\n", SamLine("DEST REPLY", {"PUB": "AA==", "PRIV": "BB=="})),
        (rb'X Y M="a \"quoted\" \\ word" E= F', SamLine("X Y", {"M": 'a "quoted" \\ word', "E": "", "F": ""})),
        (b"PING 1700000000000\n", SamLine("PING", text="1700000000000")),
        (b"PONG", SamLine("PONG")),
    ],
)
def test_parse_line_of_bridge_returns_pairs(line: bytes, expected: SamLine) -> None:
    assert parse_line(line) == expected


@given(WORDS, st.dictionaries(KEYS, VALUES, max_size=10))
def test_reply_is_parsed_to_same_line(words: str, pairs: dict[str, str]) -> None:
    assert parse_line(encode_reply(words, pairs)) == SamLine(words, pairs)


@given(st.sampled_from(["PING", "PONG"]), VALUES)
def test_text_is_parsed_to_same_line(verb: str, text: str) -> None:
    assert parse_line(encode_text(verb, text)) == SamLine(verb, text=text)


@given(st.binary(max_size=300))
def test_parse_raises_only_its_own_error(data: bytes) -> None:
    for parse in (parse_line, parse_peer):
        with suppress(SamLineError):
            parse(data)


@each_case(
    ("line", "reason"),
    [
        (b"", "does not begin with a verb"),
        (b" HELLO REPLY", "cannot be read from character 0"),
        (b"A B C=1 C=2", "key 'C' is repeated"),
        (b'A B C="open', "cannot be read from character 4"),
        (b'A B C="x"y', "cannot be read from character 4"),
        (b"A B C=\0", "control character 0"),
        (b"A B C=1\nD E", "control character 10"),
        (b"A B C=\xff", "not UTF-8"),
        (b"A " * LINE_LIMIT_BYTES, "at most 8192 bytes"),
        (b"A B " + b" ".join(b"%d=1" % number for number in range(PAIRS_LIMIT + 1)), "at most 64 pairs"),
    ],
)
def test_parse_of_invalid_line_raises_with_reason(line: bytes, reason: str) -> None:
    with pytest.raises(SamLineError, match=reason):
        parse_line(line)


@each_case("value", ["", "a b", 'a"b', "a\\b", "a\nb", "a\0b", "\ud800", "x" * LINE_LIMIT_BYTES])
def test_request_value_that_i2pd_splits_is_refused(value: str) -> None:
    with pytest.raises(SamLineError):
        encode_request("SESSION CREATE", {"ID": value})


def test_request_with_invalid_key_or_many_pairs_is_refused() -> None:
    with pytest.raises(SamLineError, match="not a key"):
        encode_request("SESSION CREATE", {"a b": "1"})
    with pytest.raises(SamLineError, match="at most 64 pairs"):
        encode_request("SESSION CREATE", {str(number): "1" for number in range(PAIRS_LIMIT + 1)})


def test_repr_of_line_does_not_show_values() -> None:
    assert repr(SamLine("DEST REPLY", {"PRIV": "secret"})) == "SamLine('DEST REPLY', keys=['PRIV'])"


def test_peer_line_with_ports_returns_destination() -> None:
    destination = new_master_key().destination
    assert parse_peer(f"{destination.base64}\n".encode()) == destination
    assert parse_peer(f"{destination.base64} FROM_PORT=1 TO_PORT=2\n".encode()) == destination


def test_sam_private_key_returns_same_key() -> None:
    key = new_master_key()
    text = sam_private_key(key)
    again = parse_sam_private_key(text)
    assert again.destination == key.destination == destination_of_sam_key(text)
    assert again.private_key.private_bytes_raw() == key.private_key.private_bytes_raw()


@pytest.mark.parametrize("text", ["", "TRANSIENT", "AAAA", "A" * 100_000])
def test_unusable_sam_private_key_raises(text: str) -> None:
    for parse in (parse_sam_private_key, destination_of_sam_key):
        with pytest.raises(DestinationKeyError):
            parse(text)
