"""Fuzz targets for ØMQ Raft: decoders of requests, replies and broadcasts.

    a message, or frames of every type with extremes ─▶ up to six mutations ─▶ decode ─▶ encode ─▶ decode

An input is a multipart message; for a reply, the first frame is the type of the request. The checks of each input: only
`ZmqRaftError` is raised. A decoded message is encoded to one with the same meaning, or refused if a list of peers is
malformed. A decoder uses at most a small multiple of the input's size in memory. This takes long to measure, so only
about one input in fifty is measured. The limits are small, so that inputs exceed them.
"""

import struct
from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from consensus.core.entry_data import configuration_entry, no_op_entry
from consensus.core.model import Entry, EntryKind, NoOp
from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.codec import (
    decode_broadcast,
    decode_reply,
    decode_request,
    encode_broadcast,
    encode_reply,
    encode_request,
)
from consensus.protocols.zmq_raft.wire.entries import configuration_of, entry_frames
from consensus.protocols.zmq_raft.wire.frames import MAX_UINT, FrameLimits, ZmqRaftError
from tests.simulation.fuzzing import FuzzError, Subject, within_memory
from tests.wire.test_zmq_raft_codec import IDENT, REQUEST_ID, REQUIRED_OF_REPLIES, REQUIRED_OF_REQUESTS

LIMITS: Final = FrameLimits(
    max_frames=48, max_message_bytes=16_384, max_entry_data_bytes=4_096, max_peers=8, max_json_bytes=2_048
)
MEMORY_FACTOR: Final = 16
MUTATIONS_MAX: Final = 6
REFUSED: Final = "refused"
PEERS: Final = (wire.Peer("1", "tcp://127.0.0.1:8047"), wire.Peer("2", "tcp://[::1]:8147"))
ENTRIES: Final = (
    Entry(1, EntryKind.COMMAND, REQUEST_ID + b"foo"),
    configuration_entry(2, configuration_of((*PEERS, wire.Peer("3", "tcp://10.0.0.3:1")), PEERS), REQUEST_ID),
    configuration_entry(2, configuration_of(PEERS)),
    no_op_entry(MAX_UINT, NoOp()),
    Entry(MAX_UINT, EntryKind.COMMAND, bytes(12) + b"\xff" * 4_000),
)
APPEND: Final = wire.AppendEntriesRpc(
    message_id=0, ident=IDENT, leader="2", term=MAX_UINT, previous_index=4, previous_term=2, commit=4, entries=ENTRIES
)
ENTRIES_REQUEST: Final = wire.EntriesRequest(request_id=b"\x01", ident=IDENT, previous_index=5)
REQUESTS: Final[tuple[wire.Request, ...]] = (
    *(request for request, _ in REQUIRED_OF_REQUESTS),
    *(APPEND, replace(APPEND, message_id=2**24 - 1, entries=())),
    replace(APPEND, term=3, previous_index=0, previous_term=0, entries=ENTRIES[:1] * 30),
    *(wire.ConfigRequest(b"", IDENT), wire.ChangeRequest(REQUEST_ID, IDENT, PEERS)),
    *(ENTRIES_REQUEST, replace(ENTRIES_REQUEST, count=0), replace(ENTRIES_REQUEST, snapshot_offset=65_536)),
    wire.CustomRequest(request_id=b"\x05", message_type=b"my", ident=IDENT, frames=(b"", b"frame")),
)
REPLIES: Final[tuple[tuple[type[wire.Request], wire.Reply], ...]] = (
    *((request_type, reply) for request_type, reply, _ in REQUIRED_OF_REPLIES),
    (wire.AppendEntriesRpc, wire.AppendEntriesResponse(message_id=1, term=2, success=True)),
    (wire.InstallSnapshotRpc, wire.InstallSnapshotResponse(1, 2)),
    (wire.ConfigRequest, wire.ConfigReply(request_id=b"\x07", is_leader=True, leader="1", peers=PEERS)),
    (wire.ConfigRequest, wire.ConfigReply(request_id=b"\x07", is_leader=False, leader=None, peers=())),
    (wire.UpdateRequest, wire.UpdateAccepted(REQUEST_ID)),
    (wire.UpdateRequest, wire.UpdateRedirect(REQUEST_ID, "2")),
    (wire.UpdateRequest, wire.UpdateRedirect(REQUEST_ID, None)),
    (wire.UpdateRequest, wire.UpdateExpired(REQUEST_ID)),
    (wire.ChangeRequest, wire.ChangeAccepted(REQUEST_ID)),
    (wire.ChangeRequest, wire.ChangeBusy(REQUEST_ID)),
    (wire.ChangeRequest, wire.ChangeExpired(REQUEST_ID)),
    (wire.EntriesRequest, wire.EntriesBatch(request_id=b"\x01", is_last=True, last_index=9, entries=ENTRIES)),
    (wire.EntriesRequest, wire.EntriesBatch(request_id=b"\x01", is_last=False, last_index=9, entries=(), leader="1")),
    (wire.EntriesRequest, wire.EntriesRedirect(b"\x01", None)),
    (wire.UrlRequest, wire.UrlReply(b"\x01", None)),
    (wire.CustomRequest, wire.CustomReply(b"\x01", (b"one", b""))),
)
REQUEST_TYPES: Final = {each.__name__: each for each in dict(REPLIES)}
BROADCASTS: Final = (
    wire.StateBroadcast(ident=IDENT, term=1, last_applied=6),
    wire.StateBroadcast(ident=IDENT, term=MAX_UINT, last_applied=5, entries=ENTRIES),
)


def uint(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8 or 1, "little")


def packed(*values: object) -> list[bytes]:
    return [msgspec.msgpack.encode(value) for value in values]


NUMBERS: Final = tuple(
    map(uint, (0, 1, 2, 3, 4, 5, 255, 256, 2**24 - 1, 2**24, 2**31, 2**53 - 1, 2**53, 2**64 - 1, 2**64))
)
URLS: Final = (
    *(
        "",
        "x",
        "tcp://",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:99999",
        "tcp://0.0.0.0:1",
        "tcp://[::]:1",
        "tcp://::1:1",
    ),
    *("tcp://[::1%lo]:1", "tcp://host:1", "ipc:///x", "epgm://1.2.3.4:5", "tcp://u@1.2.3.4:5", "tcp://1.2.3.4:5#"),
    *(
        "tcp://1.2.3.4:5/",
        "tcp://1.2.3.4:5?",
        "tcp://1.2.3.4:٣",
        "tcp://[1.2.3.4]:5",
        "tcp://1.2.3.4:" + "0" * 300 + "5",
    ),
    *("tcp://1.2.3.4:5", "tcp://[" + ":" * 200 + "]:5", "\x00", "é" * 100),
)
LISTS: Final[tuple[object, ...]] = (
    *([], {}, None, 5, "x", [None], [[]], [["1"]], [[1, 2]], [{}], [{"id": "1"}], [{"url": "tcp://1.2.3.4:5"}]),
    *(["tcp://1.2.3.4:5"], [["1", "tcp://1.2.3.4:5"]] * 2, [["\u202e", "tcp://1.2.3.4:5"]]),
    [[str(number), f"tcp://1.2.3.4:{number}"] for number in range(1, 8)],
    [[str(number), f"tcp://1.2.3.4:{number}"] for number in range(1, 10)],
    {"old": [["1", "tcp://1.2.3.4:5"]], "new": [["1", "tcp://1.2.3.4:6"]]},
    {"old": [["1", "tcp://1.2.3.4:5"]], "new": [["2", "tcp://1.2.3.4:6"]]},
    {"old": [], "new": [["2", "tcp://1.2.3.4:6"]]},
    *([["1", url]] for url in URLS),
)
FLOATS: Final = (0.0, -0.0, 1.0, 1.5, -1.0, 2.0**31, 2.0**53, 1e308, float("nan"), float("inf"), float("-inf"))
JSON: Final = (
    *packed(*LISTS, *FLOATS, *URLS, *(True, False), -1, 2**31, 2**53 - 1, 2**53, 2**64 - 1, b"1", "1", "x" * 200),
    *packed([0, 10, 1], [0.0, 2.0**40, 1.0], [0, 10], [10, 0, 1], [0, 10, float("nan")], {"name": "E", "message": "m"}),
    *packed({"name": 1, "message": []}, {"name": "E"}, [[]] * 1_000, [{}] * 2_000),
    *(b"\xc1", b"\xc0\xc0", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xa2\xff\xff"),
    *(b"\x91" * 2_000, b"\x81\x91\x01\x02", b"\x81\x81\x01\x02\x03", b"\xd6\xff\0\0\0\0", b"\xd7\xff" + b"\xff" * 8),
    *(b"\xc7\x01\x05a", b"\xcb" + struct.pack(">d", 2.0**60), b"\xca\x4f\0\0\0"),
)
ENTRY_FRAMES: Final = tuple(entry_frames(ENTRIES))
TYPES: Final = (b"?", b"+", b"$", b"^", b"=", b"&", b"<", b"%", b"*", b"!", b"", b"my")
PIECES: Final = (
    *(b"", b"\0", b"\x01", b"\xff", b"\xc3\x28", b"x" * 129, b"y" * 1_025, bytes(11), bytes(12), bytes(13), bytes(20)),
    *(bytes(21), bytes(12) + b"\x01" + bytes(7) + b"\x90", bytes(12) + b"\x02" + bytes(7) + b"\xc0", b"z" * 4_117),
    *(bytes(12) + b"\x03" + bytes(8), bytes(12) + b"\0" + b"\xff" * 7 + b"d", bytes(16_385)),
)


def anything(random: Random) -> bytes:
    """Return a frame of any type, mostly with an extreme."""
    match random.randrange(8):
        case 0 | 1:
            return random.choice(NUMBERS)
        case 2 | 3:
            return random.choice(JSON)
        case 4:
            return random.choice(ENTRY_FRAMES)
        case 5:
            return REQUEST_ID[:12] + bytes((random.randrange(4),)) + random.randbytes(7) + random.choice(JSON)
        case 6:
            return random.randbytes(random.choice((1, 2, 4, 12, 20, 21, 300)))
        case _:
            return random.choice(PIECES)


def mutated(frames: Sequence[bytes], random: Random) -> list[bytes]:
    """Return the frames after up to six mutations; some remain as they are."""
    changed = list(frames)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, MUTATIONS_MAX))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(8):
            case 0 | 1 | 2 if at < len(changed):
                changed[at] = anything(random)
            case 3 if at < len(changed):
                changed[at] = cut(changed[at], random)
            case 4:
                changed[at:at] = [anything(random)]
            case 5:
                del changed[at : at + 1]
            case 6:
                del changed[at:]
            case _:
                changed[at:at] = changed[at : at + random.choice((1, 4, 40))]
    return changed


def cut(frame: bytes, random: Random) -> bytes:
    """Return the frame with a flipped bit, an inserted byte, or a missing end."""
    at = random.randrange(len(frame) + 1)
    if at == len(frame) or random.random() < 0.3:
        return frame[:at] + random.choice((b"", b"\0", b"\xff", b"\xc0")) + frame[at:]
    if random.random() < 0.3:
        return frame[:at]
    return frame[:at] + bytes((frame[at] ^ 1 << random.randrange(8),)) + frame[at + 1 :]


class RequestTarget(Subject[list[bytes]]):
    """Input of a ROUTER socket."""

    name = "requests"
    expected = frozenset({REFUSED, "MalformedPeers", *(type(each).__name__ for each in REQUESTS)})

    def __init__(self) -> None:
        self._known = [encode_request(each) for each in REQUESTS]

    def make(self, random: Random) -> list[bytes]:
        """Return mutated requests, and some that consist of extremes."""
        if random.random() < 0.2:
            head = [random.choice((b"\x01", REQUEST_ID, b"")), random.choice(TYPES), IDENT]
            return [*head, *(anything(random) for _ in range(random.randrange(8)))]
        return mutated(random.choice(self._known), random)

    def check(self, frames: list[bytes], random: Random) -> list[str]:
        """Check that a decoded request has one meaning."""
        try:
            request = within_memory(
                lambda: decode_request(frames, LIMITS), sum(map(len, frames)), random, MEMORY_FACTOR
            )
        except ZmqRaftError:
            return [REFUSED]
        if isinstance(request, wire.ChangeRequest) and isinstance(request.peers, wire.MalformedPeers):
            try:
                encode_request(request)
            except ZmqRaftError:
                return ["MalformedPeers"]
            raise FuzzError("malformed peers are encoded")
        if decode_request(encode_request(request), LIMITS) != request:
            raise FuzzError("encoded and decoded again, it means something else")
        return [type(request).__name__]


class ReplyTarget(Subject[list[bytes]]):
    """Input of a DEALER socket; the first frame is the name of the request's type."""

    name = "replies"
    expected = frozenset({REFUSED, *(type(reply).__name__ for _, reply in REPLIES)})

    def __init__(self) -> None:
        self._known = [(request_type.__name__.encode(), encode_reply(reply)) for request_type, reply in REPLIES]

    def make(self, random: Random) -> list[bytes]:
        """Return mutated replies, some to another request."""
        request_type, frames = random.choice(self._known)
        if random.random() < 0.1:
            request_type, _ = random.choice(self._known)
        if random.random() < 0.1:
            frames = [frames[0], *(anything(random) for _ in range(random.randrange(10)))]
        return [request_type, *mutated(frames, random)]

    def check(self, frames: list[bytes], random: Random) -> list[str]:
        """Check that a decoded reply has one meaning."""
        request_type, frames = REQUEST_TYPES[frames[0].decode()], frames[1:]
        try:
            reply = within_memory(
                lambda: decode_reply(request_type, frames, LIMITS), sum(map(len, frames)), random, MEMORY_FACTOR
            )
        except ZmqRaftError:
            return [REFUSED]
        if decode_reply(request_type, encode_reply(reply), LIMITS) != reply:
            raise FuzzError("encoded and decoded again, it means something else")
        return [type(reply).__name__]


class BroadcastTarget(Subject[list[bytes]]):
    """Input of a SUB socket."""

    name = "broadcasts"
    expected = frozenset({REFUSED, "StateBroadcast"})

    def __init__(self) -> None:
        self._known = [encode_broadcast(each) for each in BROADCASTS]

    def make(self, random: Random) -> list[bytes]:
        return mutated(random.choice(self._known), random)

    def check(self, frames: list[bytes], random: Random) -> list[str]:
        """Check that a decoded broadcast has one meaning."""
        try:
            broadcast = within_memory(
                lambda: decode_broadcast(frames, LIMITS), sum(map(len, frames)), random, MEMORY_FACTOR
            )
        except ZmqRaftError:
            return [REFUSED]
        if decode_broadcast(encode_broadcast(broadcast), LIMITS) != broadcast:
            raise FuzzError("encoded and decoded again, it means something else")
        return ["StateBroadcast"]


TARGETS: Final = (RequestTarget, ReplyTarget, BroadcastTarget)
