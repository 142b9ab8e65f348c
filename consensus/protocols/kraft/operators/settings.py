"""The settings of a KRaft voter or observer, under Kafka's names.

    controller.properties ──▶ parse_properties ──▶ {name: text} ──▶ voter_settings ──▶ VoterSettings

A Kafka setting without effect here is refused by name. So an operator who copies a file from Kafka sees which lines
would not have an effect. If a default differs from Kafka's, the field documents the difference.

*Times.* Kafka has three times. `fetch.timeout` is for a follower without contact to its leader, `election.timeout` for
a candidate without a majority. `election.backoff.max` bounds a random pause after a lost election.
The core draws all three waits from one range (`core_options`). It begins at the shorter of the two timeouts. It ends at
the longer of the fetch timeout and the sum of election timeout and pause. With the defaults of all three times, the
range is 1,000 to 2,000 ms.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from consensus.core.model import ReplicaKey, endpoint_text
from consensus.core.options import Options
from consensus.protocols.kafka.wire.limits import MAX_EPOCH, uuid_text
from consensus.protocols.kafka.wire.messages_admin import AddRaftVoterRequestListener

VOTERS: Final = "controller.quorum.voters"
BOOTSTRAP_SERVERS: Final = "controller.quorum.bootstrap.servers"
_PORT_LIMIT: Final = 65_536
ID_LIMIT: Final = 2**31
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ADDRESS: Final = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]*)):([0-9]{1,5})")


class SettingsError(ValueError):
    """An invalid setting; the text contains its name and the remedy."""


class NamedVoter(Struct, frozen=True):
    """A voter with the address of its listener, as the settings or a formatted directory name it.

    As text, it is `id@host:port:directory`, as with Kafka's `--initial-controllers`. `controller.quorum.voters` does
    not name directories.
    """

    key: ReplicaKey
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.key.id}@{endpoint_text(self.host, self.port)}:{uuid_text(self.key.directory)}"


class Endpoint(Struct, frozen=True):
    """A listener in `listeners`, or its address for the other servers."""

    name: str
    host: str
    port: int


class VoterSettings(Struct, frozen=True):
    """One server. With `voters` the voters are fixed (kraft.version 0), else the log names them (kraft.version 1)."""

    node_id: int
    log_dir: Path
    voters: tuple[NamedVoter, ...] = ()
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    listeners: tuple[Endpoint, ...] = (Endpoint("CONTROLLER", "127.0.0.1", 9093),)
    """By default loopback. Kafka's default is every address."""
    advertised_listeners: tuple[Endpoint, ...] = ()
    listener_names: str = ""
    """The name of the listener, if set. Kafka's files have this setting."""
    election_timeout_ms: int = 1_000
    fetch_timeout_ms: int = 2_000
    election_backoff_max_ms: int = 1_000
    append_linger_ms: int = 25
    request_timeout_ms: int = 2_000
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1_000
    auto_join: bool = False
    snapshot_bytes: int = 20 * 1024 * 1024
    snapshot_interval_ms: int = 3_600_000
    retention_bytes: int = 100 * 1024 * 1024

    @property
    def is_dynamic(self) -> bool:
        """Return True if the voters are in the log (KIP-853)."""
        return not self.voters

    @property
    def advertised(self) -> tuple[Endpoint, ...]:
        """Return the announced address of each listener, in order; the first is the quorum's."""
        announced = {endpoint.name: endpoint for endpoint in self.advertised_listeners}
        return tuple(announced.get(endpoint.name, endpoint) for endpoint in self.listeners)


def parse_properties(text: str, place: str = "line") -> dict[str, str]:
    """Parse a properties file: `name=value`, comments by # or !. Raises `SettingsError`.

    Errors name the `place` before the number of a line.
    """
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, separator, value = stripped.partition("=")
        if not separator or not name.strip():
            raise SettingsError(f"{place} {number} is not a setting: write it as name=value")
        if name.strip() in settings:
            raise SettingsError(f"{place} {number} sets {name.strip()} again: keep only one of the two")
        settings[name.strip()] = value.strip()
    return settings


def voter_settings(settings: Mapping[str, str]) -> VoterSettings:
    """Return the settings of one server; raises `SettingsError`."""
    unknown = sorted(settings.keys() - _READERS.keys())
    if unknown:
        them = f"{unknown[0]} is not a setting of this server: remove it"
        if len(unknown) > 1:
            them = f"{', '.join(unknown)} are not settings of this server: remove them"
        raise SettingsError(f"{them}. The settings are {', '.join(_READERS)}")
    for name in ("node.id", "log.dirs"):
        if not settings.get(name):
            raise SettingsError(f"{name} is missing: add it to the settings")
    values: dict[str, Any] = {}
    for name, text in settings.items():
        field, read = _READERS[name]
        values[field] = read(name, text)
    if values.pop("roles", "controller") != "controller":
        raise SettingsError("process.roles can be controller only: this server is not a broker")
    return check_settings(VoterSettings(**values))


def check_settings(settings: VoterSettings) -> VoterSettings:
    """Return the settings if they are consistent; raises `SettingsError`."""
    if bool(settings.voters) == bool(settings.bootstrap_servers):
        raise SettingsError(
            f"give either {VOTERS}, for voters that never change, or {BOOTSTRAP_SERVERS}, for voters that the log names"
        )
    if len({voter.key.id for voter in settings.voters}) != len(settings.voters):
        raise SettingsError(f"{VOTERS} names a node.id twice: give each voter a separate id")
    for voter in settings.voters:
        if voter.key.id != settings.node_id:  # The own address is often 0.0.0.0: the server does not connect to it.
            _check_dialed(VOTERS, voter.host, voter.port)
    _check_listeners(settings)
    for field in structs.fields(settings):
        value = getattr(settings, field.name)
        least = 0 if field.name in ("append_linger_ms", "node_id") else 1
        if field.type is int and value < least:
            raise SettingsError(f"{_name_of(field.name)} is {value}: the minimum is {least}")
    if settings.node_id >= ID_LIMIT:
        raise SettingsError(f"node.id is {settings.node_id}: the maximum is {ID_LIMIT - 1}")
    if settings.election_timeout_ms < _SHORTEST_TIMEOUT_MS or settings.fetch_timeout_ms < _SHORTEST_TIMEOUT_MS:
        raise SettingsError(
            f"{_name_of('election_timeout_ms')} and {_name_of('fetch_timeout_ms')} are at least "
            f"{_SHORTEST_TIMEOUT_MS}: a shorter one replaces leaders that are only slow"
        )
    return settings


def _name_of(field: str) -> str:
    """Return Kafka's name of a field of `VoterSettings`."""
    return next(name for name, (known, _) in _READERS.items() if known == field)


def _check_listeners(settings: VoterSettings) -> None:
    if not settings.listeners:
        raise SettingsError("listeners is empty: name one, such as CONTROLLER://127.0.0.1:9093")
    if len(settings.listeners) > 1:
        raise SettingsError("listeners names several: this server has one, for the quorum, its tools and its clients")
    name = settings.listeners[0].name
    for endpoint in settings.advertised_listeners:
        if endpoint.name != name:
            raise SettingsError(f"advertised.listeners has {endpoint.name}, which is not among listeners: add it there")
    if settings.listener_names not in ("", name):
        raise SettingsError(f"controller.listener.names is {settings.listener_names}, but the listener is {name}")
    own = settings.advertised[0]
    if not own.host or (settings.is_dynamic and not is_of_one_server(own.host, own.port)):
        raise SettingsError(
            f"other servers could not find this one at {endpoint_text(own.host, own.port)}: put its host and port into"
            " listeners or advertised.listeners"
        )


def core_options(settings: VoterSettings) -> Options:
    """Return the core's times and sizes. Any batch of Kafka fits one reply, so that no batch is split."""
    shortest_ms = min(settings.election_timeout_ms, settings.fetch_timeout_ms)
    longest_ms = max(settings.fetch_timeout_ms, settings.election_timeout_ms + settings.election_backoff_max_ms)
    return Options(
        election_timeout_min_ms=shortest_ms,
        election_timeout_max_ms=longest_ms,
        heartbeat_ms=max(1, min(250, shortest_ms // 5)),
        retry_ms=max(1, shortest_ms * 2 // 5),
        commit_notice_ms=5,
        max_entries_per_append=BATCH_RECORDS,
        max_bytes_per_append=FETCH_BYTES,
        tail_entries=32_768,
        tail_bytes=18 * 1024 * 1024,
        max_term=MAX_EPOCH,
    )


_SHORTEST_TIMEOUT_MS: Final = 50
BATCH_RECORDS: Final = 16_384
BATCH_BYTES: Final = 8 * 1024 * 1024
"""Size limit of a batch as entries: the room in one reply to a Fetch, also from Kafka's controllers."""
FETCH_BYTES: Final = 9 * 1024 * 1024
"""Size limit of one fetch."""


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingsError(f"{name} is {text!r}: put a whole number there") from None


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise SettingsError(f"{name} is {text!r}: put true or false there")
    return text == "true"


def _path(name: str, text: str) -> Path:
    if "," in text:
        raise SettingsError(f"{name} names several directories: this server has one log, so name one")
    return Path(text)


def _text(_name: str, text: str) -> str:
    return text


def address(name: str, text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[IPv6]:port`; raises `SettingsError` that names the setting."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found[3]) >= _PORT_LIMIT:
        raise SettingsError(f"{name} has {text!r}: write each address as host:port, with a port below {_PORT_LIMIT}")
    return found[1] or found[2] or "", int(found[3])


def dialed_address(name: str, text: str) -> tuple[str, int]:
    """Return host and port of another server; raises `SettingsError` also for an address that leads to none."""
    found = address(name, text)
    _check_dialed(name, *found)
    return found


def _check_dialed(name: str, host: str, port: int) -> None:
    if not is_of_one_server(host, port):
        raise SettingsError(
            f"{name} has {endpoint_text(host, port)!r}, which is not the address of one server: put a host and a port"
            " there"
        )


def is_of_one_server(host: str, port: int) -> bool:
    """Return True unless this is a wildcard, a multicast address, or port 0."""
    try:
        ip = ip_address(host)
    except ValueError:
        return bool(host and port)
    return bool(port) and not (ip.is_unspecified or ip.is_multicast)


def wire_listeners(listeners: Iterable[Endpoint]) -> tuple[AddRaftVoterRequestListener, ...]:
    """Return listeners as AddRaftVoter and UpdateRaftVoter name them."""
    return tuple(AddRaftVoterRequestListener(name=each.name, host=each.host, port=each.port) for each in listeners)


def static_voters(name: str, text: str) -> tuple[NamedVoter, ...]:
    """Parse `id@host:port,…`; raises `SettingsError`."""
    voters = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        node_id, at, where = part.partition("@")
        if not at or not node_id.isdecimal() or int(node_id) >= ID_LIMIT:
            raise SettingsError(
                f"{name} has {part!r}: write each voter as id@host:port; the maximum id is {ID_LIMIT - 1}"
            )
        voters.append(NamedVoter(ReplicaKey(int(node_id)), *address(name, where)))
    return tuple(voters)


def _addresses(name: str, text: str) -> tuple[tuple[str, int], ...]:
    return tuple(dialed_address(name, part) for part in text.split(",") if part.strip())


def endpoints(name: str, text: str) -> tuple[Endpoint, ...]:
    """Parse `NAME://host:port,…`; raises `SettingsError` that names the setting."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        listener, separator, where = part.partition("://")
        if not separator or not _NAME.fullmatch(listener):
            raise SettingsError(f"{name} has {part!r}: write each listener as NAME://host:port")
        found.append(Endpoint(listener, *address(name, where)))
    return tuple(found)


_READERS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "node.id": ("node_id", _integer),
    "process.roles": ("roles", _text),
    "log.dirs": ("log_dir", _path),
    VOTERS: ("voters", static_voters),
    BOOTSTRAP_SERVERS: ("bootstrap_servers", _addresses),
    "listeners": ("listeners", endpoints),
    "advertised.listeners": ("advertised_listeners", endpoints),
    "controller.listener.names": ("listener_names", _text),
    "controller.quorum.election.timeout.ms": ("election_timeout_ms", _integer),
    "controller.quorum.fetch.timeout.ms": ("fetch_timeout_ms", _integer),
    "controller.quorum.election.backoff.max.ms": ("election_backoff_max_ms", _integer),
    "controller.quorum.append.linger.ms": ("append_linger_ms", _integer),
    "controller.quorum.request.timeout.ms": ("request_timeout_ms", _integer),
    "controller.quorum.retry.backoff.ms": ("retry_backoff_ms", _integer),
    "controller.quorum.retry.backoff.max.ms": ("retry_backoff_max_ms", _integer),
    "controller.quorum.auto.join.enable": ("auto_join", _flag),
    "metadata.log.max.record.bytes.between.snapshots": ("snapshot_bytes", _integer),
    "metadata.log.max.snapshot.interval.ms": ("snapshot_interval_ms", _integer),
    "metadata.max.retention.bytes": ("retention_bytes", _integer),
}
"""Field and parser of each setting."""
