"""Fuzzing of a directory's requests and replies: `python -m tests.simulation structure-exchange-fuzz --count N`.

    a request or reply ─▶ up to six mutations (bits, sizes, cuts, copies) ─▶ decode_request, decode_reply
                                                                           ─▶ read in parts, as a client does

The checks of each input: only `ExchangeError` is raised. Decoded bytes are encoded to the same bytes. A reader in parts
never requires more bytes than the limit, and accepts exactly the replies that `decode_reply` accepts. `fuzzing` checks
memory, time and that all outcomes occur.
"""

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
from tests.simulation.fuzzing import FuzzError, Subject, mutated, within_memory

CORPUS = (
    encode_request(bytes(range(32))),
    *(encode_reply(StructureReply(status)) for status in ReplyStatus if status is not ReplyStatus.STRUCTURE),
    *(encode_reply(StructureReply(ReplyStatus.STRUCTURE, bytes(size))) for size in (1, 700, STRUCTURE_LIMIT_BYTES)),
)


class StructureExchange(Subject[bytes]):
    """Both decoders."""

    expected = frozenset({"request", "refused request", "refused reply", *(status.name for status in ReplyStatus)})

    def make(self, random: Random) -> bytes:
        """Return a request or reply; most mutations affect only its first bytes."""
        data = random.choice(CORPUS)
        end = 8 if random.random() < 0.7 else len(data)
        return mutated(data[:end], random, CORPUS) + data[end:]

    def check(self, data: bytes, random: Random) -> list[str]:
        """Check one input with both decoders."""
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
