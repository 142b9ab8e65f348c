"""Fuzzing of SAM's lines: `python -m tests.simulation sam-fuzz --count N`.

    a line of a bridge or client ─▶ up to six mutations (bytes, quotes, cuts, copies, splices)
                                 ─▶ parse_line, parse_peer, destination_of_sam_key ─▶ encode_reply

The checks of each input: only the errors of these functions are raised. A parsed line is encoded to a line with the
same words and pairs. Its bytes and pairs are bounded. `fuzzing` checks memory, time and that all outcomes occur.
"""

from random import Random

from bridge.wire.i2p.destination_keys import DestinationKeyError, new_master_key
from bridge.wire.i2p.key_file import destination_of_sam_key, sam_private_key
from bridge.wire.i2p.sam import (
    LINE_LIMIT_BYTES,
    PAIRS_LIMIT,
    PING,
    PONG,
    SESSION_OPTIONS,
    SamLine,
    SamLineError,
    encode_reply,
    encode_request,
    encode_text,
    parse_line,
    parse_peer,
)
from tests.simulation.fuzzing import FuzzError, Subject, mutated, within_memory

MEMORY_FACTOR = 300
"""Bytes for one byte of an input: each escaped character is one object. A line has at most 8 KiB."""
PIECES = (b" ", b"=", b'"', b"\\", b'\\"', b"\n", b"\r", b"\0", b"\xff", b"A=1 ", b"\xe2\x80\xa8", b'="a b" ')


def corpus() -> list[bytes]:
    key = new_master_key()
    private_key = sam_private_key(key)
    session = {"STYLE": "STREAM", "ID": "0123456789abcdef", "DESTINATION": private_key, **SESSION_OPTIONS}
    return [
        encode_request("HELLO VERSION", {"MIN": "3.1", "MAX": "3.3"}),
        encode_request("SESSION CREATE", session),
        encode_request("STREAM CONNECT", {"ID": "0", "DESTINATION": key.destination.address, "SILENT": "false"}),
        encode_reply("HELLO REPLY", {"RESULT": "OK", "VERSION": "3.3"}),
        encode_reply("SESSION STATUS", {"RESULT": "OK", "DESTINATION": private_key}),
        encode_reply("STREAM STATUS", {"RESULT": "I2P_ERROR", "MESSAGE": 'a "quoted" \\ text'}),
        encode_reply("DEST REPLY", {"PUB": key.destination.base64, "PRIV": private_key}),
        encode_text(PING, "1767225600000"),
        encode_text(PONG, ""),
        f"{key.destination.base64} FROM_PORT=0 TO_PORT=0\n".encode(),
        f"{key.destination.base64}\n".encode(),
        private_key.encode(),
        b"A B " + b" ".join(b"%d=x" % number for number in range(PAIRS_LIMIT)),
        b"A B C=" + b"x" * (LINE_LIMIT_BYTES - 7) + b"\n",
    ]


class SamParsers(Subject[bytes]):
    """The parsers of SAM, with their corpus."""

    expected = frozenset({"line", "text", "refused line", "peer", "refused peer", "key", "refused key"})

    def __init__(self) -> None:
        self._known = corpus()

    def make(self, random: Random) -> bytes:
        return mutated(random.choice(self._known), random, self._known, PIECES)

    def check(self, data: bytes, random: Random) -> list[str]:
        return within_memory(
            lambda: [_check_line(data), _check_peer(data), _check_key(data)], len(data), random, MEMORY_FACTOR
        )


def _check_line(data: bytes) -> str:
    try:
        line = parse_line(data)
    except SamLineError:
        return "refused line"
    if len(data) > LINE_LIMIT_BYTES or len(line.pairs) > PAIRS_LIMIT:
        raise FuzzError("a line beyond the limits is accepted")
    is_text = line.words in {PING, PONG}
    try:
        written = encode_text(line.words, line.text) if is_text else encode_reply(line.words, line.pairs)
    except SamLineError as error:
        # Quotes and the end of the line need more bytes than the parsed line has.
        if len(data) < LINE_LIMIT_BYTES // 2:
            raise FuzzError(f"a parsed line cannot be encoded: {error}") from error
        return "line"
    if parse_line(written) != SamLine(line.words, line.pairs, line.text):
        raise FuzzError("an encoded line is parsed to another one")
    return "text" if is_text else "line"


def _check_peer(data: bytes) -> str:
    try:
        destination = parse_peer(data)
    except SamLineError:
        return "refused peer"
    if not data.startswith(destination.base64.encode()):
        raise FuzzError("the destination of a peer has another text")
    return "peer"


def _check_key(data: bytes) -> str:
    try:
        destination_of_sam_key(data.decode("latin-1"))
    except DestinationKeyError:
        return "refused key"
    return "key"
