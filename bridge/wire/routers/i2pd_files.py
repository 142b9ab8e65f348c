"""i2pd's files: `i2pd.conf`, and `tunnels.conf` with the files of `tunnels.d`.

    i2pd.conf       [section] and `name = value`; `#` begins a comment anywhere      ─▶ "i2cp.enabled" → Option
    tunnels.conf    a section for each tunnel; a line that begins with `#` or `;`    ─▶ ServerTunnel
                    is a comment

i2pd reads the two kinds of files with different parsers, Boost's program options and Boost's property tree; this
module follows both. i2pd ignores a whole file of tunnels with a repeated section or key, or with a line without `=`.
This module raises `RouterFileError` for such a file.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from bridge.wire.routers import text_file

SERVER_KINDS: Final = frozenset({"server", "http", "irc", "udpserver"})
TRANSIENT: Final = "transient"
SHARED: Final = "shareddest"
_TRUE: Final = frozenset({"", "on", "yes", "1", "true"})
_FALSE: Final = frozenset({"off", "no", "0", "false"})
_UDP: Final = "udpserver"


class Option(Struct, frozen=True):
    """A value in `i2pd.conf`, and the number of its line; 0 is the command line."""

    value: str
    line: int

    @property
    def flag(self) -> bool | None:
        """The value as true or false, as i2pd reads it; None if it is neither."""
        word = self.value.lower()
        return True if word in _TRUE else False if word in _FALSE else None


def read_i2pd_conf(data: bytes) -> dict[str, Option]:
    """Return the options in `i2pd.conf`, such as `i2cp.enabled`. The first value of a repeated name counts."""
    found: dict[str, Option] = {}
    section = ""
    for number, line in enumerate(text_file.lines_of(data), 1):
        text = line.partition("#")[0].strip()
        if text.startswith("[") and text.endswith("]"):
            section = f"{text[1:-1].strip()}."
        elif "=" in text:
            key, value = text_file.pair_of(text, number)
            found.setdefault(f"{section}{key}", Option(value, number))
        elif text:
            raise text_file.RouterFileError(f"line {number} is neither a section nor a value")
    return found


def read_i2pd_tunnels(data: bytes) -> tuple[text_file.ServerTunnel, ...]:
    """Return the server tunnels in `tunnels.conf`, in order."""
    found = [_server_tunnel(name, values) for name, values in _sections(data).items()]
    return tuple(each for each in found if each is not None)


def _sections(data: bytes) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    values: dict[str, str] = {}
    for number, line in enumerate(text_file.lines_of(data), 1):
        text = line.strip()
        if not text or text[0] in "#;":
            continue
        if text.startswith("["):
            name, bracket, _ = text[1:].partition("]")
            name, values = name.strip(), {}
            if not bracket or name in found:
                raise text_file.RouterFileError(
                    f"line {number}: i2pd ignores the whole file: the section is repeated, or its `]` is missing"
                )
            found[name] = values
            if len(found) > text_file.TUNNELS_MAX:
                raise text_file.RouterFileError(f"it has more than {text_file.TUNNELS_MAX} tunnels")
            continue
        key, value = text_file.pair_of(text, number)
        if "=" not in text or not key or key in values:
            raise text_file.RouterFileError(
                f"line {number}: i2pd ignores the whole file: a key is repeated or missing, or `=` is missing"
            )
        values[key] = value
    return found


def _server_tunnel(name: str, values: Mapping[str, str]) -> text_file.ServerTunnel | None:
    kind = values.get("type", "")
    if kind not in SERVER_KINDS:
        return None
    host, keys, port = values.get("host", ""), values.get("keys", ""), text_file.port_of(values.get("port", ""))
    problem = text_file.lease_set_problem(values.get("i2cp.leaseSetType", ""))
    if not host or not keys or port is None:
        problem = "i2pd needs `host`, `port` and `keys` in its section"
    elif keys.startswith(TRANSIENT):
        problem = f"its address changes at each start of i2pd: set `keys = {name}.dat` in its section"
    elif keys == SHARED:
        problem = f"it uses the address of all client tunnels: set `keys = {name}.dat` in its section"
    elif kind == _UDP:
        problem = "it forwards datagrams, and the farm's clients open streams"
    return text_file.ServerTunnel(name, kind, host, port or 0, keys, problem=problem)
