"""The settings of a node, checked before anything is opened.

Settings come from callers that may not run a type checker. A value of a wrong type would cause a traceback in a codec,
in another task, long after the faulty call. So each value of a wrong kind is refused here, with its name and the
expected kind. The text never holds the value of a key.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin

from msgspec import Struct, field, structs

from gossip.core.join import AdmissionPolicy, admit_all
from gossip.core.keyring import KEY_BYTES, Keyring
from gossip.core.member import METADATA_LIMIT_BYTES, Address, NodeId, NodeInfo
from gossip.core.options import SwimOptions
from gossip.node.endpoints import dialed, endpoint, may_gossip, numeric, parse_endpoint
from gossip.node.resumption import Clocks, system_clocks
from gossip.wire.codec import CAPACITY_LIMIT
from gossip.wire.secure_codec import DATAGRAM_LIMIT_BYTES

DEFAULT_CAPACITY: Final = 30
SEEDS_LIMIT: Final = 256
"""The core keeps `SEED_ADDRESSES_LIMIT` addresses: these seeds, and the stored peers of the last run."""
LEAVE_LINGER_LIMIT_MS: Final = 600_000
_LEAST_DATAGRAM_BYTES: Final = 1200
_UDP_LIMIT_BYTES: Final = 65_507
PORT_LIMIT: Final = 65_535


class ConfigError(ValueError):
    """A setting that cannot work; the text names it and the expected values."""


def any_member(_sender: NodeId) -> bool:
    """Return True. Without a list of identities, a group accepts keys from every identity."""
    return True


class GroupSettings(Struct, frozen=True, kw_only=True):
    """The settings of one node. Hosts are numeric; `seeds` are 'host:port' and may be names.

    `keyring` None means datagrams in clear, and requires `insecure` as well. With `state_directory` None, identity and
    generation are not stored: each start is a new node. `random_seed` fixes the protocol's jitter, never a key.

    `broadcast` is a broadcast or multicast address for announcements; `interface` names the multicast interface if the
    routes do not determine it. `keyring_changed` is called in a thread with the group's newest keyring, after the node
    has stored it; an exception raises an alarm. `offer_keys(joiner)` returns the application's offer (at most 256
    bytes, or empty) for a joiner with a retired key; the joiner has signed this description. It receives the offer as
    the event `KeyOffered`. `admit` returns None to accept a joiner, or the JoinNak that refuses it; if it raises, the
    joiner is refused, with an alarm.

    `may_send_keys` returns True for a trusted identity. The node accepts keyring updates that this identity signed, and
    sends it keys encrypted to its public key (`gossip.wire.box`). By default every identity is trusted. `clocks` detect
    a resumption of the machine from a snapshot (`gossip.node.resumption`). With `aligned_rounds`, probe rounds begin at
    multiples of their period on trio's clock, so one wake-up of the process may also serve other timers.
    """

    bind: Address
    keyring: Keyring | None = None
    insecure: bool = False
    advertise: Address | None = None
    seeds: tuple[str, ...] = ()
    state_directory: Path | None = None
    capacity: int = DEFAULT_CAPACITY
    metadata: bytes = b""
    options: SwimOptions = field(default_factory=SwimOptions.lan)
    broadcast: Address | None = None
    allow_wan: bool = False
    datagram_limit_bytes: int = DATAGRAM_LIMIT_BYTES
    leave_linger_ms: int = 500
    random_seed: int | None = None
    aligned_rounds: bool = False
    interface: str | None = None
    keyring_changed: Callable[[Keyring], None] | None = None
    offer_keys: Callable[[NodeInfo], bytes] | None = None
    admit: AdmissionPolicy = admit_all
    may_send_keys: Callable[[NodeId], bool] = any_member
    clocks: Clocks = field(default_factory=system_clocks)

    def __post_init__(self) -> None:
        wrong = next(iter(wrong_kinds(structs.asdict(self))), None)
        if wrong is not None:
            raise ConfigError(wrong)
        if (self.keyring is None) != self.insecure:
            raise ConfigError(
                "give either a farm key or `insecure` (datagrams in clear, readable and forgeable by all)"
            )
        if not 1 <= self.capacity <= CAPACITY_LIMIT:
            raise ConfigError(f"capacity = {self.capacity}: expected from 1 (room for one peer) to {CAPACITY_LIMIT}")
        if len(self.metadata) > METADATA_LIMIT_BYTES:
            raise ConfigError(f"metadata has {len(self.metadata)} bytes, the limit is {METADATA_LIMIT_BYTES}")
        if not _LEAST_DATAGRAM_BYTES <= self.datagram_limit_bytes <= _UDP_LIMIT_BYTES:
            raise ConfigError(
                f"datagram_limit_bytes = {self.datagram_limit_bytes}: expected from {_LEAST_DATAGRAM_BYTES} to "
                f"{_UDP_LIMIT_BYTES}"
            )
        if not 0 <= self.leave_linger_ms <= LEAVE_LINGER_LIMIT_MS:
            raise ConfigError(f"leave_linger_ms = {self.leave_linger_ms}: expected from 0 to {LEAVE_LINGER_LIMIT_MS}")
        self._check_addresses()

    def _check_addresses(self) -> None:
        for name, address in (("bind", self.bind), ("advertise", self.advertise), ("broadcast", self.broadcast)):
            if address is None:
                continue
            if name != "bind" and address.port == 0:
                raise ConfigError(f"{name} = {endpoint(address)}: expected the port that others can reach, not 0")
            if numeric(address.host) != address.host:
                raise ConfigError(f"{name} = {endpoint(address)}: expected a numeric address in its usual spelling")
            if name == "advertise":
                try:
                    dialed(address)
                except ValueError as error:
                    raise ConfigError(f"advertise: {error}") from error
            if not self.allow_wan and not may_gossip(address.host):
                raise ConfigError(
                    f"{name} = {endpoint(address)} is not a private address, and gossip over the internet shows which "
                    "nodes belong together: use an address of the LAN, or set allow_wan"
                )
        if self.advertise is None and self.bind.host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
            raise ConfigError(
                f"bind = {endpoint(self.bind)} listens on every interface: set advertise to the address that peers can"
                " reach"
            )
        seed_texts(self.seeds, allow_wan=self.allow_wan)


def seed_texts(seeds: Sequence[object], *, allow_wan: bool) -> tuple[str, ...]:
    """Return seeds as 'host:port', from texts or `Address`es; raise ConfigError for invalid or forbidden ones."""
    if len(seeds) > SEEDS_LIMIT:
        raise ConfigError(f"{len(seeds)} seeds: the limit is {SEEDS_LIMIT}, and a handful is enough")
    texts = []
    for seed in seeds:
        text = endpoint(seed) if isinstance(seed, Address) and is_address(seed) else seed
        if not isinstance(text, str):
            raise ConfigError(f"seeds: {seed!r:.60}: expected 'HOST:PORT', as in '192.168.1.4:7946', or an Address")
        try:
            host = dialed(Address(*parse_endpoint(text))).host
        except ValueError as error:
            raise ConfigError(f"seeds: {error}") from error
        if not allow_wan and numeric(host) is not None and not may_gossip(host):
            raise ConfigError(f"seeds: {text} is not a private address: use one of the LAN, or set allow_wan")
        texts.append(text)
    return tuple(texts)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_address(value: object) -> bool:
    """Return True if this is an `Address` whose host is a text and whose port is within its range."""
    if not isinstance(value, Address):
        return False
    host, port = _parts(value)
    return isinstance(host, str) and _is_number(port) and 0 <= port <= PORT_LIMIT


def _parts(address: Address) -> tuple[Any, Any]:
    """Return host and port, possibly of wrong types, since `Address` does not check them."""
    return address.host, address.port


def _is_seeds(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)


def _of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


_Kind = tuple[Callable[[object], bool], str]
_KIND_OF_TYPE: Final[Mapping[Any, _Kind]] = {
    Address: (is_address, f"an Address of a host (text) and a port from 0 to {PORT_LIMIT}"),
    Callable: (callable, "a function"),
    Clocks: (_of(Clocks), "Clocks"),
    Keyring: (_of(Keyring), f"the group's key of {KEY_BYTES} bytes, or a Keyring"),
    Path: (_of(Path), "a pathlib.Path"),
    SwimOptions: (_of(SwimOptions), "SwimOptions"),
    bool: (_of(bool), "True or False"),
    bytes: (_of(bytes), "bytes"),
    int: (_is_number, "a whole number"),
    str: (_of(str), "the name of an interface"),
    tuple: (_is_seeds, "a tuple of texts, as in ('192.168.1.4:7946',)"),
}


def _kind(annotation: Any) -> _Kind:
    """Return the check and the expected text for the type of a setting, ignoring `| None`."""
    types = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    (plain,) = (each for each in types if each is not NoneType)
    return _KIND_OF_TYPE[get_origin(plain) or plain]


_KINDS: Final = {each.name: _kind(each.type) for each in structs.fields(GroupSettings)}
_MAY_BE_NONE: Final = frozenset(each.name for each in structs.fields(GroupSettings) if each.default is None)


def wrong_kinds(settings: Mapping[str, Any]) -> Iterable[str]:
    """Yield name, value and expected kind of each setting of a wrong kind; for a keyring its type, not its value."""
    for name, value in settings.items():
        fits, expected = _KINDS[name]
        if not fits(value) and not (value is None and name in _MAY_BE_NONE):
            given = type(value).__name__ if name == "keyring" else f"{value!r:.60} ({type(value).__name__})"
            yield f"{name} = {given}: expected {expected}"


def keyring_of(key: object) -> Keyring | None:
    """Return the keyring of a key; return a keyring or None unchanged. Raise ValueError or TypeError otherwise."""
    if key is None or isinstance(key, Keyring):
        return key
    if not isinstance(key, bytes):
        raise TypeError(f"key = {type(key).__name__}: expected the group's key of {KEY_BYTES} bytes, or a Keyring")
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"key has {len(key)} bytes: expected {KEY_BYTES} random ones, as os.urandom({KEY_BYTES}) gives"
        )
    return Keyring.of(key)


def unknown_names(names: Iterable[str]) -> list[str]:
    """Return the names that are not settings."""
    return [name for name in names if name not in _KINDS]
