"""The families of counters: their names in the view and in `/metrics`.

    member of an enum ──▶ its family ──▶ key in the counters of the view: `dropped_replay`
                                     ──▶ `garlicfarm_gossip_dropped_total{reason="replay"}`

Each package declares its counters next to the code that counts: identifier and meaning. A family with a metric has one
series per member, and the identifier is the label. If a family does not have a metric, each member is a separate
metric. The view and docs/reference/metrics.md derive from this table; an enum needs a family here.

A key of the view consists of a prefix and the identifier. `_ZMQ_KEYS` and `_KAFKA_KEYS` keep older keys of the view.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct, field

from bridge.core.log.kinds import EntryCounter
from bridge.core.membership.authors import NoEffect
from bridge.node.control.routes import ControlEvent
from bridge.node.history.recorder import HistoryEvent
from bridge.node.kafka.counters import ProduceRefusal, TopicEvent
from bridge.node.membership.introductions import IntroductionDrop
from bridge.node.tasks.directory_requests import DirectoryRequest
from bridge.node.zmq.counters import UpdateResult
from consensus import CountedReason, Drop, ShellDrop
from consensus.protocols.garlic_farm import ConnectionEvent, Fault
from consensus.protocols.kafka import ListenerClose, ListenerEvent
from consensus.protocols.zmq_raft import EndpointDrop, EndpointEvent, SocketDrop
from gossip import CountedDrop, DropReason, Loss, SealFault

Counted = CountedReason | CountedDrop | NoEffect
"""A member with an identifier as value, and a meaning."""

_QUIET: Final = "A small number is normal. If it grows steadily, find the sender"
_SENDER: Final = "`garlicfarm events --kind connection-refused` shows the address of the sender"
_OWN_KEY: Final = "If it is a node of yours, give it the farm's key file; otherwise do nothing"
_LOAD: Final = (
    "If it grows steadily, the machine or the network is overloaded: `garlicfarm top` shows the CPU, and"
    " `garlicfarm members --rtt` the network"
)
_SAME_RELEASE: Final = "Install the same release on every node"
_FREE_SPACE: Final = "Free space on the disk of this node"


class ViewPart(StrEnum):
    """The part of the view with the counters of a family. The value is the prefix of their metrics."""

    NODE = ""
    GOSSIP = "gossip_"
    RAFT = "raft_"


class GossipTraffic(CountedReason):
    """Traffic of gossip."""

    BYTES_RECEIVED = (
        "bytes_received",
        "Received bytes of gossip. A steep rise is a flood, or a member that joins again and again",
    )
    BYTES_SENT = "bytes_sent", "Sent bytes of gossip. It grows with the number of peers and of updates"
    DATAGRAMS_RECEIVED = (
        "datagrams_received",
        "Received datagrams, also dropped ones. If it does not grow, no member reaches this node: check the firewall",
    )
    DATAGRAMS_SENT = "datagrams_sent", "Sent datagrams of gossip. It grows with every probe, about one a second"
    EVENTS_LOST = (
        "events_lost",
        "Events of gossip lost because this node was too slow. `garlicfarm top` shows the CPU load of the machine",
    )
    PIGGYBACK_LEFT_OUT = (
        "piggyback_left_out",
        "Ignored updates about members, with an invalid signature. If it grows, a member is damaged or hostile",
    )


class RaftWork(CountedReason):
    """Work of a server of the farm."""

    DISK_GROUPS = "disk_groups", "Groups of entries written to the log on disk. It grows with every commit"
    DISK_PERSISTS = (
        "disk_persists",
        "Writes with a sync to disk; one carries all waiting entries. `garlicfarm_disk_seconds` measures them",
    )
    ENTRIES_REREAD = (
        "entries_reread",
        "Entries read from disk again for a follower. If it grows steadily, a server is too slow for the others",
    )
    FIGURES_DROPPED = (
        "figures_dropped",
        "Figures of the router out of range, omitted from reports. If it grows, check the router's console",
    )
    STRUCTURES_PUBLISHED = (
        "structures_published",
        "Structures handed to the router. It grows on the publisher every five minutes; if not, check the alarms",
    )


class NodeEvent(CountedReason):
    """Other counters of a node."""

    FOUNDINGS_IGNORED = (
        "foundings_ignored",
        "Rejected foundings. If it grows, a node with this key file is in another farm: the alarms have the remedy",
    )
    METADATA_UNREADABLE = (
        "metadata_unreadable",
        "Unreadable descriptions of other nodes. If it grows, install the same release on all nodes",
    )


class Family(Struct, frozen=True, kw_only=True):
    """Counters of one subject."""

    members: tuple[Counted, ...]
    """Enum members with a `meaning`: a noun phrase for a label, otherwise a text without its final period."""
    part: ViewPart = ViewPart.NODE
    prefix: str = ""
    """Prefix of the keys in the view."""
    metric: str = ""
    """Name of the metric with the label, if the members are labels."""
    label: str = "reason"
    meaning: str = ""
    """Meaning of the metric with the label."""
    advice: Mapping[Counted, str] = field(default_factory=dict)
    """Remedies for an operator, for members that need another remedy than `quiet`."""
    quiet: str = _QUIET
    """Remedy in the help of the metric with the label."""
    keys: Mapping[Counted, str] = field(default_factory=dict)
    """Keys of the view without the prefix, for members whose key is not the identifier."""
    endpoint: str = ""
    """Endpoint for clients with these counters; only nodes with the endpoint have the metrics."""

    def key(self, member: Counted) -> str:
        """Return the key of a member in the counters of the view."""
        return self.prefix + self.keys.get(member, identifier(member))

    def name(self, member: Counted) -> str:
        """Return the name of the metric without `garlicfarm_` and `_total`."""
        return self.metric or self.part + self.key(member)

    def text(self, member: Counted) -> str:
        """Return the help of the metric."""
        return f"{self.meaning}. {self.quiet}." if self.metric else f"{member.meaning}."


def identifier(member: Counted) -> str:
    """Return the name of a member in metrics and views."""
    return member.value.replace("-", "_")


_ZMQ_KEYS: Final[Mapping[Counted, str]] = {
    EndpointDrop.CLIENT_STREAMS: "requests_for_entries_ignored_too_many_of_one_client",
    EndpointDrop.MALFORMED: "messages_that_are_no_request",
    EndpointDrop.NOT_RUNNING: "requests_for_entries_ignored_not_running",
    EndpointDrop.OTHER_CLUSTER: "requests_for_another_cluster",
    EndpointDrop.PEER_MESSAGE: "messages_between_peers",
    EndpointDrop.REPLY_UNENCODABLE: "replies_that_the_protocol_has_no_frames_for",
    EndpointDrop.SNAPSHOT_UNREADABLE: "streams_of_entries_with_an_unreadable_snapshot",
    EndpointDrop.STREAM_EXPIRED: "streams_of_entries_that_expired",
    EndpointDrop.TOO_MANY_CHANGES: "changes_ignored_too_many_under_way",
    EndpointDrop.TOO_MANY_STREAMS: "requests_for_entries_ignored_high_watermark",
    EndpointDrop.TOO_MANY_UPDATES: "updates_ignored_too_many_under_way",
    EndpointDrop.UNCONFIRMED_BYTES: "requests_for_entries_ignored_unconfirmed_bytes",
    EndpointDrop.UNHANDLED_TYPE: "requests_of_types_without_a_handler",
    SocketDrop.CONNECTION_GONE: "not_sent_since_the_connection_is_gone",
    SocketDrop.QUEUE_FULL: "not_sent_since_the_queue_is_full",
    SocketDrop.TOO_LARGE: "dropped_since_it_is_too_large",
}
_KAFKA_KEYS: Final[Mapping[Counted, str]] = {
    ListenerClose.ANSWER_BYTES: "too_many_bytes_of_answers_that_are_not_taken",
    ListenerClose.ANSWER_ELSEWHERE: "another_server_must_answer",
    ListenerClose.ANSWER_TIMEOUT: "waited_too_long_for_the_client_to_take_an_answer",
    ListenerClose.ANSWER_UNENCODABLE: "an_answer_has_no_form_in_the_version_that_was_asked",
    ListenerClose.BROKEN: "the_connection_broke",
    ListenerClose.CROWDED: "too_many_wait_for_their_turn",
    ListenerClose.EXHAUSTED: "this_process_may_not_open_any_more_files_or_connections_ulimit_n",
    ListenerClose.HANDSHAKE_TIMEOUT: "waited_too_long_for_the_handshake",
    ListenerClose.HUNG_UP: "the_client_hung_up",
    ListenerClose.HUNG_UP_EARLY: "it_hung_up_without_a_word",
    ListenerClose.IDLE: "waited_too_long_for_a_request",
    ListenerClose.LOGIN_FAILED: "the_login_failed",
    ListenerClose.MALFORMED: "no_request_of_kafka_s",
    ListenerClose.REQUEST_BEFORE_LOGIN: "a_request_before_the_login",
    ListenerClose.REQUEST_BYTES: "too_many_bytes_of_requests",
    ListenerClose.REQUEST_INCOMPLETE: "waited_too_long_for_the_rest_of_a_request",
    ListenerClose.SERVER_BUSY: "the_server_is_busy_or_has_stopped",
    ListenerClose.SERVICE_TIMEOUT: "waited_too_long_for_a_service",
    ListenerClose.SILENT: "it_said_nothing_or_had_no_turn_in_time",
    ListenerClose.TLS_FAILED: "the_tls_handshake_failed",
    ListenerClose.TOO_MANY: "too_many_connections",
    ListenerClose.TOO_MANY_OF_SOURCE: "too_many_connections_of_one_source",
    ListenerClose.UNSERVED_VERSION: "a_version_that_is_not_served",
}

FAMILIES: Final = (
    Family(members=tuple(GossipTraffic), part=ViewPart.GOSSIP),
    Family(
        members=(*SealFault, *Loss),
        part=ViewPart.GOSSIP,
        prefix="dropped_",
        metric="gossip_dropped",
        meaning="Datagrams of gossip that this node dropped, by reason",
        advice={
            SealFault.OTHER_FARM: f"{_OWN_KEY}: another farm on this network is harmless",
            SealFault.UNKNOWN_KEY: _OWN_KEY,
            SealFault.RETIRED_KEY: f"The sender missed a change of keys. {_OWN_KEY}",
            SealFault.FOREIGN_VERSION: _SAME_RELEASE,
            Loss.ANSWER_LOST: _LOAD,
            Loss.OVERLOADED: _LOAD,
            Loss.UNENCODABLE: "It is a fault of this program: report it with the file of `garlicfarm debug`",
            Loss.WIDE_AREA: "Correct the seeds, or set `gossip.allow_wan`",
            Loss.SEND_FAILED: "Check the firewall and the routes of this machine",
        },
    ),
    Family(
        members=(*DropReason, *IntroductionDrop),
        part=ViewPart.GOSSIP,
        prefix="ignored_",
        metric="gossip_ignored",
        meaning="Messages of members, and parts of them, that changed nothing, by reason",
        advice={
            DropReason.KEYRING_WOULD_SPLIT: "Compare `garlicfarm keys list` on the nodes",
        },
    ),
    Family(members=tuple(ControlEvent)),
    Family(
        members=tuple(Fault),
        prefix="garlic_farm_",
        metric="garlic_farm_faults",
        meaning="Refusals and failures of connections of the Raft port, in either direction, by reason",
        quiet="A small number is normal. The reference of metrics has the remedy for each reason",
        advice={
            Fault.MALFORMED: _SENDER,
            Fault.TOO_LARGE: _SENDER,
            Fault.OUT_OF_TURN: _SENDER,
            Fault.WRONG_PATH: f"{_SENDER}; after a call of this node, check the address in `connection-failed`",
            Fault.WRONG_METHOD: _SENDER,
            Fault.WRONG_VERSION: _SAME_RELEASE,
            Fault.WRONG_CREDENTIALS: (
                "Give that node the farm's present key file, or the users that `consensus.users_file` names. If it is"
                " not yours, a program guesses passwords without success"
            ),
            Fault.REPLAYED: "A program on the network repeats recorded bytes; it gains neither a reply nor access",
            Fault.WRONG_CLUSTER: "Correct the seeds of that node; or one of the two farms was created by mistake",
            Fault.WRONG_SERVER: "Search for two nodes with one address, or an address that now belongs to another node",
            Fault.UNPROVEN: (
                "If it is a node of yours, update it; otherwise a program has the key file (`garlicfarm help"
                " copied-key-file`)"
            ),
            Fault.UNKNOWN_IDENTITY: "`garlicfarm node list` shows it; approve it if it is yours",
            Fault.EXPELLED: (
                "Stop that node, or let it rejoin (`garlicfarm help servers`); if it is not yours, replace the keys"
                " (`garlicfarm help copied-key-file`)"
            ),
            Fault.WRONG_CERTIFICATE: (
                "Check the clock and the certificate of the server in the alarm; after its start, wait until gossip"
                " announces its certificate"
            ),
            Fault.DISTRUSTED: "Check the clock and the certificate of this node; the peer's events show its reason",
            Fault.PLAIN_REFUSED: "Set the same `transport` on all servers, or correct the address of that server",
            Fault.PROXY_REFUSED: "Check `proxy.user` and `proxy.password_file`",
            Fault.REFUSED_UPGRADE: "The event `connection-failed` has the text of the refusal",
            Fault.UNREACHABLE: "Start the peer, or check the firewalls on the way; it grows while a server is down",
            Fault.SILENT: _LOAD,
            Fault.BUSY: (
                "It ends when the server has started and the farm is created; otherwise too many clients connect, or"
                " the server is overloaded"
            ),
            Fault.REFUSED_CHANGE: "The event `change-refused` has the reason",
            Fault.FOREIGN_SNAPSHOT: (
                f"{_SAME_RELEASE}. If another program is a server, restart it with its complete log: neither side reads"
                " the other's snapshots"
            ),
        },
    ),
    Family(members=tuple(ConnectionEvent), prefix="garlic_farm_"),
    Family(
        members=tuple(EntryCounter),
        part=ViewPart.RAFT,
        metric="raft_entries_applied",
        label="kind",
        meaning="Entries that this node has applied, by kind, including refused ones",
        quiet="All servers apply the same entries; each counts them since its start",
    ),
    Family(
        members=tuple(NoEffect),
        part=ViewPart.RAFT,
        prefix="without_effect_",
        metric="raft_without_effect",
        meaning="Committed entries without effect, by reason",
        quiet="The event `entry-without-effect` names kind and author; look for that program",
    ),
    Family(members=tuple(RaftWork), part=ViewPart.RAFT),
    Family(
        members=tuple(ShellDrop),
        part=ViewPart.RAFT,
        prefix="dropped_",
        metric="raft_dropped",
        meaning="Messages and requests dropped before Raft, by reason",
        quiet=_LOAD,
    ),
    Family(
        members=tuple(Drop),
        part=ViewPart.RAFT,
        prefix="ignored_",
        metric="raft_ignored",
        meaning="Messages and events that Raft did not accept, by reason",
        advice={
            Drop.APPEND_BACKLOG_FULL: _LOAD,
            Drop.APPEND_DISK_FULL: _FREE_SPACE,
            Drop.APPEND_REJECTED_BY_STATE_MACHINE: _SAME_RELEASE,
            Drop.SNAPSHOT_CHUNK_DISK_FULL: _FREE_SPACE,
            Drop.SNAPSHOT_REJECTED_BY_STATE_MACHINE: _SAME_RELEASE,
        },
        quiet="Elections and restarts cause some. If it grows steadily, find the sender",
    ),
    Family(members=tuple(NodeEvent)),
    Family(members=tuple(HistoryEvent)),
    Family(
        members=tuple(DirectoryRequest),
        prefix="directory_requests_",
        metric="directory_requests",
        label="result",
        meaning="Requests of clients to this node's directory, by result",
        quiet="It grows with the clients; `structure` should dominate. `garlicfarm help links` explains the results",
        endpoint="directory",
    ),
    Family(members=tuple(EndpointEvent), prefix="zmq_", endpoint="zmq"),
    Family(
        members=(*EndpointDrop, *SocketDrop),
        prefix="zmq_",
        metric="zmq_dropped",
        meaning="Messages of clients, and replies to them, that the ØMQ endpoint dropped, by reason",
        quiet="A small number is normal. If it grows steadily, find the client",
        keys=_ZMQ_KEYS,
        endpoint="zmq",
    ),
    Family(
        members=tuple(UpdateResult),
        prefix="zmq_updates_",
        metric="zmq_updates",
        label="result",
        meaning="Updates of clients of the ØMQ endpoint, by result",
        quiet="It grows with the clients' work; look for the program whose updates are refused",
        endpoint="zmq",
    ),
    Family(members=tuple(ListenerEvent), prefix="kafka_", endpoint="kafka"),
    Family(
        members=tuple(ListenerClose),
        prefix="kafka_closed_",
        metric="kafka_connections_closed",
        meaning="Connections of clients of the Kafka listener that have ended, by reason",
        quiet="`hung_up` grows with each client that ends. If another reason grows steadily, find the client",
        keys=_KAFKA_KEYS,
        endpoint="kafka",
    ),
    Family(members=tuple(TopicEvent), prefix="kafka_", endpoint="kafka"),
    Family(
        members=tuple(ProduceRefusal),
        prefix="kafka_produced_refused_",
        metric="kafka_produce_refused",
        meaning="Requests of producers that the Kafka listener refused, by reason",
        quiet="The client receives the reason. If it grows steadily, correct that program",
        endpoint="kafka",
    ),
)
_FAMILY_OF: Final = {type(member): family for family in FAMILIES for member in family.members}


def by_key(*counted: Iterable[tuple[Counted, int]]) -> dict[str, int]:
    """Return counts by their keys in the view."""
    return {_key(member): count for counts in counted for member, count in counts}


@lru_cache(maxsize=None, typed=True)
def _key(member: Counted) -> str:
    return _FAMILY_OF[type(member)].key(member)
