"""Fuzzing of a directory's requests and replies: `python -m tests.simulation structure-exchange-fuzz --count N`.

    a request or reply ─▶ up to four mutations (bits, sizes, cuts, copies) ─▶ decode_request, decode_reply
                                                                           ─▶ read in parts, as a client does

The checks of each input: only `ExchangeError` is raised; decoded bytes are encoded to the same bytes; a reader in parts
never wants more than the limit, and accepts exactly the replies that `decode_reply` accepts. `fuzzing` checks memory,
time and that all outcomes occur.
"""

from collections.abc import Sequence
from random import Random

from bridge.wire.i2p.structure_exchange import (
    REPLY_LIMIT_BYTES,
    STRUCTURE_LIMIT_BYTES,
    ExchangeError,
    ReplyStatus,
    StructureReply,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    reply_bytes_missing,
)
from tests.simulation.fuzzing import FuzzError, Subject, options_of, run, within_memory

MUTATIONS_MAX = 4
OUTCOMES = frozenset({"request", "refused request", "refused reply", *(status.name for status in ReplyStatus)})
CORPUS = (
    encode_request(bytes(range(32))),
    *(encode_reply(StructureReply(status)) for status in ReplyStatus if status is not ReplyStatus.STRUCTURE),
    *(encode_reply(StructureReply(ReplyStatus.STRUCTURE, bytes(size))) for size in (1, 700, STRUCTURE_LIMIT_BYTES)),
)


def make(random: Random) -> bytes:
    """Return one input; some inputs are not mutated, to test that valid ones are accepted."""
    data = bytearray(random.choice(CORPUS))
    for _ in range(random.randint(0, MUTATIONS_MAX)):
        at = random.randint(0, min(len(data), 8) if random.random() < 0.7 else len(data))
        match random.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << random.randrange(8)
            case 1 if at < len(data):
                data[at] = random.choice((0, 1, 2, 3, 4, 0x7F, 0xFF))
            case 2:
                del data[at:]
            case 3:
                data[at:at] = random.randbytes(random.choice((1, 2, 31, 33)))
            case _:
                data += random.choice((b"x", bytes(65_536), data[at:]))
    return bytes(data)


def check(data: bytes, random: Random) -> list[str]:
    """Return the outcomes of one input; raises `FuzzError`, or any unexpected error of a decoder."""
    return [_check_request(data), within_memory(lambda: _check_reply(data, random), len(data), random, 8)]


def _check_request(data: bytes) -> str:
    try:
        address_hash = decode_request(data)
    except ExchangeError:
        return "refused request"
    if encode_request(address_hash) != data:
        raise FuzzError("a request is encoded to other bytes")
    return "request"


def _check_reply(data: bytes, random: Random) -> str:
    in_parts = _read_in_parts(data, random)
    try:
        reply = decode_reply(data)
    except ExchangeError:
        if in_parts == data:
            raise FuzzError("a reader in parts accepts a refused reply") from None
        return "refused reply"
    if encode_reply(reply) != data or in_parts != data:
        raise FuzzError("a reply is encoded to other bytes, or a reader in parts refuses it")
    return reply.status.name


def _read_in_parts(data: bytes, random: Random) -> bytes | None:
    received = b""
    try:
        while missing := reply_bytes_missing(received):
            if len(received) + missing > REPLY_LIMIT_BYTES:
                raise FuzzError("a reader in parts exceeds the limit of a reply")
            part = data[len(received) :][: random.randint(max(1, missing // 2), missing)]
            if not part:
                return None
            received += part
    except ExchangeError:
        return None
    return received


def subject() -> Subject:
    """Return both decoders as one subject."""
    return Subject(make=make, check=check, expected=OUTCOMES)


def main(arguments: Sequence[str]) -> int:
    """Fuzz; return 0 if every check passed."""
    options = options_of("structure-exchange-fuzz", __doc__).parse_args(arguments)
    return 0 if run(subject(), options.seed, options.count) else 1
