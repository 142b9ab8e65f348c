"""Whether every setting of an agent is of the kind that it must be, before any of them is looked into.

Settings come from callers who may run no type checker. A wrong kind found late is a traceback from the depth of a
codec, in a task of the agent's own, long after the line that caused it; here each is refused by name, with what was
expected.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from gossip.core.keyring import KEY_BYTES
from gossip.core.member import Address
from gossip.core.options import Options
from gossip.node.resumption import Clocks
from gossip.wire.seal import KeyRing

PORT_LIMIT: Final = 65_535


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_address(value: object) -> bool:
    """Whether this is an `Address` of a text and a possible port."""
    if not isinstance(value, Address):
        return False
    host, port = _parts(value)
    return isinstance(host, str) and _is_number(port) and 0 <= port <= PORT_LIMIT


def _parts(address: Address) -> tuple[Any, Any]:
    """Host and port as what they may be: nobody checked what the address was made of."""
    return address.host, address.port


def _is_seeds(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)


def _of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


_Kind = tuple[Callable[[object], bool], str]
_ADDRESS: Final[_Kind] = (is_address, f"an Address of a host (text) and a port from 0 to {PORT_LIMIT}")
_NUMBER: Final[_Kind] = (_is_number, "a whole number")
_FLAG: Final[_Kind] = (_of(bool), "True or False")
_FUNCTION: Final[_Kind] = (callable, "a function")
_KINDS: Final[Mapping[str, _Kind]] = {
    "bind": _ADDRESS,
    "key_ring": (_of(KeyRing), f"the group's key of {KEY_BYTES} bytes, or a KeyRing"),
    "insecure": _FLAG,
    "advertise": _ADDRESS,
    "seeds": (_is_seeds, "a tuple of texts, as in ('192.168.1.4:7946',)"),
    "state_directory": (_of(Path), "a pathlib.Path"),
    "capacity": _NUMBER,
    "metadata": (_of(bytes), "bytes"),
    "options": (_of(Options), "Options"),
    "broadcast": _ADDRESS,
    "allow_wan": _FLAG,
    "datagram_limit_bytes": _NUMBER,
    "leave_linger_ms": _NUMBER,
    "random_seed": _NUMBER,
    "interface": (_of(str), "the name of an interface"),
    "ring_changed": _FUNCTION,
    "offer_keys": _FUNCTION,
    "admit": _FUNCTION,
    "may_tell_keys": _FUNCTION,
    "clocks": (_of(Clocks), "Clocks"),
}
_MAY_BE_NONE: Final = frozenset(
    {"key_ring", "advertise", "state_directory", "broadcast", "random_seed", "interface", "ring_changed", "offer_keys"}
)


def wrong_kinds(settings: Mapping[str, Any]) -> Iterable[str]:
    """For each setting of a wrong kind, what it is and what it should be. Never the value of a key."""
    for name, value in settings.items():
        fits, expected = _KINDS[name]
        if not fits(value) and not (value is None and name in _MAY_BE_NONE):
            given = type(value).__name__ if name == "key_ring" else f"{value!r:.60} ({type(value).__name__})"
            yield f"{name} = {given}: expected {expected}"


def key_ring_of(key: object) -> KeyRing | None:
    """The ring of a key, or what was given for it: a ring, or nothing. Errors (of value or type) say what is wrong."""
    if key is None or isinstance(key, KeyRing):
        return key
    if not isinstance(key, bytes):
        raise TypeError(f"key = {type(key).__name__}: expected the group's key of {KEY_BYTES} bytes, or a KeyRing")
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"key has {len(key)} bytes: expected {KEY_BYTES} random ones, as os.urandom({KEY_BYTES}) gives"
        )
    return KeyRing(key)


def unknown_names(names: Iterable[str]) -> list[str]:
    """Those that are no settings."""
    return [name for name in names if name not in _KINDS]
