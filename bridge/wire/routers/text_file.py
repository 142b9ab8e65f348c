"""The bounded lines of a router's text file, and the server tunnel that files of Java I2P and of i2pd describe.

Anyone with an account on the router may have written such a file, so it is untrusted. Its size, the number of its lines
and the length of a value are bounded. `RouterFileError` is the only error of all decoders in this folder. Its text
contains line numbers and names of settings, never values: a configuration contains passwords.
"""

from typing import Final

from msgspec import Struct

FILE_LIMIT_BYTES: Final = 256 * 1024
LINES_MAX: Final = 10_000
VALUE_LIMIT: Final = 2_048
"""Characters of a name or a value."""
TUNNELS_MAX: Final = 256
PORT_LIMIT: Final = 65_535
ENCRYPTED: Final = "its lease set is encrypted, so the farm's clients cannot find it"
_ENCRYPTED_TYPE: Final = "5"


class RouterFileError(ValueError):
    """The content is not a file of a router; the text contains the place and the fault, never a value."""


class ServerTunnel(Struct, frozen=True):
    """A server tunnel as a router's file describes it."""

    name: str
    kind: str
    """The type in the router's words, such as `http`."""
    host: str
    port: int
    key_file: str
    """The private key file, relative to the directory of the router."""
    is_started: bool = True
    """False if the router does not start it."""
    problem: str = ""
    """Reason why it cannot be a leaf of a farm; empty if it can."""


def lines_of(data: bytes) -> list[str]:
    """Return the lines without their ends."""
    if len(data) > FILE_LIMIT_BYTES:
        raise RouterFileError(f"it has more than {FILE_LIMIT_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RouterFileError("it is not text in UTF-8") from None
    if "\0" in text:
        raise RouterFileError("it is not text: it contains a zero byte")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if len(lines) > LINES_MAX:
        raise RouterFileError(f"it has more than {LINES_MAX} lines")
    return lines


def pair_of(line: str, number: int) -> tuple[str, str]:
    """Return the key and the value of `key = value`, both without surrounding spaces."""
    key, _, value = line.partition("=")
    key, value = key.strip(), value.strip()
    if max(len(key), len(value)) > VALUE_LIMIT:
        raise RouterFileError(f"line {number} has a name or a value of more than {VALUE_LIMIT} characters")
    return key, value


def port_of(text: str) -> int | None:
    """Return a port; None if the text is not one."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(PORT_LIMIT)):
        return None
    port = int(text)
    return port if 0 < port <= PORT_LIMIT else None


def lease_set_problem(lease_set_type: str) -> str:
    """Return the problem of a lease set of this type; empty if clients find it by the hash of its destination."""
    return ENCRYPTED if lease_set_type.strip() == _ENCRYPTED_TYPE else ""
