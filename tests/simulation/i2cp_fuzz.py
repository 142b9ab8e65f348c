"""Fuzzing of I2CP, for the node's side and the tests' side: `python -m tests.simulation i2cp-fuzz --count N`.

    a stream of one to four known messages ─▶ up to six mutations (bits, sizes, cuts, copies, splices)
                                           ─▶ fed in pieces to FrameReader ─▶ decode ─▶ encode

The checks of each input: only `I2cpError` is raised; the reader never keeps more than one frame and a piece. A decoded
message is encoded to the same bytes; for a router's message, to their beginning, because later routers append fields. A
session's signature is valid only for signed bytes. `fuzzing` checks all inputs: every kind of message and both refusals
must occur.
"""

from collections.abc import Sequence
from random import Random

from bridge.wire.i2p.i2cp import FRAME_LIMIT_BYTES, HEADER_BYTES, Frame, FrameReader
from bridge.wire.i2p.i2cp_messages import (
    NO_SESSION,
    CreateLeaseSet2,
    CreateSession,
    DestroySession,
    Disconnect,
    GetDate,
    HostLookup,
    HostReply,
    I2cpError,
    RequestVariableLeaseSet,
    SessionStatus,
    SetDate,
    Unhandled,
)
from bridge.wire.i2p.meta_lease_set import MetaLease
from bridge.wire.i2p.meta_lease_set import encode as encode_structure
from tests.interop.i2cp_streams import keys, master
from tests.simulation.fuzzing import FuzzError, Subject, mutated
from tests.wire.i2cp_router_half import Message, decode, encode, session_is_signed

NOW_S = 1_767_225_600
STREAM_MESSAGES_MAX = 4
PIECE_MAX_BYTES = 4_096
SIGNATURES_CHECKED_SHARE = 0.1
REFUSED_FRAME, REFUSED_STREAM = "refused message", "refused length"
FROM_ROUTERS = (SetDate, SessionStatus, RequestVariableLeaseSet, HostReply, Disconnect)
OUTCOMES = frozenset(
    {REFUSED_FRAME, REFUSED_STREAM}
    | {
        each.__name__
        for each in (
            *(GetDate, SetDate, CreateSession, SessionStatus, DestroySession, CreateLeaseSet2),
            *(RequestVariableLeaseSet, HostLookup, HostReply, Disconnect, Unhandled),
        )
    }
)


def corpus() -> list[bytes]:
    """Return a frame of every shape."""
    leases = tuple(MetaLease(bytes([number]) * 32, number, NOW_S + 900 + number) for number in range(16))
    messages: list[Message] = [
        GetDate("0.9.64"),
        GetDate("0.9.64", {"i2cp.username": "farm", "i2cp.password": "x" * 200}),
        SetDate(NOW_S * 1000, "0.9.64"),
        SetDate(NOW_S * 1000),
        *(SessionStatus(7, status) for status in range(6)),
        DestroySession(7),
        RequestVariableLeaseSet(7, 6),
        HostLookup(NO_SESSION, 1, 15_000, b"h" * 32),
        HostReply(NO_SESSION, 1, 0, master().destination.encoded),
        HostReply(NO_SESSION, 1, 1),
        Disconnect("Router is shutting down"),
        Unhandled(31, b"a payload of a client"),
        Unhandled(22, bytes(15)),
    ]
    for key in keys(NOW_S).values():
        structure = encode_structure(key.sign(NOW_S, leases))
        messages += [
            CreateSession(key.sign_session(NOW_S * 1000)),
            CreateLeaseSet2(7, structure),
            CreateLeaseSet2(7, structure, private_key_count=True),
        ]
    return [encode(message) for message in messages]


def headed(frame: bytes, random: Random) -> bytes:
    """Return the frame, sometimes with another type or length in its header."""
    length, kind = frame[:4], frame[4:HEADER_BYTES]
    if random.random() < 0.1:
        kind = bytes([random.choice((1, 3, 20, 30, 32, 33, 37, 38, 39, 41, random.randrange(256)))])
    if random.random() < 0.05:
        length = random.choice((0, 1, 100, FRAME_LIMIT_BYTES, FRAME_LIMIT_BYTES + 1, 2**32 - 1)).to_bytes(4, "big")
    return length + kind + frame[HEADER_BYTES:]


class I2cpFrames(Subject[bytes]):
    """The reader of I2CP, with its corpus."""

    expected = OUTCOMES

    def __init__(self) -> None:
        self._known = corpus()

    def make(self, random: Random) -> bytes:
        """Return a stream of messages; the last ones are mutated."""
        messages = [headed(random.choice(self._known), random) for _ in range(random.randint(1, STREAM_MESSAGES_MAX))]
        first = random.randrange(len(messages))
        return b"".join(messages[:first]) + mutated(b"".join(messages[first:]), random, self._known)

    def check(self, data: bytes, random: Random) -> list[str]:
        reader, outcomes, position = FrameReader(), list[str](), 0
        while position < len(data):
            piece = data[position : position + random.randint(1, PIECE_MAX_BYTES)]
            position += len(piece)
            reader.feed(piece)
            try:
                while (frame := reader.next_frame()) is not None:
                    outcomes.append(_check_frame(frame, self._known, random))
            except I2cpError:
                return [*outcomes, REFUSED_STREAM]
            if len(reader._unparsed) > HEADER_BYTES + FRAME_LIMIT_BYTES:
                raise FuzzError(f"the reader keeps {len(reader._unparsed)} bytes")
        return outcomes


def _check_frame(frame: Frame, known: Sequence[bytes], random: Random) -> str:
    try:
        message = decode(frame)
    except I2cpError:
        return REFUSED_FRAME
    written = encode(message)[HEADER_BYTES:]
    if isinstance(message, RequestVariableLeaseSet):
        same = len(written) <= len(frame.body) and written[:3] == frame.body[:3]
    elif isinstance(message, FROM_ROUTERS):
        same = frame.body.startswith(written)
    else:
        same = frame.body == written
    if not same:
        raise FuzzError(f"a {type(message).__name__} is encoded to other bytes")
    if isinstance(message, CreateSession) and random.random() < SIGNATURES_CHECKED_SHARE:
        holds = session_is_signed(message.config)
        if holds is not (encode(message) in known):
            raise FuzzError("the check of a session's signature is wrong")
    return type(message).__name__
