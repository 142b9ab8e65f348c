"""Java I2P's files: properties, with the tunnels, the SAM bridge and the console in them.

    router.config                   i2cp.port=7654, i2cp.disableInterface, …          ─▶ properties
    i2ptunnel.config                tunnel.3.type=httpserver …                        ─▶ ServerTunnel
    i2ptunnel.config.d/*.config     one tunnel each, without the prefix
    clients.config, clients.config.d/*.config                                         ─▶ ClientApp
                                    clientApp.1.main=net.i2p.sam.SAMBridge …

The format differs from Java's own properties. It does not have escapes, and only `=` ends a key. `#` begins a comment
anywhere, `;` only at the beginning of a line. Spaces around a key are a part of it; spaces around a value are removed.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from bridge.wire.routers.text_file import (
    TUNNELS_MAX,
    RouterFileError,
    ServerTunnel,
    lease_set_problem,
    lines_of,
    pair_of,
    port_of,
)

SERVER_KINDS: Final = frozenset({"server", "httpserver", "httpbidirserver", "ircserver", "streamrserver"})
SAM_CLASS: Final = "net.i2p.sam.SAMBridge"
CONSOLE_CLASS: Final = "net.i2p.router.web.RouterConsoleRunner"
_DATAGRAMS: Final = "streamrserver"
_NUMBERED = re.compile(r"(?:tunnel|clientApp)\.(\d{1,6})\.(.+)")


class ClientApp(Struct, frozen=True):
    """A program that the router starts: its class, its arguments, and True if it starts with the router."""

    main: str
    arguments: tuple[str, ...]
    is_started: bool


def read_java_properties(data: bytes) -> dict[str, str]:
    """Return the properties; the last of two equal keys counts, as in the router."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines_of(data), 1):
        text = "" if line.startswith(";") else line.partition("#")[0]
        if "=" in text:
            _, value = pair_of(text, number)
            found[text.partition("=")[0]] = value
    return found


def is_true(text: str) -> bool:
    """Return True if Java reads the value as true."""
    return text.lower() == "true"


def read_java_tunnels(data: bytes) -> tuple[ServerTunnel, ...]:
    """Return the server tunnels in `i2ptunnel.config`, or in one file of `i2ptunnel.config.d`."""
    found = [_server_tunnel(each) for each in _numbered(read_java_properties(data))]
    return tuple(each for each in found if each is not None)


def read_java_clients(data: bytes) -> tuple[ClientApp, ...]:
    """Return the programs in `clients.config`, or in one file of `clients.config.d`."""
    return tuple(
        ClientApp(each.get("main", ""), tuple(each.get("args", "").split()), is_true(each.get("startOnLoad", "true")))
        for each in _numbered(read_java_properties(data))
    )


def _numbered(properties: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the properties of each number, without the prefix; a file without numbers is one group."""
    groups: dict[str, dict[str, str]] = {}
    for key, value in properties.items():
        numbered = _NUMBERED.fullmatch(key)
        number, name = (numbered[1], numbered[2]) if numbered is not None else ("", key)
        groups.setdefault(number, {})[name] = value
    if len(groups) > TUNNELS_MAX:
        raise RouterFileError(f"it has more than {TUNNELS_MAX} numbers")
    yield from groups.values()


def _server_tunnel(values: Mapping[str, str]) -> ServerTunnel | None:
    kind = values.get("type", "")
    if kind not in SERVER_KINDS:
        return None
    name = values.get("name", "") or "(without a name)"
    host, keys, port = (
        values.get("targetHost", ""),
        values.get("privKeyFile", ""),
        port_of(values.get("targetPort", "")),
    )
    problem = lease_set_problem(values.get("option.i2cp.leaseSetType", ""))
    if not keys:
        problem = "its configuration does not name a private key file: save it once in the Hidden Services Manager"
    elif kind == _DATAGRAMS:
        problem = "it forwards datagrams, and the farm's clients open streams"
    started = is_true(values.get("startOnLoad", "true"))
    return ServerTunnel(name, kind, host or "127.0.0.1", port or 0, keys, is_started=started, problem=problem)
