"""The codec of ØMQ Raft against frames that the package sent, in `tests/vectors/zmq-raft.json`.

    frames ─▶ decode ─▶ a message ─▶ encode ─▶ the same frames

A reply is decoded with its request. Only the beginning of each snapshot chunk is recorded; the tests fill the rest
with zeros.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.codec import (
    decode_broadcast,
    decode_reply,
    decode_request,
    encode_broadcast,
    encode_reply,
    encode_request,
)
from consensus.protocols.zmq_raft.wire.frames import ZmqRaftError
from tests.effort import each_case

VECTORS: Final = json.loads((Path(__file__).parents[1] / "vectors" / "zmq-raft.json").read_text(encoding="utf-8"))
PEERS: Final[list[dict[str, Any]]] = VECTORS["peers"]
CLIENTS: Final[list[dict[str, Any]]] = VECTORS["client_requests"]
CUT: Final = re.compile(r"([0-9a-f]*)\.\.\.\(([0-9]+) bytes\)")
NO_MESSAGE: Final = {"unknown 1-byte type", "empty type", "RequestUpdate 4-byte id", "ConfigUpdate 3-byte id"}
"""Malformed messages, which the package ignores."""
IN_EIGHT_BYTES: Final = "RequestEntries 8-byte uint"
"""A number with trailing zeros. Senders never need them, so the encoder omits them."""
MALFORMED: Final = {
    "ConfigUpdate not an array": wire.MalformedPeers("TypeError", "peers must be an array"),
    "ConfigUpdate dup url": wire.MalformedPeers("AssertionError", "peer url must be unique"),
    "ConfigUpdate dup id": wire.MalformedPeers("AssertionError", "peer id must be unique"),
    "ConfigUpdate ipc url": wire.MalformedPeers(
        "AssertionError", "peer url protocol must be tcp:\n\n'ipc:' !== 'tcp:'\n"
    ),
}


def frames_of(texts: list[str]) -> list[bytes]:
    return [frame_of(text) for text in texts]


def frame_of(text: str) -> bytes:
    if cut := CUT.fullmatch(text):
        return bytes.fromhex(cut[1]).ljust(int(cut[2]), b"\0")
    return bytes.fromhex(text)


def params_of(vectors: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(vector, id=f"{number} {vector['name']}") for number, vector in enumerate(vectors)]


@each_case("vector", params_of([vector for vector in PEERS if "request" in vector["name"]]))
def test_peer_request_round_trips(vector: dict[str, Any]) -> None:
    frames = frames_of(vector["frames"])
    assert encode_request(decode_request(frames)) == frames


@each_case("vector", params_of([vector for vector in PEERS if "response" in vector["name"]]))
def test_peer_reply_round_trips(vector: dict[str, Any]) -> None:
    request, frames = decode_request(frames_of(vector["request"])), frames_of(vector["frames"])
    assert encode_reply(decode_reply(type(request), frames)) == frames


@each_case("vector", params_of([vector for vector in PEERS if "Broadcast" in vector["name"]]))
def test_broadcast_round_trips(vector: dict[str, Any]) -> None:
    frames = frames_of(vector["frames"])
    assert encode_broadcast(decode_broadcast(frames)) == frames


@each_case("vector", params_of([vector for vector in CLIENTS if vector["name"] not in NO_MESSAGE]))
def test_client_request_and_replies_round_trip(vector: dict[str, Any]) -> None:
    frames = frames_of(vector["request"])
    request = decode_request(frames)
    if vector["name"] in MALFORMED:
        assert isinstance(request, wire.ChangeRequest)
        assert request.peers == MALFORMED[vector["name"]]
    elif vector["name"] == IN_EIGHT_BYTES:
        assert decode_request(encode_request(request)) == request
    else:
        assert encode_request(request) == frames
    for response in map(frames_of, vector["responses"]):
        assert encode_reply(decode_reply(type(request), response)) == response


@pytest.mark.parametrize("vector", params_of([vector for vector in CLIENTS if vector["name"] in NO_MESSAGE]))
def test_message_ignored_by_package_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(ZmqRaftError):
        decode_request(frames_of(vector["request"]))


@pytest.mark.parametrize("vector", params_of([vector for vector in CLIENTS if vector["name"] in MALFORMED]))
def test_malformed_peers_get_error_text_of_package(vector: dict[str, Any]) -> None:
    request = decode_request(frames_of(vector["request"]))
    assert isinstance(request, wire.ChangeRequest)
    assert isinstance(request.peers, wire.MalformedPeers)
    refused = wire.ChangeRefused(request.request_id, request.peers.name, request.peers.message)
    assert encode_reply(refused) == frames_of(vector["responses"][0])


def test_vectors_are_all_covered() -> None:
    kinds = [kind for vector in PEERS for kind in ("request", "response", "Broadcast") if kind in vector["name"]]
    assert len(kinds) == len(PEERS)
    assert {vector["name"] for vector in CLIENTS} >= NO_MESSAGE | MALFORMED.keys() | {IN_EIGHT_BYTES}
