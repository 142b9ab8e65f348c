"""Every setting of a node, once: its key, its kind, its default, its bounds and what it means.

The reader takes defaults and bounds from here and refuses a key that does not stand here; docs/reference/settings.md is
made of it. A key is a path from the file's root: `gossip.capacity` is `capacity` below `[gossip]`, `leaf.probe` is
`probe` below each `[[leaf]]`. Checks that involve several settings stand with the module that reads them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from bridge.core.formation.founding import EXPECT_MAX
from bridge.core.log.records import PublishConfig
from bridge.core.membership.reconcile import GRACE_DEFAULT_MS, VOTERS_MAX_DEFAULT
from bridge.node.router.link import Software
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
from consensus.protocols.garlic_farm import ProxyMode
from gossip.node import DEFAULT_CAPACITY, SEEDS_LIMIT
from gossip.wire import CAPACITY_LIMIT

GOSSIP_PORT = 7668
CONSENSUS_PORT = 7669
I2P_SEEDS_LIMIT = 32
CONTROL_NAMES_LIMIT = 32
ZMQ_PEERS_LIMIT = 16
KAFKA_PEERS_LIMIT = 64
KAFKA_TOPIC_DEFAULT = "farm-log"
SEGMENT_DEFAULT_BYTES = 64 * 1024 * 1024
REPORTING_PERIOD_DEFAULT_MS = 30_000
REPORTING_PERIOD_I2P_MS = 60_000


class Kind(Enum):
    """What stands behind the equals sign."""

    TEXT = "text"
    FLAG = "true or false"
    INTEGER = "whole number"
    WORD = "word"
    FILE = "path"
    ADDRESS = "address:port"
    TEXTS = "list of texts"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key. `default` counts where the file does not have it; `told` is the default in words where it depends."""

    key: str
    kind: Kind
    meaning: str
    default: bool | int | str | None = None
    told: str = ""
    least: int = 0
    most: int = 0
    words: tuple[str, ...] = ()


def _text(key: str, meaning: str, told: str = "none") -> Setting:
    return Setting(key, Kind.TEXT, meaning, told=told)


def _flag(key: str, meaning: str) -> Setting:
    return Setting(key, Kind.FLAG, meaning, default=False)


def _integer(key: str, default: int, bounds: tuple[int, int], meaning: str, told: str = "") -> Setting:
    return Setting(key, Kind.INTEGER, meaning, default=default, told=told, least=bounds[0], most=bounds[1])


def _word(key: str, default: Enum, meaning: str, told: str = "") -> Setting:
    words = tuple(each.value for each in type(default))
    return Setting(key, Kind.WORD, meaning, default=default.value, told=told, words=words)


def _file(key: str, meaning: str, told: str = "none") -> Setting:
    return Setting(key, Kind.FILE, meaning, told=told)


def _address(key: str, meaning: str, told: str = "none") -> Setting:
    return Setting(key, Kind.ADDRESS, meaning, told=told)


def _texts(key: str, most: int, meaning: str) -> Setting:
    return Setting(key, Kind.TEXTS, meaning, told="none", most=most)


def _table(settings: Iterable[Setting]) -> dict[str, Setting]:
    return {each.key: each for each in settings}


SETTINGS = _table(
    (
        _text(
            "name",
            "what operators call this node: 1 to 32 letters, digits, `.`, `_`, `-`",
            "the host's name; `HOST-ABCD` where another node of the farm has that",
        ),
        _file(
            "state_dir",
            "identity, certificate, gossip keys, known peers, log and control socket; never copy it to a second node",
            "`~/.local/state/garlicfarm`",
        ),
        _file("farm_key", "the farm's key file", "required"),
        _texts(
            "founders",
            2 * EXPECT_MAX - 1,
            "node ids (16 hexadecimal digits each) of the nodes that may found the farm, from `expect` to one less than"
            " twice as many; it wins over the list in the key file, and counts until the farm is founded",
        ),
        _flag("demo", "throwaway destinations that no real router takes; `garlicfarm up` writes it"),
        _word(
            "transport",
            TransportKind.TLS,
            '`"tls"`: gossip, and TLS between the servers; `"i2p"`: no gossip, I2P names only, by the HTTP proxy of'
            " this machine's router",
        ),
        _address(
            "gossip.bind",
            "where gossip listens (UDP)",
            f"the private address of this machine, port {GOSSIP_PORT}; `garlicfarm doctor` shows which one and why",
        ),
        _address("gossip.advertise", "what peers are told, behind NAT", "`gossip.bind`"),
        _texts(
            "gossip.seeds", SEEDS_LIMIT, '`["host:port", …]`, tried for ever; needed where broadcast does not reach'
        ),
        _text(
            "gossip.broadcast",
            'where presence is announced: `"auto"` is the broadcast address of the interface, `"off"` is nowhere, else'
            " an `address:port`",
            '`"auto"`',
        ),
        _integer(
            "gossip.capacity",
            DEFAULT_CAPACITY,
            (1, CAPACITY_LIMIT),
            "how many peers this node probes and is probed by",
        ),
        _word("gossip.timing", GossipTiming.LAN, '`"local"` is for several nodes on one machine'),
        _flag(
            "gossip.allow_wan",
            "allows public addresses; an observer of gossip over the internet sees which routers belong together",
        ),
        _address(
            "consensus.bind",
            "where the Raft server listens (TCP, TLS); with `i2p` on loopback only",
            f"gossip's address, port {CONSENSUS_PORT}; with `i2p` `127.0.0.1:{CONSENSUS_PORT}`",
        ),
        _address(
            "consensus.advertise",
            "what other servers connect to; with `i2p` the `name.b32.i2p:port` of the router's server tunnel; with"
            " `ca_file` it may be a DNS name",
            "`consensus.bind`; with `i2p` required",
        ),
        _word(
            "consensus.timing",
            Timing.LAN,
            'elections begin after 1 to 2 s with `"lan"`, 0.5 to 1 s with `"local"`, 30 to 60 s with `"i2p"`;'
            " everything else is in proportion",
            '`"lan"`; with `i2p` `"i2p"`',
        ),
        _texts("consensus.seeds", I2P_SEEDS_LIMIT, 'with `i2p`: `["name.b32.i2p:7669", …]`, the other nodes'),
        _file(
            "consensus.ca_file",
            "an authority's certificate, together with `certificate`; without both, gossip tells the certificate that"
            " each node made for itself",
        ),
        _file("consensus.certificate", "this node's certificate, its chain and its key in one PEM file (mode 0600)"),
        _file(
            "consensus.users_file",
            "lines `user:password`: users that may connect, in place of the farm key's (mode 0600)",
        ),
        _file("consensus.logins_file", "lines `host:port user:password`: how this node logs in at others (mode 0600)"),
        _integer(
            "consensus.segment_bytes",
            SEGMENT_DEFAULT_BYTES,
            (64 * 1024, 1024 * 1024 * 1024),
            "size of each file of the log in bytes; a file is filled with zeros in advance",
        ),
        _integer(
            "consensus.voters_max",
            VOTERS_MAX_DEFAULT,
            (1, 9),
            "how many servers vote, an odd number; counts while this node leads",
        ),
        _integer(
            "consensus.grace_ms",
            GRACE_DEFAULT_MS,
            (1_000, 7 * 24 * 3600 * 1000),
            "how long a voter is dead before it is removed, in milliseconds; counts while this node leads",
        ),
        _word(
            "consensus.admit",
            Admit.ASK,
            'nodes beyond the founders: `"ask"` waits for `garlicfarm node approve`; `"all"` admits each that has the'
            " key file, one in a reporting period; counts while this node leads, so set it alike on all",
        ),
        _address("proxy.address", "with `i2p`: the HTTP proxy, on loopback", "`127.0.0.1:4444`"),
        _word("proxy.mode", ProxyMode.ABSOLUTE_URI, "with `i2p`: how the proxy is asked"),
        _text("proxy.user", "the user, if the proxy asks for one"),
        _file("proxy.password_file", "its password: one line, mode 0600"),
        _word(
            "publishing.publish",
            PublishConfig.AUTO,
            '`"off"`: this node never publishes; `"on"`: it is preferred over all that are on `"auto"`',
        ),
        _file("publishing.signing_key", "the node's signing key; without one it reports and votes and never publishes"),
        _word(
            "publishing.pace",
            Pace.NORMAL,
            '`"reporting-period"` publishes a change with the next report; for `router.kind = "file"` only, since a'
            " router takes one structure a minute",
        ),
        _integer(
            "publishing.reporting_period_ms",
            REPORTING_PERIOD_DEFAULT_MS,
            (500, 600_000),
            "how often servers report, in milliseconds; counts while this node leads: all follow the leader's",
            f"{REPORTING_PERIOD_DEFAULT_MS}; with `i2p` {REPORTING_PERIOD_I2P_MS}",
        ),
        _file(
            "master.signing_key",
            "one of several masters (at most 8), in place of `publishing.signing_key`: its key",
        ),
        _text("master.destination", "or, where this node has no key of it, the master's destination (base64)"),
        _word("master.publish", PublishConfig.AUTO, "as `publishing.publish`, for this master"),
        _word("router.kind", RouterKind.FILE, '`"file"`: no router; `"i2cp"`: a real one'),
        _file("router.directory", "kind `file`: where structures are kept", "`published` below `state_dir`"),
        _word("router.software", Software.JAVA, "kind `i2cp`: which router it is"),
        _address("router.i2cp", "kind `i2cp`: its I2CP port, on loopback or a private address", "`127.0.0.1:7654`"),
        _file("router.i2cp_certificate", "kind `i2cp`: the router's certificate (PEM), for I2CP over TLS"),
        _text("router.i2cp_username", "kind `i2cp`: the user, where the router demands one"),
        _file("router.i2cp_password_file", "kind `i2cp`: the user's password: one line, mode 0600"),
        _text(
            "router.i2pcontrol",
            "kind `i2cp`: the router's status, `http://127.0.0.1:7657` (Java) or `https://127.0.0.1:7650` (i2pd)",
        ),
        _file("router.i2pcontrol_password_file", "kind `i2cp`: the password of I2PControl: one line, mode 0600"),
        _file("router.i2pcontrol_certificate", "kind `i2cp`: the certificate of an I2PControl on another machine"),
        _text("leaf.destination", "a server tunnel of this router (at most 16): its destination (base64)", "required"),
        _text("leaf.probe", "`host:port` of the service behind the tunnel, which is probed"),
        _text("leaf.master", "the address of the master behind which the leaf stands", "all masters of the node"),
        _address(
            "control.listen", "where the control endpoint is open to other machines, with TLS and tokens", "nowhere"
        ),
        _texts("control.names", CONTROL_NAMES_LIMIT, "more host names and addresses for the endpoint's certificate"),
        _file("control.certificate", "a certificate of an authority with its key (PEM, mode 0600), for the endpoint"),
        _flag("control.open_health", "`/healthz` and `/readyz` are answered on TCP without a token"),
        _flag("control.page", "a read-only page for browsers at `/`; it shows nothing before it is given a token"),
        _word(
            "log.format",
            LogFormat.TEXT,
            'what the node writes to stderr: `"text"` for people, `"json"` an object on each line; see'
            " [monitor](../how-to/monitor.md#logs)",
        ),
        _word(
            "log.level",
            LogLevel.INFO,
            '`"info"`: every event; `"warning"`: alarms, failures and bad verdicts; `"error"`: why the node ended, and'
            " faults of the program",
        ),
        _text(
            "zmq.listen",
            "where ØMQ Raft clients read the farm's log: `tcp://IP:port` or `IP:port`; needs the extra `zmq`",
            "nowhere",
        ),
        _flag(
            "zmq.allow_network",
            "allows an address that is not loopback, so that others on that network can read the log",
        ),
        _flag("zmq.write", "clients with a listed key may have entries committed; needs `zmq.keys`, on loopback too"),
        _text(
            "zmq.ident", "the cluster ident that clients name", "the cluster's name, as `garlicfarm status` shows it"
        ),
        _text("zmq.broadcast", "where applied entries are broadcast: `tcp://IP:port` or `IP:port`", "nowhere"),
        _texts(
            "zmq.peers",
            ZMQ_PEERS_LIMIT,
            '`["tcp://IP:port", …]`, the ØMQ endpoints of other nodes of this farm, which clients are told',
        ),
        _file(
            "zmq.keys",
            "lines `NAME KEY SCOPE …` (mode 0600): only these keys are answered, over CURVE; see"
            " [read the log from Node.js](../how-to/read-the-log-from-node-js.md)",
        ),
        _text(
            "kafka.listen", "where Kafka's clients read the farm's log: `IP:port`; needs the extra `kafka`", "nowhere"
        ),
        _text(
            "kafka.advertise",
            "`host:port`, what clients are told to connect to; with TLS a name that the certificate has",
            "`kafka.listen`",
        ),
        _flag(
            "kafka.allow_network",
            "allows an address that is not loopback, so that others on that network can read the log",
        ),
        _text("kafka.topic", "what the log is called as a topic; the same on all nodes", f'`"{KAFKA_TOPIC_DEFAULT}"`'),
        _flag(
            "kafka.write",
            "listed users may produce entries as far as their scopes go; needs `kafka.users`, on loopback too",
        ),
        _flag(
            "kafka.groups",
            "consumer groups may note their offsets, as entries of the log, at most 100 groups; set it on all nodes"
            " with a listener, and `kafka.peers`: the leader coordinates the groups",
        ),
        _flag(
            "kafka.control_records",
            "entries that are not for readers are control records, so that each offset has one; some clients"
            " (kafka-python-ng, kafka-go) give them to their programs; the same on all nodes",
        ),
        _texts(
            "kafka.peers",
            KAFKA_PEERS_LIMIT,
            '`["NAME@host:port", …]`, other nodes of this farm and where their listeners are, which clients are told',
        ),
        _file(
            "kafka.certificate", "TLS: the listener's certificate, its chain and its key in one PEM file (mode 0600)"
        ),
        _file(
            "kafka.client_ca",
            "an authority's certificate: only clients whose certificates it has signed are answered; needs"
            " `kafka.certificate`",
        ),
        _file(
            "kafka.users",
            "lines `NAME CREDENTIAL SCOPE …` (mode 0600), as `garlicfarm keys kafka-user` makes them: only these users"
            ' are answered, by SCRAM; with `kafka.client_ca` lines `"SUBJECT" certificate SCOPE …`, which give scopes',
        ),
    )
)
