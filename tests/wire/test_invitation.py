"""Tokens of invitations and the messages of their exchange: round trips, and one error for any other text or bytes."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.wire.keys.invitation import (
    REQUEST_LIMIT_BYTES,
    TOKEN_LIMIT_CHARACTERS,
    Granted,
    Hello,
    InvitationError,
    InviterAddress,
    JoinRequest,
    Refusal,
    RefusalCode,
    Reply,
    Token,
    body_length,
    decode_message,
    encode_message,
    is_proven,
    parse_token,
    secret_hash,
    signed_bytes,
)
from gossip.node import NodeIdentity
from tests.effort import each_case

PORTS = st.integers(0, 2**16 - 1)
PLACES = st.builds(InviterAddress, st.ip_addresses(v=4).map(str), PORTS)
LONG_ADDRESSES = st.builds(InviterAddress, st.ip_addresses(v=6).map(str), PORTS)
TOKENS = st.builds(
    Token,
    st.lists(PLACES, min_size=1, max_size=4).map(tuple) | st.lists(LONG_ADDRESSES, min_size=1, max_size=3).map(tuple),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
)
TOKEN = Token((InviterAddress("192.168.7.5", 7671),), bytes(range(32)), bytes(range(16)))
REQUEST = JoinRequest(1, bytes(16), "site-b", bytes(32), bytes(64))
MESSAGES = [
    Hello(1, bytes(32)),
    REQUEST,
    Reply(granted=Granted("{}", "site-a", ("key",))),
    Reply(refusal=Refusal(RefusalCode.USED, "used")),
]


@given(TOKENS)
def test_token_text_is_read_as_same_token(token: Token) -> None:
    assert parse_token(str(token)) == token
    assert parse_token(f" {str(token).upper().replace('-', ' ')}\n") == token
    assert len(str(token)) <= 200


def test_token_has_documented_form() -> None:
    groups = str(TOKEN).split("-")
    assert groups[:3] == ["aeaqjqfi", "a4cr35ya", "aebagbaf"]
    assert [len(each) for each in groups] == [8] * 12 + [2]
    assert "000102" not in repr(TOKEN)
    assert str(TOKEN) not in repr(TOKEN)


@each_case("group", range(13))
def test_token_altered_in_group_is_refused(group: int) -> None:
    groups = str(TOKEN).split("-")
    for place, letter in enumerate(groups[group]):
        changed = "b" if letter != "b" else "c"
        altered = [*groups[:group], groups[group][:place] + changed + groups[group][place + 1 :], *groups[group + 1 :]]
        with pytest.raises(InvitationError):
            parse_token("-".join(altered))
    with pytest.raises(InvitationError):
        parse_token("-".join(groups[:group] + groups[group + 1 :]))


@each_case(
    ("text", "reason"),
    [
        ("", "the token is empty"),
        (" - ", "the token is empty"),
        ("not/a/token", "is not a token"),
        (str(TOKEN)[:-3], "changed or cut"),
        ("a" * (TOKEN_LIMIT_CHARACTERS + 1), f"at most {TOKEN_LIMIT_CHARACTERS} characters"),
    ],
)
def test_other_text_is_refused_with_reason(text: str, reason: str) -> None:
    with pytest.raises(InvitationError, match=reason):
        parse_token(text)


@given(st.text(max_size=200) | st.text("abcdefgh234567-", max_size=220) | TOKENS.map(lambda token: str(token)[:-1]))
@example("é" * 8)
def test_arbitrary_text_gives_token_or_error(text: str) -> None:
    with suppress(InvitationError):
        assert parse_token(str(parse_token(text))) == parse_token(text)


@pytest.mark.parametrize("places", [(), (InviterAddress("192.168.7.5", 1),) * 5, (InviterAddress("fd00::1", 1),) * 4])
def test_token_with_too_many_places_is_refused(places: tuple[InviterAddress, ...]) -> None:
    with pytest.raises(InvitationError):
        Token(places, bytes(32), bytes(16))


def test_token_of_host_name_is_refused() -> None:
    with pytest.raises(InvitationError, match="numeric"):
        Token((InviterAddress("node.example", 1),), bytes(32), bytes(16))


@pytest.mark.parametrize("message", MESSAGES)
def test_message_is_read_as_same_message(message: Hello | JoinRequest | Reply) -> None:
    packed = encode_message(message)
    size = body_length(packed[:4], REQUEST_LIMIT_BYTES)
    assert decode_message(packed[4 : 4 + size], type(message)) == message
    assert len(packed) == 4 + size
    assert repr(message) == f"{type(message).__name__}(…)"


@given(st.binary(max_size=300), st.sampled_from([Hello, JoinRequest, Reply]))
@example(b"[" * 10_000, Reply)
@example(b'{"version":1,"nonce":"\xff"}', Hello)
def test_arbitrary_bytes_give_message_or_error(
    body: bytes, kind: type[Hello] | type[JoinRequest] | type[Reply]
) -> None:
    with suppress(InvitationError):
        decode_message(body, kind)


@given(st.sampled_from(MESSAGES), st.integers(0, 400), st.integers(0, 255))
def test_altered_message_gives_message_or_error(message: Hello | JoinRequest | Reply, place: int, value: int) -> None:
    body = bytearray(encode_message(message)[4:])
    body[place % len(body)] = value
    with suppress(InvitationError):
        decode_message(bytes(body), type(message))


@each_case(
    "change",
    [
        {"version": 2},
        {"name": "-site"},
        {"name": "a\n"},
        {"name": "x" * 33},
        {"secret": "AAAA"},
        {"publicKey": "AAAA"},
        {"signature": ""},
        {"more": 1},
    ],
)
def test_request_with_wrong_field_is_refused(change: dict[str, object]) -> None:
    fields = {**msgspec.json.decode(encode_message(REQUEST)[4:]), **change}
    with pytest.raises(InvitationError):
        decode_message(msgspec.json.encode(fields), JoinRequest)


@pytest.mark.parametrize("body", [b"{}", encode_message(Reply(Granted("", ""), Refusal(RefusalCode.USED, "")))[4:]])
def test_reply_without_exactly_one_part_is_refused(body: bytes) -> None:
    with pytest.raises(InvitationError):
        decode_message(body, Reply)


@each_case("head", [b"", b"\0\0\0", b"\0\0\0\0", b"\0\0\x08\x01", b"\xff\xff\xff\xff"])
def test_length_beyond_limit_is_refused(head: bytes) -> None:
    with pytest.raises(InvitationError):
        body_length(head, REQUEST_LIMIT_BYTES)


def signed_request(fingerprint: bytes, nonce: bytes, name: str = "site-b") -> JoinRequest:
    identity, secret = NodeIdentity.throwaway(), bytes(16)
    signature = identity.key.sign(signed_bytes(fingerprint, nonce, secret, name))
    return JoinRequest(1, secret, name, identity.key.public_key().public_bytes_raw(), signature)


def test_request_is_proven_for_its_connection_only() -> None:
    fingerprint, nonce, other = bytes(32), b"n" * 32, b"o" * 32
    request = signed_request(fingerprint, nonce)
    assert is_proven(request, fingerprint, nonce)
    assert not is_proven(request, fingerprint, other)
    assert not is_proven(request, other, nonce)
    for changed in ({"name": "site-c"}, {"secret": b"s" * 16}, {"public_key": bytes(32)}, {"signature": bytes(64)}):
        assert not is_proven(msgspec.structs.replace(request, **changed), fingerprint, nonce)


def test_hash_of_secret_does_not_contain_it() -> None:
    secret = bytes(range(16))
    assert secret not in secret_hash(secret)
    assert secret_hash(secret) != secret_hash(bytes(16))
