"""CURVE keys of ØMQ: the file that holds one, and Z85, ØMQ's text form of keys.

    version = 1
    name = "reader"
    public_key = "…"            Z85, 40 characters; an operator lists it (`zmq.keys`), or gives it to clients
    secret_key = "…"            Z85

The keys are an X25519 pair (RFC 7748), as in CurveZMQ (ZeroMQ's RFC 26). Z85 (ZeroMQ's RFC 32) writes 4 bytes as 5
characters, the most significant first. Z85 uses the character `#`, so a list of keys may have comments only on separate
lines.
"""

from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from msgspec import Struct

from bridge.wire.keys.text import KEY_BYTES, VERSION, NamedKeyFile, advised, check_file, check_name, parse

Z85_CHARACTERS: Final = 40
_WHAT: Final = "CURVE key file"
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUE_OF: Final = {character: value for value, character in enumerate(_Z85)}
_BASE: Final = len(_Z85)


class CurveKey(Struct, frozen=True):
    """A key pair; each half has 32 bytes. Secret: its repr names the key and its public half."""

    name: str
    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"CurveKey(name={self.name!r}, public={to_z85(self.public)!r})"


class _CurveFile(NamedKeyFile):
    secret_key: str


def new_curve_key(name: str) -> CurveKey:
    """Make a key pair; raise `KeyTextError` for an invalid name."""
    check_name(name)
    return _pair(name, X25519PrivateKey.generate())


def curve_key_text(key: CurveKey) -> str:
    """Return the text of the file."""
    return (
        f"# The CURVE key {key.name!r} for ØMQ. Keep it secret (mode 0600); the public key may be shown.\n"
        f'version = {VERSION}\nname = "{key.name}"\n'
        f'public_key = "{to_z85(key.public)}"\nsecret_key = "{to_z85(key.secret)}"\n'
    )


def parse_curve_key(text: str) -> CurveKey:
    """Read a key file; raise `KeyTextError`."""
    with advised("Make one with `garlicfarm keys new-curve FILE --name N`"):
        file = parse(text, _CurveFile, _WHAT)
    found = _pair(file.name, X25519PrivateKey.from_private_bytes(from_z85(file.secret_key) or bytes(KEY_BYTES)))
    check_file(file, _WHAT, to_z85(found.public))
    return found


def to_z85(data: bytes) -> str:
    """Return the Z85 of bytes whose number is a multiple of 4."""
    groups = (int.from_bytes(data[start : start + 4]) for start in range(0, len(data), 4))
    return "".join(_Z85[group // _BASE**power % _BASE] for group in groups for power in range(4, -1, -1))


def from_z85(text: str) -> bytes | None:
    """Return the 32 bytes of a key; None for a text that is not a key."""
    if len(text) != Z85_CHARACTERS or any(character not in _VALUE_OF for character in text):
        return None
    key = b""
    for start in range(0, Z85_CHARACTERS, 5):
        value = 0
        for character in text[start : start + 5]:
            value = value * _BASE + _VALUE_OF[character]
        if value >= 2**32:
            return None
        key += value.to_bytes(4)
    return key if len(key) == KEY_BYTES else None


def _pair(name: str, private: X25519PrivateKey) -> CurveKey:
    return CurveKey(name, private.public_key().public_bytes_raw(), private.private_bytes_raw())
