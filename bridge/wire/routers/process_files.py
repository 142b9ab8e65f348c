"""Linux's files about processes: `/proc/PID/cmdline` of a router, `/proc/PID/cgroup`, and the listening ports.

    cmdline     i2pd --conf=/etc/i2pd/i2pd.conf --service            ─▶ RouterCommand: software, options
                java -Di2p.dir.config=/var/lib/i2p/i2p-config … net.i2p.router.RouterLaunch
    cgroup      0::/system.slice/i2pd.service                        ─▶ i2pd.service
    net/tcp     0: 0100007F:1DE6 00000000:0000 0A … 109 …            ─▶ Listener: 127.0.0.1, port 7654, user 109

A user of this machine chooses the words of a command line, so they are untrusted like a file.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final

from msgspec import Struct

from bridge.wire.routers.text_file import FILE_LIMIT_BYTES, RouterFileError

I2PD: Final = "i2pd"
JAVA: Final = "java"
WORDS_MAX: Final = 1_000
_MAIN_CLASSES: Final = frozenset({"net.i2p.router.Router", "net.i2p.router.RouterLaunch"})
_LISTENING: Final = "0A"
_FIELDS: Final = 8
_LISTENER = re.compile(r"([0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):([0-9A-Fa-f]{4})")
_UNIT = re.compile(
    r"^[0-9]+:(?:name=systemd)?:(?!/user\.slice/)(?:/.*?)?/([A-Za-z0-9:_.@\\-]{1,255}\.service)(?:/|$)", re.MULTILINE
)
"""The line of systemd's cgroup, in version 2 or as `name=systemd` in version 1. A machine may have both, and more.
`/user.slice` has the units of users' managers, which root's `systemctl` does not restart."""
_USER = re.compile(r"[0-9]{1,10}")
_WORD_BYTES: Final = 4


class RouterCommand(Struct, frozen=True):
    """The command line of a router: its software, and its options without their dashes."""

    software: str
    options: Mapping[str, str]


class Listener(Struct, frozen=True):
    """A TCP port in the state LISTEN, and the user of its process."""

    host: str
    port: int
    user_id: int


def read_command_line(data: bytes) -> RouterCommand | None:
    """Return the command line of an I2P router; None for another program."""
    if len(data) > FILE_LIMIT_BYTES:
        raise RouterFileError(f"it has more than {FILE_LIMIT_BYTES} bytes")
    words = data.decode("utf-8", "surrogateescape").removesuffix("\0").split("\0", WORDS_MAX)[:WORDS_MAX]
    program = words[0].rpartition("/")[2]
    if program == I2PD:
        return RouterCommand(I2PD, dict(_options(words[1:])))
    if program == JAVA and not _MAIN_CLASSES.isdisjoint(words):
        pairs = (each.removeprefix("-D").partition("=") for each in words if each.startswith("-Di2p."))
        return RouterCommand(JAVA, {key: value for key, _, value in pairs})
    return None


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options `--name=value`, `--name value` and `--name`; the value of the last form is `true`."""
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, separator, value = word[2:].partition("=")
        following = words[place + 1] if place + 1 < len(words) else "-"
        yield name, value if separator else "true" if following.startswith("-") else following


def read_service_unit(data: bytes) -> str | None:
    """Return the unit of systemd in `/proc/PID/cgroup`; None if the process does not belong to one."""
    found = _UNIT.search(data[:FILE_LIMIT_BYTES].decode("utf-8", "replace"))
    return found[1] if found is not None else None


def read_listeners(data: bytes) -> tuple[Listener, ...]:
    """Return the listening ports in `/proc/net/tcp` or `/proc/net/tcp6`; lines of another form are skipped."""
    found = []
    for line in data.decode("ascii", "replace").split("\n"):
        fields = line.split(maxsplit=_FIELDS)
        if len(fields) < _FIELDS or fields[3] != _LISTENING or _USER.fullmatch(fields[7]) is None:
            continue
        address = _LISTENER.fullmatch(fields[1])
        if address is not None:
            found.append(Listener(_host(address[1]), int(address[2], 16), int(fields[7])))
    return tuple(found)


def _host(digits: str) -> str:
    """Return the address; the kernel writes each word of four bytes in the byte order of the machine."""
    words = (digits[at : at + 2 * _WORD_BYTES] for at in range(0, len(digits), 2 * _WORD_BYTES))
    address = ip_address(b"".join(int(word, 16).to_bytes(_WORD_BYTES, sys.byteorder) for word in words))
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
