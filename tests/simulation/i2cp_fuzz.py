"""Fuzzing of the I2CP reader: `python -m tests.simulation i2cp-fuzz --count N`.

    a stream of one to four known messages ─▶ up to six mutations (bits, sizes, cuts, copies, splices)
                                           ─▶ fed in pieces to FrameReader ─▶ decode ─▶ encode

What must hold for each input: nothing is raised but `I2cpError`; the reader never keeps more than one frame and a
piece; what was decoded is encoded to the bytes that were read, or, of a router's messages, to their beginning, for
later routers append fields; a session's signature holds only over bytes that were signed. And for all of them: the
process stays within its memory, no input takes long, and every kind of message as well as both refusals occur.
"""

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from bridge.wire.i2cp import FRAME_LIMIT_BYTES, HEADER_BYTES, Frame, FrameReader, decode, encode
from bridge.wire.i2cp_messages import (
    NO_SESSION,
    CreateLeaseSet2,
    CreateSession,
    DestroySession,
    Disconnect,
    GetDate,
    HostLookup,
    HostReply,
    I2cpError,
    Message,
    RequestVariableLeaseSet,
    SessionStatus,
    SetDate,
    Unhandled,
)
from bridge.wire.i2cp_session import META_SESSION_OPTIONS, session_is_signed, signed_session
from bridge.wire.meta_lease_set import MetaLease
from bridge.wire.meta_lease_set import encode as encode_structure
from tests.interop.i2cp_streams import keys, master

NOW_S = 1_767_225_600
MUTATIONS_MAX = 6
STREAM_MESSAGES_MAX = 4
PIECE_MAX_BYTES = 4_096
SIZES = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)
MEMORY_GROWTH_LIMIT_MIB = 32
SLOWEST_LIMIT_S = 1.0
"""A thousand times what an input takes: only a reader whose work explodes reaches it."""
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


class FuzzError(AssertionError):
    """Something that must hold did not."""


@dataclass(slots=True)
class Tally:
    """What became of the inputs."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    """Processor time of the slowest input."""

    def lines(self) -> list[str]:
        """For the report."""
        outcomes = ", ".join(f"{name} {count:,}" for name, count in sorted(self.outcomes.items()))
        return [
            f"{self.inputs:,} inputs: {outcomes}",
            f"slowest input {self.slowest_s * 1000:.1f} ms of processor time",
        ]


def corpus() -> list[bytes]:
    """A frame of every shape."""
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
        Unhandled(31, b"a payload of somebody"),
        Unhandled(22, bytes(15)),
    ]
    for key in keys(NOW_S).values():
        structure = encode_structure(key.sign(NOW_S, leases))
        messages += [
            CreateSession(signed_session(key, NOW_S * 1000, META_SESSION_OPTIONS)),
            CreateLeaseSet2(7, structure),
            CreateLeaseSet2(7, structure, private_key_count=True),
        ]
    return [encode(message) for message in messages]


def mutated(known: Sequence[bytes], random: Random) -> bytes:
    """One input. Some stay as they are, so that what must be accepted is seen to be."""
    data = bytearray(b"".join(random.choice(known) for _ in range(random.randint(1, STREAM_MESSAGES_MAX))))
    for _ in range(random.randint(0, MUTATIONS_MAX)):
        _mutate(data, known, random)
    return bytes(data)


def _mutate(data: bytearray, known: Sequence[bytes], random: Random) -> None:
    at = random.randint(0, len(data))
    match random.randrange(8):
        case 0 if at < len(data):
            data[at] ^= 1 << random.randrange(8)
        case 1 if at < len(data):
            data[at] = random.choice(SIZES)
        case 2 if len(data) >= HEADER_BYTES:
            data[:4] = random.choice((0, 1, 100, FRAME_LIMIT_BYTES, FRAME_LIMIT_BYTES + 1, 2**32 - 1)).to_bytes(
                4, "big"
            )
        case 3:
            del data[at:]
        case 4:
            data[at:at] = random.randbytes(random.choice((1, 2, 32, 44, 64)))
        case 5:
            del data[at : at + random.choice((1, 32, 44, 64))]
        case 6:
            data[at:] = random.choice(known)
        case _ if len(data) >= HEADER_BYTES:
            # Another type or another length of the same body.
            data[4] = random.choice((1, 3, 20, 30, 32, 33, 37, 38, 39, 41, random.randrange(256)))
            if random.random() < 0.5:
                data[:4] = (len(data) - HEADER_BYTES).to_bytes(4, "big")
        case _:
            data += random.randbytes(8)


def check(data: bytes, known: frozenset[bytes], random: Random) -> list[str]:
    """The outcomes of one input; raises `FuzzError`, or whatever the reader should not have raised."""
    reader, outcomes, position = FrameReader(), [], 0
    while position < len(data):
        piece = data[position : position + random.randint(1, PIECE_MAX_BYTES)]
        position += len(piece)
        reader.feed(piece)
        try:
            while (frame := reader.next_frame()) is not None:
                outcomes.append(_check_frame(frame, known, random))
        except I2cpError:
            return [*outcomes, REFUSED_STREAM]
        if reader.held_bytes > HEADER_BYTES + FRAME_LIMIT_BYTES:
            raise FuzzError(f"the reader keeps {reader.held_bytes} bytes")
    return outcomes


def _check_frame(frame: Frame, known: frozenset[bytes], random: Random) -> str:
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
            raise FuzzError("a session's signature is judged wrongly")
    return type(message).__name__


def fuzz(seed: int, count: int, tally: Tally) -> None:
    """`count` inputs; a failure names the seed and the input."""
    random = Random(seed)
    known = corpus()
    known_set = frozenset(known)
    for _ in range(count):
        data = mutated(known, random)
        began = time.process_time()
        try:
            outcomes = check(data, known_set, random)
        except Exception as error:
            raise FuzzError(f"seed {seed}: {type(error).__name__}: {error}: {data.hex()}") from error
        tally.slowest_s = max(tally.slowest_s, time.process_time() - began)
        tally.inputs += 1
        tally.outcomes.update(outcomes)


def main(arguments: Sequence[str]) -> int:
    """Fuzz; 0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation i2cp-fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="how many inputs (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default 0)")
    options = parser.parse_args(arguments)
    tally = Tally()
    began = time.monotonic()
    try:
        fuzz(options.seed, options.count // 10, tally)
        settled_mib = _resident_mib()
        fuzz(options.seed + 1, options.count - tally.inputs, tally)
    except FuzzError as error:
        _say([str(error), *tally.lines()])
        return 1
    grown_mib = _resident_mib() - settled_mib
    _say([*tally.lines(), f"{time.monotonic() - began:.0f} s; memory at most {_resident_mib():.0f} MiB"])
    _say([f"memory grew by {grown_mib:.1f} MiB over the last nine tenths (limit {MEMORY_GROWTH_LIMIT_MIB})"])
    if missing := sorted(OUTCOMES - tally.outcomes.keys()):
        _say([f"never seen: {', '.join(missing)}: these inputs say too little"])
        return 1
    return 0 if grown_mib <= MEMORY_GROWTH_LIMIT_MIB and tally.slowest_s <= SLOWEST_LIMIT_S else 1


def _resident_mib() -> float:
    """The most memory that this process had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def _say(lines: Sequence[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
