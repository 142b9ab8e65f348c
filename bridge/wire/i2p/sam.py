r"""Lines of SAM v3 (3.0 to 3.3), the text protocol of a router's SAM bridge ⇄ words and pairs.

    STREAM STATUS RESULT=CANT_REACH_PEER MESSAGE="no lease set"\n
    └── words ──┘ └───────────────── pairs ─────────────────┘

A value with a space is in double quotes, with `\` before a quote or a backslash. i2pd does not interpret quotes: it
splits at each space. So `encode_request` refuses a value that needs quotes; `encode_reply` writes the quotes. PING and
PONG carry a text instead of pairs. A received line is bounded in bytes and pairs; control characters and repeated keys
are errors.

`SamLineError` is the only error. The session options that a farm needs, and the results of a router, are declared here.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from bridge.wire.i2p.structures import Destination, I2pError, destination_from_base64

LINE_LIMIT_BYTES: Final = 8_192
"""i2pd's buffer; the longest line that a farm needs, a session with its private key, has about 1,500 bytes."""
PAIRS_LIMIT: Final = 64
VERSIONS: Final = ("3.0", "3.1", "3.2", "3.3")
OK: Final = "OK"
TRANSIENT: Final = "TRANSIENT"

HELLO: Final = "HELLO VERSION"
HELLO_REPLY: Final = "HELLO REPLY"
SESSION_CREATE: Final = "SESSION CREATE"
SESSION_STATUS: Final = "SESSION STATUS"
STREAM_CONNECT: Final = "STREAM CONNECT"
STREAM_ACCEPT: Final = "STREAM ACCEPT"
STREAM_STATUS: Final = "STREAM STATUS"
DEST_GENERATE: Final = "DEST GENERATE"
DEST_REPLY: Final = "DEST REPLY"
PING: Final = "PING"
PONG: Final = "PONG"

SESSION_OPTIONS: Final[Mapping[str, str]] = {"i2cp.leaseSetEncType": "4", "SIGNATURE_TYPE": "7"}
"""X25519, because i2pd makes an ElGamal lease set by default; Ed25519, because both routers use DSA by default."""

_KEY: Final = re.compile(r'[^\s="]{1,255}')
_TOKEN: Final = re.compile(rf'({_KEY.pattern})(=(?:"((?:[^"\\]|\\.)*)"|([^\s"]*)))?(?: +|$)')
_PLAIN_VALUE: Final = re.compile(r'[^\s"\\]+')
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_WORDS_LIMIT: Final = 2
_TEXT_VERBS: Final = (PING, PONG)


class SamLineError(ValueError):
    """The text is not a line of SAM, or cannot be written as one."""


class SamLine(Struct, frozen=True):
    """A line: `words` is one of the constants above, or unknown."""

    words: str
    pairs: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    """The text of a PING or PONG."""

    def __repr__(self) -> str:
        # Values may be private keys.
        return f"SamLine({self.words!r}, keys={list(self.pairs)})"

    @property
    def result(self) -> str:
        """The RESULT of a reply; empty if it lacks one."""
        return self.pairs.get("RESULT", "")

    @property
    def outcome(self) -> str:
        """The RESULT of a reply with its MESSAGE, for people."""
        message = self.pairs.get("MESSAGE")
        return f"{self.result}: {message}" if message else self.result or f"a line {self.words!r}"


def encode_request(words: str, pairs: Mapping[str, str]) -> bytes:
    """Encode a line for a router; raises `SamLineError` for a value that i2pd would split."""
    for key, value in pairs.items():
        if _PLAIN_VALUE.fullmatch(value) is None:
            raise SamLineError(f"the value of {key[:60]} is empty, or has a space, a quote or a backslash")
    return encode_reply(words, pairs)


def encode_reply(words: str, pairs: Mapping[str, str]) -> bytes:
    """Encode a line of a SAM bridge, with quotes around values that need them."""
    if len(pairs) > PAIRS_LIMIT:
        raise SamLineError(f"a line has at most {PAIRS_LIMIT} pairs, not {len(pairs)}")
    return _finished(" ".join([words, *(_pair(key, value) for key, value in pairs.items())]))


def encode_text(verb: str, text: str) -> bytes:
    """Encode a PING or PONG."""
    return _finished(f"{verb} {text}" if text else verb)


def _pair(key: str, value: str) -> str:
    if _KEY.fullmatch(key) is None:
        raise SamLineError(f"{key[:60]!r} is not a key of a pair")
    if _PLAIN_VALUE.fullmatch(value) is not None:
        return f"{key}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{key}="{escaped}"'


def _finished(line: str) -> bytes:
    if _CONTROL.search(line) is not None:
        raise SamLineError("a line cannot contain control characters")
    try:
        data = line.encode() + b"\n"
    except UnicodeEncodeError:
        raise SamLineError("the line is not valid Unicode") from None
    if len(data) > LINE_LIMIT_BYTES:
        raise SamLineError(f"a line has at most {LINE_LIMIT_BYTES} bytes, not {len(data)}")
    return data


def parse_line(data: bytes) -> SamLine:
    """Parse a received line with or without its end; raises `SamLineError`."""
    if len(data) > LINE_LIMIT_BYTES:
        raise SamLineError(f"a line has at most {LINE_LIMIT_BYTES} bytes, not {len(data)}")
    try:
        line = data.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise SamLineError("the line is not UTF-8") from None
    if (found := _CONTROL.search(line)) is not None:
        raise SamLineError(f"the line contains the control character {ord(found[0])}")
    verb, _, text = line.partition(" ")
    if verb in _TEXT_VERBS:
        return SamLine(verb, text=text)
    return _parse_pairs(line)


def _parse_pairs(line: str) -> SamLine:
    words: list[str] = []
    pairs: dict[str, str] = {}
    at = 0
    while at < len(line):
        token = _TOKEN.match(line, at)
        if token is None:
            raise SamLineError(f"the line cannot be read from character {at}")
        at = token.end()
        key, has_value, quoted, plain = token.groups()
        if has_value is None and not pairs and len(words) < _WORDS_LIMIT:
            words.append(key)
            continue
        if key in pairs:
            raise SamLineError(f"the key {key[:60]!r} is repeated")
        if len(pairs) >= PAIRS_LIMIT:
            raise SamLineError(f"a line has at most {PAIRS_LIMIT} pairs")
        pairs[key] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain or ""
    if not words:
        raise SamLineError("the line does not begin with a verb")
    return SamLine(" ".join(words), pairs)


def parse_peer(data: bytes) -> Destination:
    """Parse the line before an accepted stream: the peer's destination, in SAM 3.2 followed by its ports."""
    try:
        return destination_from_base64(data.decode("ascii").rstrip("\r\n").partition(" ")[0])
    except (UnicodeDecodeError, I2pError) as error:
        raise SamLineError(f"the line is not the peer's destination: {error}") from None
