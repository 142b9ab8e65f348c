"""What one node is told at its start: a TOML file, or only the farm's key on the command line.

    name = "router-1"           what operators call this node; default: the host's name
    farm_key = "farm.key"       the one setting without a default
    state_dir = "state"         identity, log, control socket; default: ~/.local/state/garlicfarm
    demo = false                the keys are a demonstration's: nothing leaves this machine

    transport = "tls"           or "i2p", which has no [gossip] but a [proxy]: `transport_settings`

    [gossip]      bind, advertise, seeds, capacity, broadcast ("auto", "off", or address), allow_wan, timing
    [consensus]   bind, advertise, timing, segment_bytes, voters_max, grace_ms, admit
    [publishing]  publish, signing_key, pace, reporting_period_ms
    [[master]]    signing_key or destination, publish: in place of the first two, for several masters
    [router]      kind ("file", "i2cp"), and what that kind needs (`bridge.node.settings.router`)
    [[leaf]]      destination, probe, master
    [control]     listen, names, certificate, open_health, page: the control endpoint over TCP; off unless named
    [log]         format ("text", "json"), level: what the node writes to stderr
    [zmq]         listen: an endpoint for ØMQ Raft clients (`bridge.node.settings.zmq`); off unless it is named
    [kafka]       listen: a listener for Kafka's clients (`bridge.node.settings.kafka`); off unless it is named

On a LAN no address is needed: the node binds to the machine's private address on the default ports and finds the
others by broadcast (`bridge.node.settings.machine` chooses). If it cannot choose, the text names the setting that
decides. Gossip stays in private networks unless `allow_wan` (`gossip/node/endpoints.py` says why).

Unknown keys are refused, not ignored: a misspelt setting that silently keeps its default is found at the worst time.
"""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from bridge.core.log.records import NAME
from bridge.core.membership.reconcile import GRACE_DEFAULT_MS, VOTERS_MAX_DEFAULT
from bridge.core.state.farm_state import MASTERS_MAX
from bridge.node.router.router import Leaf, RouterError, leaf_from_settings
from bridge.node.settings.choices import (
    Admit,
    GossipTiming,
    LogFormat,
    LogLevel,
    Pace,
    RouterKind,
    Timing,
    TransportKind,
)
from bridge.node.settings.control import ControlSettings, control_settings
from bridge.node.settings.kafka import KafkaSettings, kafka_settings
from bridge.node.settings.machine import (
    ChosenAddress,
    Machine,
    NoAddressError,
    broadcast_host_of,
    choose_address,
)
from bridge.node.settings.masters import MasterSettings, read_leaf_master, read_masters
from bridge.node.settings.reader import Section
from bridge.node.settings.router import RouterSettings, router_settings
from bridge.node.settings.table import (
    CONSENSUS_PORT,
    GOSSIP_PORT,
    REPORTING_PERIOD_DEFAULT_MS,
    REPORTING_PERIOD_I2P_MS,
    SEGMENT_DEFAULT_BYTES,
)
from bridge.node.settings.transport import TransportSettings, advertised, i2p_bind, transport_settings
from bridge.node.settings.zmq import ZmqSettings, zmq_settings
from gossip import Address
from gossip.node import DEFAULT_CAPACITY, endpoint, may_gossip, numeric, parse_endpoint

LEAVES_LIMIT = 16
FILE_LIMIT_BYTES = 1024 * 1024
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 -- compared, not bound
_NAME = re.compile(NAME)
_NODE_ID = re.compile("[0-9a-f]{16}")


class ConfigurationError(ValueError):
    """A configuration that cannot be used: each line of the text is one thing that is wrong and where."""

    def __init__(self, text: str, waits_for: tuple[str, ...] = ()) -> None:
        """`waits_for`: interfaces of this machine without which no address can be chosen yet."""
        super().__init__(text)
        self.waits_for = waits_for


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipSettings:
    """`broadcast` is where presence is announced; None announces nothing."""

    bind: Address
    chosen: ChosenAddress | None = field(default=None, compare=False)
    """Why `bind` has this host; None if the operator has named it."""
    advertise: Address | None = None
    seeds: tuple[str, ...] = ()
    capacity: int = DEFAULT_CAPACITY
    broadcast: Address | None = None
    interface: str | None = None
    """Of the broadcast address, where its address alone does not name the network (IPv6)."""
    allow_wan: bool = False
    timing: Timing = Timing.LAN


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusSettings:
    """Other servers connect to `advertise`; `bridge.core.membership.reconcile` explains the last three."""

    bind: Address
    advertise: Address
    timing: Timing = Timing.LAN
    segment_bytes: int = SEGMENT_DEFAULT_BYTES
    voters_max: int = VOTERS_MAX_DEFAULT
    grace_ms: int = GRACE_DEFAULT_MS
    admit: Admit = Admit.ASK
    derived: frozenset[str] = field(default=frozenset(), compare=False)
    """The settings among `consensus.bind` and `consensus.advertise` that follow from another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingSettings:
    """What counts for all masters of the node."""

    pace: Pace = Pace.NORMAL
    reporting_period_ms: int = REPORTING_PERIOD_DEFAULT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The node's own log on stderr."""

    format: LogFormat = LogFormat.TEXT
    level: LogLevel = LogLevel.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfiguration:
    """Everything that one node is told, complete: no default is left to be found later."""

    name: str
    state_dir: Path
    farm_key: Path
    gossip: GossipSettings | None
    """None with the transport `i2p`."""
    consensus: ConsensusSettings
    publishing: PublishingSettings
    router: RouterSettings
    masters: tuple[MasterSettings, ...] = ()
    """Without one that has a signing key a node reports and votes and never publishes."""
    leaves: tuple[Leaf, ...] = ()
    founders: frozenset[bytes] = frozenset()
    """Node ids of the only nodes that may found the farm; empty: as the farm key file has it."""
    demo: bool = False
    transport: TransportSettings = field(default_factory=TransportSettings)
    control: ControlSettings | None = None
    """Where the control endpoint is open to other machines; nowhere by default."""
    log: LogSettings = field(default_factory=LogSettings)
    zmq: ZmqSettings | None = None
    """None: no endpoint for ØMQ Raft clients."""
    kafka: KafkaSettings | None = None
    """None: no listener for Kafka's clients."""
    is_named_by_host: bool = False
    """No name was given: it is the host's, and another node may have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What the command line says; it wins over the file."""

    farm_key: Path | None = None
    state_dir: Path | None = None
    name: str | None = None
    bind: str | None = None
    """Where gossip listens."""
    log_format: LogFormat | None = None
    log_level: LogLevel | None = None


def load_configuration(
    path: Path | None = None, overrides: Overrides | None = None, machine: Machine | None = None
) -> NodeConfiguration:
    """The node's configuration; `ConfigurationError` names everything that is wrong with it."""
    table = {} if path is None else _read(path)
    directory = Path.cwd() if path is None else path.absolute().parent
    problems: list[str] = []
    root = Section(table, "", problems, directory)
    machine = machine or Machine()
    try:
        chosen: ChosenAddress | NoAddressError = choose_address(machine.network)
    except NoAddressError as error:
        chosen = error
    configuration = _configuration(root, overrides or Overrides(), machine, chosen)
    root.finish()
    if problems or configuration is None:
        where = "configuration" if path is None else str(path)
        # Waiting helps only if nothing else is wrong.
        only_address = len(problems) == 1 and problems[0].startswith(f"gossip.bind: {chosen}")
        waits_for = chosen.waits_for if only_address else ()
        raise ConfigurationError("\n".join(f"{where}: {problem}" for problem in problems), waits_for)
    return configuration


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
        if len(content) > FILE_LIMIT_BYTES:
            raise ConfigurationError(f"{path}: larger than {FILE_LIMIT_BYTES} bytes; is it the right file?")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}; give another with --config") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not TOML, nor any text in UTF-8; is it the right file?") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not TOML: {error}") from error


def _configuration(
    root: Section, overrides: Overrides, machine: Machine, chosen: ChosenAddress | NoAddressError
) -> NodeConfiguration | None:
    named = _name(root, overrides)
    name = named or re.sub(r"[^A-Za-z0-9._-]+", "-", machine.hostname).strip("._-")[:32] or "router"
    state_dir_told = root.path("state_dir")
    state_dir = overrides.state_dir or state_dir_told or machine.state_dir
    farm_key = _farm_key(root, overrides)
    founders = _founders(root)
    demo = root.flag("demo")
    kind = root.choice("transport", TransportKind)
    consensus_section, proxy = root.section("consensus"), root.section("proxy")
    transport = transport_settings(kind, consensus_section, proxy)
    gossip_section = root.section("gossip")
    if kind is TransportKind.I2P:
        gossip = None
        if not gossip_section.is_empty:
            root.problem("gossip", 'with transport = "i2p" there is no gossip: give consensus.seeds instead')
    else:
        gossip = _gossip(gossip_section, machine, chosen, overrides.bind)
    consensus = _consensus(consensus_section, gossip, transport)
    publishing_section = root.section("publishing")
    masters = read_masters(root.sections("master", MASTERS_MAX), publishing_section)
    publishing = _publishing(publishing_section, kind)
    router = router_settings(root.section("router"), state_dir, demo=demo)
    if router.kind is RouterKind.I2CP and publishing.pace is Pace.REPORTING_PERIOD:
        publishing_section.problem("pace", '"reporting-period" is for files: a router takes one structure a minute')
    leaves = tuple(leaf for each in root.sections("leaf", LEAVES_LIMIT) if (leaf := _leaf(each)) is not None)
    control = control_settings(root.section("control"))
    log = _log(root.section("log"), overrides)
    zmq = zmq_settings(root.section("zmq"))
    kafka = kafka_settings(root.section("kafka"))
    if farm_key is None or consensus is None:
        return None
    return NodeConfiguration(
        name=name,
        state_dir=state_dir.absolute(),
        farm_key=farm_key.absolute(),
        gossip=gossip,
        consensus=consensus,
        publishing=publishing,
        router=router,
        masters=masters,
        leaves=leaves,
        founders=founders,
        demo=demo,
        transport=transport,
        control=control,
        log=log,
        zmq=zmq,
        kafka=kafka,
        is_named_by_host=named is None,
    )


def _log(section: Section, overrides: Overrides) -> LogSettings:
    told = LogSettings(format=section.choice("format", LogFormat), level=section.choice("level", LogLevel))
    section.finish()
    return LogSettings(format=overrides.log_format or told.format, level=overrides.log_level or told.level)


def _name(root: Section, overrides: Overrides) -> str | None:
    """What an operator calls the node; None where the host's name serves."""
    name_told = root.text("name")
    told = overrides.name or name_told
    if told is None:
        return None
    if _NAME.fullmatch(told) is None:
        root.problem("name", f"{told[:40]!r}: 1 to 32 of letters, digits, '.', '_', '-', and no mark first")
    return told


def _founders(root: Section) -> frozenset[bytes]:
    told = root.texts("founders")
    wrong = [each for each in told if _NODE_ID.fullmatch(each) is None]
    if wrong:
        root.problem("founders", f"{wrong[0][:40]!r} is not a node id: 16 hexadecimal digits, as `status` shows it")
        return frozenset()
    return frozenset(bytes.fromhex(each) for each in told)


def _farm_key(root: Section, overrides: Overrides) -> Path | None:
    told = root.path("farm_key")
    if overrides.farm_key is None and told is None:
        root.problem(
            "farm_key",
            "missing: name the farm's key file; make one with `garlicfarm keys new-farm --expect N`, copy it to each "
            "node of the farm, and give it with --farm-key FILE",
        )
    return overrides.farm_key or told


def _gossip(
    section: Section, machine: Machine, chosen: ChosenAddress | NoAddressError, bind_given: str | None
) -> GossipSettings | None:
    allow_wan = section.flag("allow_wan")
    advertise = section.address("advertise")
    told = bind_given or section.text("bind")
    bind = _default_bind(section, chosen) if told is None else section.address("bind", bind_given)
    broadcast_told = section.text("broadcast") or "auto"
    seeds = section.texts("seeds")
    capacity = section.integer("capacity")
    timing = Timing(section.choice("timing", GossipTiming).value)
    section.finish()
    if bind is None:
        return None
    if bind.host in WILDCARDS and advertise is None:
        section.problem("bind", f"{endpoint(bind)} listens everywhere: set gossip.advertise to what peers can reach")
    local = advertise if bind.host in WILDCARDS else bind
    broadcast, interface = _broadcast(section, broadcast_told, local, bind.port, machine)
    _check_private(section, {"bind": bind, "advertise": advertise, "broadcast": broadcast}, seeds, allow_wan=allow_wan)
    return GossipSettings(
        bind=bind,
        chosen=chosen if told is None and isinstance(chosen, ChosenAddress) else None,
        advertise=advertise,
        seeds=seeds,
        capacity=capacity,
        broadcast=broadcast,
        interface=interface,
        allow_wan=allow_wan,
        timing=timing,
    )


def _default_bind(section: Section, chosen: ChosenAddress | NoAddressError) -> Address | None:
    if isinstance(chosen, ChosenAddress):
        return Address(chosen.host, GOSSIP_PORT)
    example = endpoint(Address(chosen.example, GOSSIP_PORT))
    how = f'for instance bind = "{example}"'
    if chosen.needs_wan:
        section.problem("bind", f"{chosen}, {how} with allow_wan = true in [gossip], which shows it to the internet")
    else:
        section.problem("bind", f"{chosen}, {how} in its file, or --bind {example}")
    return None


def _broadcast(
    section: Section, told: str, local: Address | None, port: int, machine: Machine
) -> tuple[Address | None, str | None]:
    """Where to announce presence, and the interface for it if the address alone does not name one."""
    if told == "off" or local is None:
        return None, None
    if told != "auto":
        return section.address("broadcast"), None
    found = next(
        (each for each in machine.network.interfaces() if each.host == local.host and broadcast_host_of(each)),
        None,
    )
    if found is None:
        return None, None
    return Address(found.broadcast_host, port), found.name if ":" in found.broadcast_host else None


def _check_private(
    section: Section, addresses: dict[str, Address | None], seeds: tuple[str, ...], *, allow_wan: bool
) -> None:
    for key, address in addresses.items():
        if address is not None and address.host not in WILDCARDS and not allow_wan and not may_gossip(address.host):
            section.problem(
                key,
                f"{endpoint(address)} is not a private address, and gossip over the internet shows which routers "
                "belong together: use an address of the LAN, or set allow_wan = true",
            )
    for seed in seeds:
        try:
            host, _ = parse_endpoint(seed)
        except ValueError as error:
            section.problem("seeds", str(error))
            continue
        if not allow_wan and numeric(host) is not None and not may_gossip(host):
            section.problem("seeds", f"{seed} is not a private address: use one of the LAN, or set allow_wan = true")


_NEVER_PLAIN = (
    "a farm believes proven identities only, and a plain connection proves none: who sends from its address would be "
    "believed. Servers of another make are fed by a program of their own; see "
    "`garlicfarm help garlic-farm 'Servers of another make'`"
)


def _consensus(
    section: Section, gossip: GossipSettings | None, transport: TransportSettings
) -> ConsensusSettings | None:
    by_i2p = transport.kind is TransportKind.I2P
    told = i2p_bind(section, CONSENSUS_PORT) if by_i2p else section.address("bind")
    advertise = advertised(section, transport)
    timing = section.choice("timing", Timing, Timing.I2P if by_i2p else None)
    segment_bytes = section.integer("segment_bytes")
    voters_max = section.integer("voters_max")
    grace_ms = section.integer("grace_ms")
    admit = section.choice("admit", Admit)
    section.refused("plain", _NEVER_PLAIN)
    section.finish()
    if voters_max % 2 == 0:
        section.problem("voters_max", f"{voters_max} is even: of {voters_max} voters no more may fail than of one less")
    derived = {name for name, each in (("consensus.bind", told), ("consensus.advertise", advertise)) if each is None}
    bind = told or (None if gossip is None else Address(gossip.bind.host, CONSENSUS_PORT))
    if bind is None:
        return None
    if bind.host in WILDCARDS and advertise is None:
        if gossip is not None and gossip.advertise is not None:
            advertise = Address(gossip.advertise.host, bind.port)
        elif told is not None:
            section.problem("bind", f"{endpoint(bind)} listens everywhere: set consensus.advertise as well")
    return ConsensusSettings(
        bind=bind,
        advertise=advertise or bind,
        timing=timing,
        segment_bytes=segment_bytes,
        voters_max=voters_max,
        grace_ms=grace_ms,
        admit=admit,
        derived=frozenset(derived),
    )


def _publishing(section: Section, kind: TransportKind) -> PublishingSettings:
    period_ms = REPORTING_PERIOD_I2P_MS if kind is TransportKind.I2P else None
    settings = PublishingSettings(
        pace=section.choice("pace", Pace),
        reporting_period_ms=section.integer("reporting_period_ms", period_ms),
    )
    section.finish()
    return settings


def _leaf(section: Section) -> Leaf | None:
    destination, probe, master = section.text("destination"), section.text("probe"), read_leaf_master(section)
    section.finish()
    if destination is None:
        section.problem("destination", "missing: the base64 of the destination of one of your router's server tunnels")
        return None
    try:
        return leaf_from_settings(destination, probe, master)
    except RouterError as error:
        section.problem("destination", str(error))
        return None


def reported_settings(configuration: NodeConfiguration) -> dict[str, object]:
    """What a node reports of its settings to the farm (`config` of its entries): an allow-list.

    What is not named here is never reported, so a setting that comes later is a secret until a developer decides
    otherwise. Paths, addresses and names of keys are not in it: the log is read by every member, and kept.
    """
    consensus, publishing = configuration.consensus, configuration.publishing
    found: dict[str, object] = {
        "transport": configuration.transport.kind.value,
        "timing": consensus.timing.value,
        "votersMax": consensus.voters_max,
        "grace": consensus.grace_ms,
        "admit": consensus.admit.value,
        "reportingPeriod": publishing.reporting_period_ms,
        "pace": publishing.pace.value,
        "routerKind": configuration.router.kind.value,
        "masters": len(configuration.masters),
        "leaves": len(configuration.leaves),
        "demo": configuration.demo,
    }
    if configuration.gossip is not None:
        found["gossipCapacity"] = configuration.gossip.capacity
    return found
