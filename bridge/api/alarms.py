"""Every alarm that a node can raise: its kind, its severity, the cause, the remedy, and the delay before it is shown.

    ALARMS ──▶ Alarms.set(DISK_FULL, text)   the board of a node (`bridge.node.events.alarms`)
           ──▶ docs/reference/alarms.md      `garlicfarm help alarms KIND`
           ──▶ order and severity            every surface that shows alarms, `garlicfarm doctor`
           ──▶ deploy/prometheus             the expressions of the two alerts about alarms

The code that raises an alarm adds the text: names, addresses, numbers. This code adds an action only if the action
depends on the situation; otherwise the declared remedy is shown.

Alarms are shown in the order of their declaration, the most severe first. In alphabetical order the symptom
`no-healthy-leaf` would come before its cause `no-quorum`. The other warnings, of equal weight, are declared in
alphabetical order.
"""

import re
from collections.abc import Iterable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bridge.api.view import AlarmView, Severity

_FIGURE: Final = re.compile(r"(?<![\w.-])-?\d[\d.,]*(?= ?(?:ms|s|min|h|d|%|bytes|KiB|MiB|GiB|entries|times)(?!\w))")
"""A number with a unit. A number without a unit may be an id, and a text with another id reports another problem."""


class AlarmType(Struct, frozen=True, kw_only=True):
    """One kind of alarm. `happened` and `remedy` are clauses: they begin in lower case and end without a period."""

    kind: str
    severity: Severity
    happened: str
    remedy: str
    delay_periods: int
    """Number of reporting periods that a possibly transient cause must last before the alarm is shown."""


ALARMS: Final[dict[str, AlarmType]] = {}
"""The alarms by kind, the most severe first."""


def _declare(severity: Severity, kind: str, happened: str, remedy: str, *, delay_periods: int = 0) -> AlarmType:
    declared = AlarmType(kind=kind, severity=severity, happened=happened, remedy=remedy, delay_periods=delay_periods)
    if ALARMS.setdefault(kind, declared) is not declared:
        raise ValueError(f"the alarm {kind} is declared twice")
    return declared


_critical: Final = partial(_declare, Severity.CRITICAL)
"""Declare an alarm for a farm or a node that does not do its work."""
_warning: Final = partial(_declare, Severity.WARNING)
CORRECT_FILE: Final = "correct the file as the text describes; the node reads it again automatically"
ADD_NODE: Final = (
    "run `garlicfarm invite new` on a voter, and the printed command on the new machine (over I2P:"
    " `garlicfarm help servers`)"
)
REPLACE_EVICTED: Final = f"to replace the evicted server, {ADD_NODE}"
_SET_CLOCKS: Final = "correct the clocks (NTP) of the servers that the text names"
_UPDATE_VOTERS: Final = (
    "update garlicfarm on every node that votes; the leader then raises the feature level automatically"
)
_COPIED: Final = "someone else has the farm's key file, so replace the keys: `garlicfarm help copied-key-file`"

# -- of verdicts -------------------------------------------------------------------------------------------------------

FOREIGN_KEY: Final = _critical(
    "foreign-key",
    "this node receives gossip under another farm key. Either this node is not a server of a created farm yet, or a"
    " server of its farm is down. A complete farm does not raise this alarm. The addresses in the text are not"
    " authenticated",
    "compare the label that `garlicfarm doctor` shows on each node: nodes of one farm have the same key file"
    " (`garlicfarm keys export FILE` writes it). Another farm on this network is harmless",
)
NO_QUORUM: Final = _critical(
    "no-quorum",
    "this node does not reach a majority of the voters. Either it lacks a leader while too few voters are alive, or it"
    " has lacked a leader for three times the shortest election timeout. Or the log did not get a clock entry for 2.5"
    " reporting periods (at least 5 s and three election timeouts). Nothing can be committed. Each part of the farm"
    " continues to publish alone",
    "start the other servers again, or repair the network between them. If a majority is permanently lost, stop this"
    " node and create a farm from it with `garlicfarm recover`; see `garlicfarm help recover`",
)
NOT_PUBLISHED: Final = _critical(
    "not-published",
    "a master does not have a valid structure, or no server can publish the next one; the text has the reason",
    "follow the alarm's action: it concerns the router, the signing key, `publish`, or the clocks",
    delay_periods=3,
)
NO_HEALTHY_LEAF: Final = _critical(
    "no-healthy-leaf",
    "a structure is published, and none of its leaves is healthy. For each leaf, the text has its node and the"
    " missing conditions: the router's reply, the lease set, or a reply to the probe",
    "follow the alarm's action for each condition. `garlicfarm farm` shows the conditions of each leaf, and"
    " `garlicfarm doctor --config FILE` on that node measures them now",
)

# -- of a node that cannot do its work ---------------------------------------------------------------------------------

KEY_RETIRED: Final = _critical(
    "key-retired",
    "a member reports that this node's farm key is out of date: it was rotated, or replaced by an eviction. After an"
    " eviction the alarm may end automatically, when enough members confirm the new key. Or this node lacks a peer, and"
    " receives its farm's gossip under an unknown key. Then this node's key file, or the sender's, is out of date",
    "run `garlicfarm keys export FILE` on a node of the farm, copy that file to this node as its key file, and"
    " restart this node; see `garlicfarm help rotate-keys`. If all nodes have this alarm, run `garlicfarm keys"
    " replace` at a voter",
)
FORMATION: Final = _critical(
    "formation",
    "the farm cannot be created; or a new node cannot decide which cluster is its farm; or two clusters have the same"
    " farm key",
    "follow the text; see `garlicfarm help create-a-farm`",
)
ISOLATED: Final = _critical(
    "isolated",
    "no peer answers: every seed failed to answer several times, or this node has been without a peer for ten gossip"
    " periods",
    "check the network, the seeds and the firewall (by default UDP 7668, TCP 7669)",
)
ADDRESS_GONE: Final = _critical(
    "address-gone",
    "this machine no longer has the address that this node uses, or the interface with it is down: no other node"
    " reaches this one there. If the node chose the address itself, it uses the machine's next address. If settings"
    " name the address, the node waits for it, and the text names the settings",
    "restore the network of this machine: this node uses its new address without a restart. If a setting names the"
    " address, give the machine that address again, or change the setting and restart this node",
)
DISK_FULL: Final = _critical(
    "disk-full",
    "the disk of the state directory is full: this node does not store or acknowledge anything new",
    "free disk space; the node continues automatically",
)
DISK_UNRESPONSIVE: Final = _critical(
    "disk-unresponsive",
    "a read or a write of the log has not finished for 5 s. The disk of the state directory hangs, or is far too slow."
    " This node does not acknowledge new entries, and does not report. The other servers continue",
    "check this machine's disk and its kernel log; if the disk is on a network, check that. The node continues"
    " automatically; if the disk has failed, replace the node",
)
GENERATION_NOT_STORED: Final = _critical(
    "generation-not-stored",
    "peers have recorded an earlier run of this node, and this node could not write the number of its present run to"
    " `state_dir`. It does not send anything until it has written the number, and the other nodes report it dead",
    "free disk space, or repair the disk; the node continues automatically",
)
ROUTER_UNREACHABLE: Final = _critical(
    "router-unreachable",
    "the router does not answer, so its leaves count as unhealthy and this node does not publish",
    "start the router and its I2CP port, and check [router] with `garlicfarm doctor`; see `garlicfarm help routers`",
)

# -- warnings with a rank ----------------------------------------------------------------------------------------------

SERVERS_DOWN: Final = _warning(
    "servers-down",
    "servers of the farm are dead to gossip, have left, are evicted, or do not answer the leader. The text names them"
    " and has the number of servers that may still fail (`garlicfarm help verdicts`)",
    "start them again, and check that UDP (gossip) and TCP (consensus) reach them. Replace a server that will not"
    " return. In a farm with no more voters than `expect`,"
    f" {ADD_NODE}. The farm removes the old server when the new one votes. In a larger farm, run"
    " `garlicfarm servers remove NAME`. Add a new node in place of an evicted server, too",
)
UDP_BLOCKED: Final = _warning(
    "udp-blocked",
    "servers are dead to gossip, but Raft reaches them: UDP between them and this node is blocked in at least one"
    " direction. The text names them. The servers work, and the farm does not remove them",
    "open the UDP port of gossip (7668) in both directions in the firewalls, as TCP is open already. Do not remove"
    " a server",
)
REPORTS_MISSING: Final = _warning(
    "reports-missing",
    "gossip and Raft reach a server, but its last report in the log is out of date. New reports do not arrive, or the"
    " farm ignores them. The server does not count in publishing",
    "check `garlicfarm status` and the log of the node that does not report: its clock, its key, its connection to the"
    " leader. It does not count in publishing until it reports again",
)

# -- other warnings ----------------------------------------------------------------------------------------------------

ADDRESS_OUTDATED: Final = _warning(
    "address-outdated",
    "this machine's address has changed, and this node uses the new address, but its configuration still has the old"
    " one; the text names the settings. The node works, but its next start would fail",
    "write the new address into the configuration",
)
ADMISSION: Final = _warning(
    "admission",
    "a node uses the name of another identity, or a retired identity runs, or 1,024 identities were admitted",
    "if the node replaces your node of this name, run `garlicfarm node approve NAME`. Otherwise give it another"
    " `name`, or restore the `identity.pem` of the old node; see `garlicfarm help servers`. If you did not start it: "
    + _COPIED,
)
CERTIFICATE: Final = _warning(
    "certificate",
    "the certificate of `consensus.certificate` ends within a month, or is not valid by this machine's clock. Other"
    " servers do not connect to a server without a valid certificate. A certificate that the node made itself does not"
    " end",
    "if this machine's clock is wrong, set it. Otherwise have the authority sign a new certificate, use it as"
    " `consensus.certificate`, and restart this node",
)
CLOCK: Final = _warning(
    "clock",
    "this node's clock differs by more than 10 s from the clocks of a majority of the voters, or no majority of"
    " the clocks agrees. Before the farm is created, each node compares its clock with the clocks of all nodes that it"
    " reaches",
    _SET_CLOCKS,
    delay_periods=1,
)
CONTENT_REJECTED: Final = _warning(
    "content-rejected",
    "a server sent log entries of a feature level that this version lacks, or a snapshot that it cannot read; the"
    " text names the server. This node did not store it, so its log is out of date",
    "install the version that the text names on this node, and start it again. If none of your nodes runs a newer"
    " version, someone else controls that server: `garlicfarm node evict`",
)
CONTROL_CERTIFICATE: Final = _warning(
    "control-certificate",
    "the certificate of `control.certificate` ends within a month, or is not valid by this machine's clock. Clients"
    " refuse a control endpoint without a valid certificate. A running node renews a certificate that it made itself",
    "if this machine's clock is wrong, set it. Otherwise have the authority sign a new certificate, use it as"
    " `control.certificate`, and restart this node",
)
ENTRIES_WITHOUT_EFFECT: Final = _warning(
    "entries-without-effect",
    "within a minute, the farm ignored 20 entries that should have changed it. The text has their kinds, reasons and"
    " authors (`garlicfarm help application-json`)",
    "if your program sends them, sign them with an admitted client key (`garlicfarm node admit-client`), or submit"
    f" them through a node. Otherwise {_COPIED}",
)
EQUIVOCATION: Final = _warning(
    "equivocation",
    "a member signed two different descriptions of one incarnation, so different nodes have different data about it."
    " Only the member itself can sign its descriptions. Until the farm is created, such a node does not count as a"
    " founder",
    "compare `garlicfarm members` with your nodes. If the node is yours, its state directory is a copy or was"
    f" restored: stop the node and give it a new state directory. Otherwise {_COPIED}. The alarm ends when this node"
    " starts again",
)
FARM_KEY_FILE: Final = _warning(
    "farm-key-file",
    "the farm key file is older than the farm's keys, newer than this node's keys, or unusable",
    "if the file is older, run `garlicfarm keys export --replace FILE`. If it is newer, restart this node. If it is not"
    " readable, run the `chown` in the text. If it is missing, run `garlicfarm keys export FILE`. If it belongs to"
    " another farm, move it away first",
)
FEATURE_LEVEL: Final = _warning(
    "feature-level",
    "for 6 hours the farm has had a lower feature level than this node supports. The text names the voters that"
    " do not announce a higher level, or the leader that does not raise it. Until the level rises, the"
    " farm lacks the functions of the higher level, such as limits for hostile members. `garlicfarm status` and"
    " `garlicfarm doctor` name these voters immediately",
    "install this version of garlicfarm on the named servers, and start them if they are down: `garlicfarm help"
    " upgrade`. If a server runs it already, someone else controls that server (`garlicfarm help stolen-node`): run"
    " `garlicfarm node evict NAME` at another node",
)
FOREIGN_VERSION: Final = _warning(
    "foreign-version",
    "other nodes of this farm send gossip of another version of the protocol; the text has their addresses and the"
    " version. Neither side can read the other's gossip",
    "install the same release on every node; the alarm ends a minute after the last such datagram",
)
FORGED_VERDICTS: Final = _warning(
    "forged-verdicts",
    "many reports that a member is suspect or dead were false: the members in the text answer this node. This node"
    " ignores the reports, because it accepts only its own measurements. The text has the addresses of the"
    " senders",
    "if datagrams are lost or the machines are overloaded, correct that. If an address is not one of your nodes,"
    " someone else has the farm key: `garlicfarm keys replace`; see `garlicfarm help copied-key-file`."
    " The alarm ends five minutes after the last such report",
)
KAFKA_CERTIFICATE: Final = _warning(
    "kafka-certificate",
    "the certificate of the Kafka listener, or the authority of its clients (`kafka.certificate`, `kafka.client_ca`),"
    " has changed and is unusable. The previous content stays in use. Or the certificate ends within a"
    " month, or is not valid by this machine's clock. Clients refuse an invalid certificate",
    "if this machine's clock is wrong, set it. Otherwise have the authority sign a new certificate, and use it as"
    " `kafka.certificate`: a running node reads it again",
)
KAFKA_LEVEL_LOW: Final = _warning(
    "kafka-level",
    "clients of the Kafka listener cannot write records or commit offsets of their groups yet. A voter of the farm runs"
    " a version that does not support Kafka clients",
    _UPDATE_VOTERS,
)
KAFKA_USERS: Final = _warning(
    "kafka-users",
    "the list of users of the Kafka listener (`kafka.users`) cannot be read any more; the users that were read before"
    " stay in use",
    CORRECT_FILE,
)
KEYRING_NOT_STORED: Final = _warning(
    "keyring-not-stored",
    "the node cannot write a new gossip key to `state_dir/keys`. After a restart it would have the old key, and the"
    " farm would refuse it once that key is removed",
    "do not restart this node. Repair its disk, or free space on it: within a minute the node stores the key and the"
    " alarm ends. If `garlicfarm keys rotate` stopped because of this, run it again. If the node must restart before"
    " that, first run `garlicfarm keys export FILE` on another node, and copy that file to this node as its key file",
)
LOG_TIME: Final = _warning(
    "log-time",
    "log time does not advance: it is ahead of the clocks of a majority of the voters, or no majority of the voters"
    " reports",
    "follow the alarm's action; see `garlicfarm help log-time`",
    delay_periods=1,
)
NOT_ADMITTED: Final = _warning(
    "not-admitted",
    "this node has discovered its farm, and the farm has not admitted it; it does not have a Raft id yet",
    "run `garlicfarm node approve ID` at a voter of the farm, with the id in the alarm",
)
OTHER_CLOCKS: Final = _warning(
    "other-clocks",
    "this node leads, and the clocks of other servers differ by more than 10 s from the clocks of a majority of the"
    " voters. Or no majority of the voters' clocks agrees",
    _SET_CLOCKS,
    delay_periods=1,
)
PEERS_REFUSED: Final = _warning(
    "peers-refused",
    "this node refused a peer that uses the farm's protocol. The peer has a wrong password, belongs to"
    " another farm or version, sends a recorded handshake, cannot prove its Raft id, or is evicted",
    "if it is your node, correct the fault there; otherwise find that program: it did not receive data or access",
)
PUBLISHING_WITHOUT_QUORUM: Final = _warning(
    "publishing-without-quorum",
    "this node signs and publishes without an entry in the log, because it is the publisher among the nodes that it"
    " reaches (`garlicfarm help publishing`)",
    "no immediate action: clients still find the service. For a quorum, follow the alarm `no-quorum`",
)
REFUSED_BY_PEERS: Final = _warning(
    "refused-by-peers",
    "a server refuses this node, or this node does not trust that server's certificate; the text has the servers"
    " and the reasons",
    "follow the alarm's action: it concerns the key file, the clock, the certificate, the version, or the state"
    " directory; see `garlicfarm help transports`",
)
ROUTER: Final = _warning(
    "router",
    "the router refused a structure, cannot publish with this node's key or settings, or cannot look up a leaf. Or it"
    " does not keep a session for the standby",
    "see the text and the router's own log; after a refusal, the node tries to publish again at growing intervals",
)
ROUTER_CLOCK: Final = _warning(
    "router-clock",
    "the router's clock and this machine's differ by 30 s or more",
    "correct the clocks (NTP): the router refuses structures that seem too old or too new",
)
ROUTER_STATUS: Final = _warning(
    "router-status",
    "I2PControl does not answer, or the router reports that its network does not work",
    "check `router.i2pcontrol` with `garlicfarm doctor`, or see the router's own console",
)
SIGNING_KEY: Final = _warning(
    "signing-key",
    "the transient key ends within a week or has ended. Or the next key is unusable, belongs to another master, or has"
    " ended; then the node still signs with its present key",
    "on the machine with the master key, make the next key with `garlicfarm keys offline`. Replace this node's signing"
    " key file with it: the node reads it within a reporting period; see `garlicfarm help signing-keys`",
)
SLOW_MAJORITY: Final = _warning(
    "slow-majority",
    "a majority needs more than a fifth of the shortest election timeout to store an entry of this leader (median of"
    " eight clock entries). Pauses may cause needless elections",
    "look for a slow disk or a busy processor on the voters, or a slow network between them. If the servers are far"
    " apart, set another `consensus.timing`",
)
STRUCTURE_NOT_FOUND: Final = _warning(
    "structure-not-found",
    "this node's router accepted a structure, and two minutes later the routers of the other nodes do not find any"
    " structure of that master. Only Java routers find a Meta LeaseSet2. The node has handed the structure over again,"
    " and repeats this every five minutes as usual",
    "check the router of the publisher: its console or log shows if it has tunnels and knows floodfills. Check the"
    " routers that did not find the structure, too (`garlicfarm farm`): a router without tunnels does not find it. If"
    ' the publisher\'s router does not recover, restart it, or set publish = "off" there: then another node publishes',
)
USERS: Final = _warning(
    "users",
    "`users_file` or `logins_file` cannot be read any more; the content that was read before stays in use",
    CORRECT_FILE,
)
WAITING_FOR_APPROVAL: Final = _warning(
    "waiting-for-approval",
    "nodes that the farm has not admitted take part in gossip. The leader raises the alarm, with the eight nodes that"
    " have waited longest",
    "if it is your node, run `garlicfarm node approve ID` at a voter; otherwise someone else has a copy of the key"
    " file: run `garlicfarm keys replace`",
)
ZMQ_KEYS: Final = _warning(
    "zmq-keys",
    "the list of keys of the ØMQ endpoint (`zmq.keys`) cannot be read any more; the keys that were read before stay in"
    " use",
    CORRECT_FILE,
)
ZMQ_UPDATES: Final = _warning(
    "zmq-updates",
    "clients of the ØMQ endpoint cannot write updates yet: a voter of the farm runs a version without the request ids"
    " of ØMQ Raft",
    _UPDATE_VOTERS,
)


def alarm_severity(kind: str) -> Severity:
    """Return the severity of an alarm; an unknown kind, as of a later version, is a warning."""
    return ALARMS[kind].severity if kind in ALARMS else Severity.WARNING


def by_gravity(alarms: Iterable[AlarmView]) -> tuple[AlarmView, ...]:
    """Return the alarms with their severities, the most severe first, as every surface shows them."""
    rank = {kind: place for place, kind in enumerate(ALARMS)}
    known = (replace(each, severity=alarm_severity(each.kind)) for each in alarms)
    return tuple(sorted(known, key=lambda each: (rank.get(each.kind, len(rank)), each.kind)))


def without_figures(text: str) -> str:
    """Return a text without its measured figures: texts that differ only in such figures report the same problem."""
    return _FIGURE.sub("…", text)
