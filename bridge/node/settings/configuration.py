"""The configuration of a node: a TOML file, or only the farm's key on the command line.

    name = "node-1"           at the top of the file: the fields of `NodeConfiguration`
    [gossip]                    a table for each field with a class of settings, such as `GossipSettings`
    [[master]]                  a list of tables for each field with `Tables`

Each class declares its settings (`bridge.node.settings.declared`), and `garlicfarm help settings` lists them. A value
of the command line replaces the value of the file before the settings are checked.

Unknown keys are refused, not ignored: otherwise a misspelled setting would keep its default unnoticed.
"""

import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from bridge.core.formation.founding import EXPECT_MAX
from bridge.core.log.fields import NAME, NAME_FORM
from bridge.core.state.farm_state import MASTERS_MAX
from bridge.node.settings.choices import LogFormat, LogLevel, PublishingPace, RouterKind, TransportKind
from bridge.node.settings.clients import KafkaSettings, ZmqSettings, read_kafka, read_zmq
from bridge.node.settings.declared import Declared, Setting, Tables, declared_in, written
from bridge.node.settings.machine import ChosenAddress, Machine, NoAddressError, choose_address
from bridge.node.settings.masters import (
    REPORTING_PERIOD_I2P_MS,
    LeafSettings,
    MasterSettings,
    PublishingSettings,
    read_masters,
)
from bridge.node.settings.named_files import file_problem
from bridge.node.settings.network import (
    ConsensusSettings,
    GossipSettings,
    ProxySettings,
    read_consensus,
    read_gossip,
    read_proxy,
)
from bridge.node.settings.reader import Section
from bridge.node.settings.router import RouterSettings, read_router
from gossip import Address

MASTERS: Final = Tables("master", MASTERS_MAX)
LEAVES: Final = Tables("leaf", 16)
LISTS: Final = frozenset({MASTERS.key, LEAVES.key})
"""The tables that a file may have several times."""
FILE_LIMIT_BYTES: Final = 1024 * 1024


class ConfigurationError(ValueError):
    """An unusable configuration; each line of the text is one problem and its place."""

    def __init__(self, text: str, waits_for: tuple[str, ...] = ()) -> None:
        """Set the text. `waits_for` are interfaces that may still get the address of this node."""
        super().__init__(text)
        self.waits_for = waits_for


def _name(text: str) -> str:
    if re.fullmatch(NAME, text) is None:
        raise ValueError(f"{text[:40]!r}: {NAME_FORM}")
    return text


def _node_id(text: str) -> bytes:
    if re.fullmatch("[0-9a-f]{16}", text) is None:
        raise ValueError(f"{text[:40]!r} is not a node id: 16 hexadecimal digits, as `status` shows it")
    return bytes.fromhex(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """`[control]`: a control endpoint on TCP, with TLS and tokens.

    A client without a token receives only the node's health (with `open_health`) and a page without data (with `page`).
    """

    listen: Annotated[
        Address,
        Setting(
            "the address of the control endpoint for other machines, with TLS and tokens",
            default="nowhere",
            missing='missing: the other settings of [control] need it, such as "192.168.7.5:7650"',
            example="192.168.1.10:7670",
        ),
    ]
    names: Annotated[
        tuple[str, ...], Setting("more host names and addresses for the endpoint's certificate", maximum=32)
    ] = ()
    certificate: Annotated[
        Path | None, Setting("a certificate of an authority with its key (PEM, mode 0600), for the endpoint")
    ] = None
    """The certificate; None lets the node make its own."""
    open_health: Annotated[bool, Setting("serves `/healthz` and `/readyz` on TCP without a token")] = False
    page: Annotated[
        bool, Setting("a read-only page for browsers at `/`; it needs a token before it shows the farm")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """`[log]`: the node's own log on stderr."""

    format: Annotated[
        LogFormat,
        Setting(
            'the format of the log on stderr: `"text"` for people, `"json"` an object on each line; see'
            " [monitor](../how-to/monitor.md#logs)"
        ),
    ] = LogFormat.TEXT
    level: Annotated[
        LogLevel,
        Setting(
            '`"info"`: every event; `"warning"`: alarms, failures and bad verdicts; `"error"`: faults of'
            " the program, and the reason why the node ended"
        ),
    ] = LogLevel.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfiguration:
    """All settings of a node, complete with all defaults."""

    name: Annotated[
        str,
        Setting(
            "the name of this node: 1 to 32 letters, digits, `.`, `_`, `-`",
            default="the host's name; `HOST-ABCD` if another node of the farm has that name",
            example="node-1",
            parse=_name,
        ),
    ]
    is_named_by_host: bool = False
    """True if `name` is the host's name, because none was set; another node may have the same name."""
    state_dir: Annotated[
        Path,
        Setting(
            "identity, certificate, gossip keys, known peers, log and control socket; never copy it to a second node",
            default="`~/.local/state/garlicfarm`",
        ),
    ]
    farm_key: Annotated[
        Path,
        Setting(
            "the farm's key file",
            missing="missing: make it with `garlicfarm init` on the first machine and `garlicfarm join TOKEN` on each"
            " other one; or name the farm's key file with --farm-key FILE (`garlicfarm keys new-farm` makes one)",
        ),
    ]
    founders: Annotated[
        frozenset[bytes],
        Setting(
            "node ids (16 hexadecimal digits each) of the nodes that may create the farm: at least `expect`, and"
            " fewer than twice `expect`. It overrides the list in the key file, and applies until the farm is created",
            maximum=2 * EXPECT_MAX - 1,
            parse=_node_id,
            show=bytes.hex,
        ),
    ] = frozenset()
    demo: Annotated[
        bool,
        Setting(
            "throwaway destinations that no real router accepts; `garlicfarm up` writes it",
            shared=True,
            reported="demo",
        ),
    ] = False
    transport: Annotated[
        TransportKind,
        Setting(
            '`"tls"`: gossip, and TLS between the servers; `"i2p"`: no gossip, I2P names only, by the HTTP proxy of'
            " this machine's router",
            shared=True,
            reported="transport",
        ),
    ] = TransportKind.TLS
    gossip: GossipSettings | None
    """Settings of gossip; None with the transport `i2p`."""
    consensus: ConsensusSettings
    proxy: ProxySettings | None = None
    """Settings of the HTTP proxy; None without the transport `i2p`."""
    publishing: PublishingSettings
    masters: Annotated[tuple[MasterSettings, ...], MASTERS] = ()
    """Without a master that has a signing key, a node reports and votes, but does not publish."""
    router: RouterSettings
    leaves: Annotated[tuple[LeafSettings, ...], LEAVES] = ()
    control: ControlSettings | None = None
    """The TCP endpoint; None means the Unix socket alone."""
    log: LogSettings = field(default_factory=LogSettings)
    zmq: ZmqSettings | None = None
    kafka: KafkaSettings | None = None


SETTINGS: Final[dict[str, Declared]] = {each.path: each for each in declared_in(NodeConfiguration)}
"""Every setting, by its path from the root of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """The settings of the command line, which replace the file's."""

    farm_key: Path | None = None
    state_dir: Path | None = None
    name: str | None = None
    bind: str | None = None
    """The address of gossip."""
    log_format: LogFormat | None = None
    log_level: LogLevel | None = None

    def put_into(self, table: dict[str, object]) -> None:
        """Set the given settings in the table of a file."""
        for path, value in (
            ("farm_key", self.farm_key and str(self.farm_key.absolute())),
            ("state_dir", self.state_dir and str(self.state_dir.absolute())),
            ("name", self.name),
            ("gossip.bind", self.bind),
            ("log.format", self.log_format and self.log_format.value),
            ("log.level", self.log_level and self.log_level.value),
        ):
            section, _, key = path.rpartition(".")
            if value is not None:
                into = table.setdefault(section, {}) if section else table
                if isinstance(into, dict):
                    into[key] = value


def load_configuration(
    path: Path | None = None,
    overrides: Overrides | None = None,
    machine: Machine | None = None,
    *,
    try_files: bool = False,
) -> NodeConfiguration:
    """Return the node's configuration; raise ConfigurationError with every problem.

    With `try_files`, problems of the files that settings name are included. If such a problem is the only one, the part
    of the node that reads the file reports it, because its error contains the remedy.
    """
    table = {} if path is None else _read(path)
    (overrides or Overrides()).put_into(table)
    directory = Path.cwd() if path is None else path.absolute().parent
    problems: list[str] = []
    machine = machine or Machine()
    try:
        chosen: ChosenAddress | NoAddressError = choose_address(machine.network)
    except NoAddressError as error:
        chosen = error
    files: list[tuple[str, Path]] = []
    configuration = _configuration(Section(table, "", problems, directory, files), machine, chosen)
    if try_files:
        faults = [f"{key}: {fault}" for key, each in files if (fault := file_problem(key, each)) is not None]
        problems += faults if problems or len(faults) > 1 else []
    if problems:
        where = "configuration" if path is None else str(path)
        # The caller waits for an address only if this is the only problem: waiting does not solve others.
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
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror or error}; give another with --config"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not TOML, nor any text in UTF-8; is it the right file?") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not TOML: {error}") from error


def _configuration(root: Section, machine: Machine, chosen: ChosenAddress | NoAddressError) -> NodeConfiguration:
    own = root.values(
        NodeConfiguration, {"name": name_of_host(machine.hostname), "state_dir": machine.state_dir.absolute()}
    )
    by_i2p = own["transport"] is TransportKind.I2P
    gossip, proxy = root.section("gossip"), root.section("proxy")
    if by_i2p and not gossip.is_empty:
        root.problem("gossip", 'transport = "i2p" does not use gossip: give consensus.seeds instead')
    if not by_i2p and not proxy.is_empty:
        proxy.problem("address", 'a proxy leads into I2P: it needs transport = "i2p"')
    own["gossip"] = None if by_i2p else read_gossip(gossip, machine, chosen)
    own["consensus"] = read_consensus(root.section("consensus"), own["gossip"])
    own["proxy"] = read_proxy(proxy) if by_i2p else None
    section = root.section("publishing")
    publishing = section.read(PublishingSettings, {"reporting_period_ms": REPORTING_PERIOD_I2P_MS} if by_i2p else {})
    own["masters"] = read_masters(root.sections(MASTERS), section, publishing)
    own["publishing"] = replace(publishing, publish=None, signing_key=None)
    own["router"] = read_router(root.section("router"), own["state_dir"], demo=own["demo"])
    if own["router"].kind is RouterKind.I2CP and publishing.pace is PublishingPace.REPORTING_PERIOD:
        section.problem("pace", '"reporting-period" is for files: a router takes one structure a minute')
    own["leaves"] = tuple(each.read(LeafSettings) for each in root.sections(LEAVES))
    own["control"] = _read_control(root.section("control"))
    own["log"] = root.section("log").read(LogSettings)
    own["zmq"], own["kafka"] = read_zmq(root.section("zmq")), read_kafka(root.section("kafka"))
    root.finish()
    return NodeConfiguration(**own, is_named_by_host=not root.has("name"))


def name_of_host(hostname: str) -> str:
    """Return the name of a node on this host, unless its operator sets one."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", hostname).strip("._-")[:32] or "node"


def _read_control(section: Section) -> ControlSettings | None:
    if section.is_empty:
        return None
    found = section.read(ControlSettings)
    if found.certificate is not None and found.names:
        section.problem("names", "control.certificate already has names: leave one of the two out")
    return found


def reported_settings(configuration: NodeConfiguration) -> dict[str, object]:
    """Return the settings declared as `reported`, for the node's reports, and the numbers of masters and leaves.

    Paths, addresses and names of keys are not reported: every member reads the log, and keeps it.
    """
    table = written(configuration)
    found: dict[str, object] = {"masters": len(configuration.masters), "leaves": len(configuration.leaves)}
    for each in SETTINGS.values():
        section = table.get(each.table, {}) if each.table else table
        if each.setting.reported and each.key in section:
            found[each.setting.reported] = section[each.key]
    return found
