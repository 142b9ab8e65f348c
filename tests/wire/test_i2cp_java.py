"""Recorded bytes that a Java I2P router verified, and bytes that it wrote (tests/vectors/i2cp-java.md)."""

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.wire.i2p.i2cp import FrameReader
from bridge.wire.i2p.i2cp_messages import (
    CreateSession,
    Disconnect,
    HostReply,
    RequestVariableLeaseSet,
    SessionStatus,
    SetDate,
    Unhandled,
)
from tests.effort import each_case
from tests.interop.i2cp_streams import SESSION, expected_output, keys, master, stream
from tests.wire.i2cp_router_half import Message, decode, encode, session_is_signed

RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "i2cp-java.json").read_text())
KEYS = keys(RECORDED["now_s"])


def read_messages(data: bytes) -> list[Message]:
    reader, found = FrameReader(), []
    reader.feed(data)
    while (frame := reader.next_frame()) is not None:
        found.append(decode(frame))
    return found


@pytest.mark.parametrize("recorded", RECORDED["heard_by_java"], ids=lambda recorded: recorded["key"])
def test_node_sends_recorded_stream_verified_by_java(recorded: dict[str, Any]) -> None:
    key = KEYS[recorded["key"]]
    assert stream(key, RECORDED["now_s"]).hex() == recorded["stream"]
    assert recorded["heard"] == expected_output(key)


@pytest.mark.parametrize("recorded", RECORDED["heard_by_java"], ids=lambda recorded: recorded["key"])
def test_session_signature_agrees_with_java(recorded: dict[str, Any]) -> None:
    [session] = [each for each in read_messages(bytes.fromhex(recorded["stream"])) if isinstance(each, CreateSession)]
    assert session_is_signed(session.config)
    changed = bytes.fromhex(recorded["stream"]).replace(b"Garlic Farm", b"Garlic Harm", 1)
    [forged] = [each for each in read_messages(changed) if isinstance(each, CreateSession)]
    assert not session_is_signed(forged.config)


MEANINGS: dict[str, Message] = {
    "SetDate": SetDate(1_767_225_600_000, "0.9.64"),
    **{f"SessionStatus{status}": SessionStatus(SESSION, status) for status in range(6)},
    "HostReply0": HostReply(SESSION, 77, 0, master().destination.encoded),
    **{f"HostReply{result}": HostReply(SESSION, 77, result) for result in range(1, 6)},
    "RequestVariableLeaseSet": RequestVariableLeaseSet(SESSION, 2),
    "Disconnect": Disconnect("Router is shutting down"),
}


@each_case("name", MEANINGS)
def test_message_of_java_decodes_to_its_meaning(name: str) -> None:
    data = bytes.fromhex(RECORDED["written_by_java"][name])
    assert read_messages(data) == [MEANINGS[name]]
    if name != "RequestVariableLeaseSet":  # the decoder skips its leases
        assert encode(MEANINGS[name]) == data


def test_unneeded_message_of_java_is_unhandled() -> None:
    rest = RECORDED["written_by_java"].keys() - MEANINGS.keys()
    assert rest == {"BandwidthLimits"}
    [found] = read_messages(bytes.fromhex(RECORDED["written_by_java"]["BandwidthLimits"]))
    assert isinstance(found, Unhandled)
