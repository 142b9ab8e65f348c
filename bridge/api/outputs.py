"""What commands print with `--json` that is not an answer of the control endpoint (`docs/reference/json.md`).

A command that passes an answer on prints it as it is. Files are told by their paths; no key and no password is in any
of these documents.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Self

from msgspec import UNSET, UnsetType

from bridge.api.control import ClientKeyView, ConfirmedAnswer, LeavingAnswer, WithdrawnAnswer
from bridge.api.json import Document, Record
from bridge.api.view import MemberView, PublishingView, ReportView, VoterView, WeightsView

# -- the farm ----------------------------------------------------------------------------------------------------------


class MembersOutput(Document, frozen=True):
    """`members`."""

    members: tuple[MemberView, ...]
    """The members that gossip knows, in order of their names."""


class RoundTripView(Record, frozen=True):
    """A round-trip time between two nodes."""

    node: str
    """The name of the node that measures it."""
    peer: str
    """The name of the node that answers; the first digits of its NodeId if that is not known."""
    rtt_ms: float
    """Milliseconds."""


class RoundTripsOutput(Document, frozen=True):
    """`members --rtt`."""

    round_trips: tuple[RoundTripView, ...]
    """What the nodes measure of their peers."""
    silent: tuple[str, ...]
    """The names of nodes that run and have not answered in time."""


class FarmOutput(Document, frozen=True):
    """`farm`: the shared state, as the asked node has applied it."""

    cluster: str
    """The name of the cluster."""
    log_time_ms: int | None
    """The farm's agreed time, milliseconds since the epoch; null before the asked node has the log."""
    applied_index: int
    """The last entry that the asked node has applied."""
    leader_id: int | None
    """The Raft id of the leader; null while none is known."""
    voters: tuple[VoterView, ...]
    """The servers that vote."""
    learners: tuple[VoterView, ...]
    """The servers that get the log and do not vote."""
    publishing: tuple[PublishingView, ...]
    """What is published, for each master."""
    reports: tuple[ReportView, ...]
    """The latest application entry of each server."""
    weights: WeightsView
    """What operators and the pipeline add to the reports."""
    removed: tuple[int, ...]
    """The Raft ids of servers that an operator took out of the farm."""


class ServerView(VoterView, frozen=True, kw_only=True):
    """A server of the Raft group."""

    role: str
    """`voter` or `learner`."""
    leads: bool
    """It is the leader."""
    lag_entries: int | None
    """How many entries of the leader's log it lacks; null if the asked node does not lead."""
    report_age_ms: int | None
    """Milliseconds of log time since its last application entry; null if there is none."""
    loss: str = ""
    """What the farm would lack without it, or why it is missing already; empty if it may be lost."""


class ServersOutput(Document, frozen=True):
    """`servers`."""

    servers: tuple[ServerView, ...]
    """The servers of the Raft group."""
    removed: tuple[int, ...]
    """The Raft ids of servers that an operator took out of the farm."""
    waits: tuple[str, ...]
    """What the leader waits for before it changes the group, in words; empty if the asked node does not lead."""


class ClientsOutput(Document, frozen=True):
    """`node clients`."""

    clients: tuple[ClientKeyView, ...]
    """The client keys that were ever admitted."""


class LeaveOutput(LeavingAnswer, frozen=True):
    """`leave`."""

    node: str
    """The name of the node."""


class WithdrawOutput(WithdrawnAnswer, frozen=True):
    """`withdraw`."""

    node: str
    """The name of the node."""


class ConfirmClusterOutput(ConfirmedAnswer, frozen=True):
    """`confirm-cluster`."""

    node: str
    """The name of the node."""


# -- keys --------------------------------------------------------------------------------------------------------------


class NewFarmOutput(Document, frozen=True):
    """`keys new-farm`."""

    file: str
    """The path of the new farm key file."""
    label: str
    """The public hash of the key, in hexadecimal."""
    cluster: str
    """The name of the cluster."""
    expect: int
    """How many routers found the farm."""


class NewClientOutput(Document, frozen=True):
    """`keys new-client`."""

    file: str
    """The path of the new client key file."""
    name: str
    """What the farm calls the key."""
    public_key: str
    """The public half, in base64."""


class CurveKeyOutput(Document, frozen=True):
    """`keys new-curve` and `show-curve`."""

    file: str
    """The path of the file with the secret half."""
    name: str
    """What the key is called."""
    public_key: str
    """The public half, in Z85."""


class KafkaUserOutput(Document, frozen=True):
    """`keys kafka-user`."""

    file: str
    """The path of the file with the password."""
    name: str
    """The user's name."""
    line: str
    """What belongs into `kafka.users`."""


class DestinationOutput(Document, frozen=True):
    """`keys new-destination` and `import-destination`."""

    file: str
    """The path of the new master key file."""
    address: str
    """The address of the destination."""
    hash: str
    """Its hash, in hexadecimal."""
    destination: str
    """The destination in base64."""


class SigningKeyView(Record, frozen=True):
    """A signing key that was made."""

    file: str
    """The path of its file."""
    expires: int
    """When it ends, seconds since the epoch."""
    transient_key: str
    """Its public half, in hexadecimal."""


class SigningKeysOutput(Document, frozen=True):
    """`keys offline`."""

    address: str
    """The address of the destination that the keys sign for."""
    keys: tuple[SigningKeyView, ...]
    """The new keys."""


class RotationOutput(Document, frozen=True):
    """`keys rotate`."""

    rotated: bool
    """The farm uses the new key, and refuses the old one."""
    key: str
    """The id of the new key."""
    epoch: int
    """The change of the ring that chose the new key, by the ring's own clock."""
    members: int
    """How many members run."""
    removed: tuple[str, ...]
    """The ids of the removed keys."""
    left_out: tuple[str, ...] = ()
    """Members that were down, or did not confirm, when it was forced."""


class KeyExportOutput(Document, frozen=True):
    """`keys export`."""

    file: str
    """The path of the farm key file that was written."""
    label: str
    """The public hash of the key, in hexadecimal."""
    epoch: int
    """The change of the ring that chose the sealing key, by the ring's own clock."""
    cluster_id: str | None
    """The id of the cluster, in hexadecimal; null before the farm is founded."""


# -- configuration -----------------------------------------------------------------------------------------------------


class ConfigurationOutput(Document, frozen=True):
    """`config show`."""

    configuration: Mapping[str, Any]
    """Every setting that has a value, with the keys of a file (`docs/reference/settings.md`)."""


class BundleOutput(Document, frozen=True):
    """`config export`."""

    file: str
    """The path of the bundle."""
    label: str
    """The public hash of the farm's key, in hexadecimal."""
    settings: Mapping[str, Any]
    """The settings in the bundle, keys as in node.toml."""


class ImportOutput(Document, frozen=True):
    """`config import`."""

    file: str
    """The path of the new configuration."""
    farm_key: str
    """The path of the farm key file."""
    label: str
    """The public hash of the farm's key, in hexadecimal."""


class CheckResult(Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(Record, frozen=True):
    """One thing that was looked at, and what to do about it."""

    name: str
    """What was looked at."""
    result: CheckResult
    """How it is."""
    text: str
    """What was found, in words."""
    action: str = ""
    """What to do, in words; empty if there is nothing to do."""


class DoctorOutput(Document, frozen=True):
    """`doctor`."""

    healthy: bool
    """No check has found a problem."""
    checks: tuple[Check, ...]
    """The checks."""


# -- stored state ------------------------------------------------------------------------------------------------------


class BackupOutput(Document, frozen=True):
    """`backup`."""

    file: str
    """The path of the backup."""
    cluster_id: str
    """The id of the cluster, in hexadecimal."""
    index: int
    """The last entry that it covers."""
    term: int
    """The term of that entry."""
    bytes: int
    """The length of the file."""


class RestoreOutput(Document, frozen=True):
    """`restore`."""

    state_directory: str
    """The path of the new state directory."""
    cluster_id: str
    """The id of the cluster that it belongs to, in hexadecimal."""
    index: int
    """The last entry that the backup covers."""
    old_cluster_id: str | UnsetType = UNSET
    """The id of the cluster of the backup, if a new cluster was made of it."""


class CutView(Record, frozen=True):
    """The end of a log that was left out."""

    first: int
    """The first entry of it."""
    last: int
    """The last entry of it."""
    kinds: Mapping[str, int]
    """How many entries of each kind it had."""


class RecoveryOutput(Document, frozen=True):
    """`recover`."""

    recovered: bool
    """The new cluster was made; false with `--dry-run`."""
    state_directory: str
    """The path of the state directory of the new cluster's first server."""
    old_cluster_id: str
    """The id of the cluster that is given up, in hexadecimal."""
    new_cluster_id: str
    """The id of the new cluster, in hexadecimal."""
    node_id: str
    """The NodeId of its first server, in hexadecimal."""
    last_index: int
    """The last entry that is kept."""
    last_term: int
    """The term in which the new cluster begins."""
    cut: CutView | None
    """The end of the log that was left out; null if all of it is kept."""
    log_time_ms: int
    """The log time at which the new cluster begins, milliseconds since the epoch."""
    routers_refuse_until: int | None
    """Until when routers may refuse new structures, seconds since the epoch; null if they do not."""
    left_behind: tuple[str, ...]
    """The names of the servers that have to join anew."""
    old_storage: str | None
    """The path under which the old storage is kept; null if a backup was taken."""
    rejoin: str
    """What to do on the other routers, in words."""


class StorageOutput(Record, frozen=True):
    """`log verify`. Without `schema`, as it always was."""

    directory: str
    """The path of the directory."""
    verdict: str
    """`sound`, `repairable`, `damaged`, `empty` or `not-a-log`."""
    live: bool
    """A process has the directory open."""
    entries: int
    """How many entries it holds."""
    first_index: int
    """The first of them."""
    last_index: int
    """The last of them."""
    last_term: int
    """The term of the last one."""
    segments: int
    """How many files they are in."""
    snapshot_index: int | None
    """The last entry that the snapshot covers; null without a snapshot."""
    found: tuple[str, ...]
    """What is there, in words."""
    repairs: tuple[str, ...]
    """What the next start repairs, in words."""
    faults: tuple[str, ...]
    """What is wrong, in words."""


# -- other clusters ----------------------------------------------------------------------------------------------------


class ZmqRaftPeerView(Record, frozen=True):
    """A member of a cluster that speaks ØMQ Raft. All figures are null if it does not answer."""

    id: str
    """Its id."""
    url: str
    """Where its ROUTER socket is."""
    role: str | None = None
    """`leader` or `follower`, as it says itself; null if it does not answer."""
    term: int | None = None
    """Its term."""
    first_index: int | None = None
    """The first entry of its log that is not compacted."""
    last_index: int | None = None
    """The last entry of its log."""
    commit_index: int | None = None
    """The last entry that it knows to be committed."""
    applied_index: int | None = None
    """The last entry that its state machine has applied."""
    snapshot_bytes: int | None = None
    """How large its snapshot is."""
    prune_index: int | None = None
    """Up to here a snapshot may replace its entries."""


class ZmqRaftStatusOutput(Document, frozen=True):
    """`zmq-raft status`."""

    leader: str | None
    """The id of the leader; null while none is known."""
    peers: tuple[ZmqRaftPeerView, ...]
    """The members; while they change, those before and after."""


class ZmqRaftMemberView(Record, frozen=True):
    """A member of a cluster that speaks ØMQ Raft, by its id and the URL of its ROUTER socket."""

    id: str
    """Its id."""
    url: str
    """Where its ROUTER socket is."""


class ZmqRaftServeOutput(Document, frozen=True, omit_defaults=True):
    """`zmq-raft serve`, one on each line: something that happened on the peer. What does not belong to it is left out.

    `event` is `serving`, `role`, `members`, `compacted`, `compaction-failed`, `rejected`, `disk-full`, `disk-writable`
    or `stopped`.
    """

    event: str
    """What happened."""
    peer: str
    """The id of the peer."""
    time_ms: int
    """By the machine's clock, milliseconds since the epoch."""
    text: str
    """The same in words."""
    url: str | None = None
    """Where the peer listens (`serving`)."""
    broadcast_url: str | None = None
    """What clients are told of its PUB socket (`serving`)."""
    log_entries: int | None = None
    """How many entries are behind the snapshot (`serving`)."""
    log_bytes: int | None = None
    """How many bytes these have on disk (`serving`)."""
    role: str | None = None
    """`leader`, `candidate` or `follower` (`role`)."""
    term: int | None = None
    """The term (`role`)."""
    leader: str | None = None
    """The id of the leader, if it is known (`role`)."""
    members: tuple[ZmqRaftMemberView, ...] | None = None
    """The members (`members`); while they change, those before and after."""
    joining: tuple[ZmqRaftMemberView, ...] | None = None
    """Servers that get the log and are not members yet (`members`, on the leader)."""
    index: int | None = None
    """The last entry that the snapshot stands for (`compacted`)."""
    snapshot_bytes: int | None = None
    """How large the snapshot is (`compacted`)."""


class ZmqRaftConfigOutput(Document, frozen=True):
    """`zmq-raft config`."""

    leader: str | None
    """The id of the leader; null while none is known, and after a change."""
    members: tuple[ZmqRaftMemberView, ...]
    """The members; while they change, those before and after."""
    index: int | None
    """Of the entry that changed them; null if they were only shown."""


class ZmqRaftUpdateOutput(Document, frozen=True):
    """`zmq-raft update`, one on each line."""

    index: int
    """Where the update is in the log."""
    request_id: str
    """The id of its request, 24 hexadecimal digits."""


class ZmqRaftEntryView(Record, frozen=True):
    """`zmq-raft log` and `follow`, one on each line. It has either `value` or `base64`."""

    index: int
    """Its place in the log, from 1 on."""
    term: int
    """The term in which its leader appended it."""
    kind: str
    """`state`, `config` or `checkpoint`."""
    request_id: str
    """The id of the request that caused it, 24 hexadecimal digits; zeros if none did."""
    value: str | UnsetType = UNSET
    """What it says, if that is text in UTF-8; of a configuration and a checkpoint as JSON."""
    base64: bytes | UnsetType = UNSET
    """What it says, if it is not, in base64."""

    @classmethod
    def of(cls, index: int, term: int, kind: str, request_id: str, data: bytes) -> Self:
        """An entry of these bytes."""
        try:
            return cls(index, term, kind, request_id, value=data.decode())
        except UnicodeDecodeError:
            return cls(index, term, kind, request_id, base64=data)


class ZmqRaftSnapshotView(Record, frozen=True):
    """`zmq-raft log` and `follow`, where the log is compacted: a part of the snapshot that stands for its entries."""

    last_index: int
    """The last entry that it stands for."""
    last_term: int
    """The term of that entry."""
    offset: int
    """Where in the snapshot this part begins. At 0 a snapshot begins anew."""
    total_bytes: int
    """How large the snapshot is."""
    base64: bytes
    """The part, in base64."""


class KraftFormatOutput(Document, frozen=True):
    """`kraft format`."""

    directory: str
    """The path of the directory."""
    cluster_id: str
    """The quorum's id."""
    node_id: int
    """The server's id."""
    directory_id: str
    """The directory's id."""


class KraftReplicaView(Record, frozen=True):
    """A replica of a quorum that speaks KRaft, as the leader sees it. Times are by the leader's clock."""

    id: int
    """Its node.id."""
    directory_id: str
    """The id of its directory; `AAAAAAAAAAAAAAAAAAAAAA` where the voters are in the settings and have none."""
    status: str
    """`Leader`, `Follower` or `Observer`, as Kafka's tool has it."""
    log_end_offset: int
    """Where its next record will be."""
    lag: int
    """How many records of the leader's log it lacks."""
    last_fetch_ms: int | None
    """When it asked the leader last, milliseconds since the epoch; null: not yet."""
    last_caught_up_ms: int | None
    """When it had all of the leader's log last, milliseconds since the epoch; null: not yet."""
    listeners: tuple[str, ...]
    """Where it listens, as NAME://HOST:PORT, if the leader tells it."""


class KraftDescribeOutput(Document, frozen=True):
    """`kraft describe`."""

    cluster: str
    """The quorum's id."""
    leader_id: int
    """The node.id of the leader."""
    leader_epoch: int
    """Its epoch."""
    high_watermark: int
    """Records below this offset are committed."""
    max_follower_lag: int
    """How many records the voter lacks that is furthest behind."""
    max_follower_lag_ms: int | None
    """For how long that voter has lacked some, in milliseconds; null: not known."""
    replicas: tuple[KraftReplicaView, ...]
    """The leader, the followers, the observers."""


class KraftVoterView(Record, frozen=True):
    """A voter of a quorum that speaks KRaft."""

    id: int
    """Its node.id."""
    address: str
    """Where the other servers reach it."""


class KraftServeOutput(Document, frozen=True, omit_defaults=True):
    """`kraft serve`, one on each line: something that happened on the server. What does not belong to it is left out.

    `event` is `serving`, `role`, `voters`, `rejected`, `disk-full`, `disk-writable` or `stopped`.
    """

    event: str
    """What happened."""
    node_id: int
    """The server's id."""
    time_ms: int
    """By the machine's clock, milliseconds since the epoch."""
    text: str
    """The same in words."""
    address: str | None = None
    """Where the server listens (`serving`)."""
    cluster: str | None = None
    """The quorum's id (`serving`)."""
    directory_id: str | None = None
    """The id of the server's directory, where the log names the voters (`serving`)."""
    log_end_offset: int | None = None
    """Where the next record of its log will be (`serving`)."""
    log_bytes: int | None = None
    """How many bytes are behind the snapshot on disk (`serving`)."""
    metrics_port: int | None = None
    """Where Prometheus is answered, if it is (`serving`)."""
    role: str | None = None
    """`leader`, `candidate` or `follower` (`role`)."""
    epoch: int | None = None
    """The leader's epoch, or the one that the candidate asks for (`role`)."""
    leader_id: int | None = None
    """The node.id of the leader, if it is known (`role`)."""
    voters: tuple[KraftVoterView, ...] | None = None
    """The voters (`voters`)."""


class KraftChangeOutput(Document, frozen=True):
    """`kraft add-voter` and `kraft remove-voter`."""

    changed: bool
    """False: it was so already."""
    leader_id: int
    """The node.id of the leader."""
    voters: tuple[int, ...]
    """The node.id of each voter now."""


class KraftRecordView(Record, frozen=True):
    """`kraft log`, one on each line: a committed record. Of key and value each has a text, or base64 if it is none."""

    offset: int
    """Its place in the log, from 0 on."""
    epoch: int
    """The epoch of the leader that appended it."""
    timestamp_ms: int
    """As its writer has it, milliseconds since the epoch."""
    record: str
    """`Data`, or what it is to the protocol: `LeaderChange`, `KRaftVersion`, `KRaftVoters`, …"""
    key: str | UnsetType | None = UNSET
    """The key, if it is null or text in UTF-8."""
    key_base64: bytes | UnsetType = UNSET
    """The key otherwise."""
    value: str | UnsetType | None = UNSET
    """The value, if it is null or text in UTF-8."""
    value_base64: bytes | UnsetType = UNSET
    """The value otherwise."""
    headers: Mapping[str, bytes | None] | UnsetType = UNSET
    """The headers in base64, if there are any; of several with one name the last."""

    @classmethod
    def of(
        cls,
        offset: int,
        epoch: int,
        timestamp_ms: int,
        record: str,
        content: tuple[bytes | None, bytes | None],
        headers: Mapping[str, bytes | None],
    ) -> Self:
        """A record with this key and value."""
        (key, key_base64), (value, value_base64) = map(_text_or_bytes, content)
        told = headers or UNSET
        return cls(offset, epoch, timestamp_ms, record, key, key_base64, value, value_base64, told)


def _text_or_bytes(data: bytes | None) -> tuple[str | UnsetType | None, bytes | UnsetType]:
    try:
        return (None if data is None else data.decode()), UNSET
    except UnicodeDecodeError:
        return UNSET, data or b""


class KraftLogStartView(Record, frozen=True):
    """`kraft log`, where the log is compacted: it goes on at this offset, and a snapshot stands for what was before."""

    log_start_offset: int
    """The first offset that follows."""
