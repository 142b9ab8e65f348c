"""JSON output of `zmq-raft` and `kraft`, commands for clusters other than farms (`docs/reference/json.md`).

Both kinds replicate a plain log for other programs. These documents describe members and entries, not routers. They
contain neither keys nor passwords.
"""

from collections.abc import Mapping
from typing import Self

from msgspec import UNSET, UnsetType

from bridge.api.json import Document, Record


class ZmqRaftPeerView(Record, frozen=True):
    """A member of an ØMQ Raft cluster. All figures are null if it does not reply."""

    id: str
    """Id of the peer."""
    url: str
    """The address of its ROUTER socket."""
    role: str | None = None
    """`leader` or `follower`, from the member's reply; null without a reply."""
    term: int | None = None
    """Term of the peer."""
    first_index: int | None = None
    """The first entry of its log, after compaction."""
    last_index: int | None = None
    """The last entry of its log."""
    commit_index: int | None = None
    """The last entry that it knows to be committed."""
    applied_index: int | None = None
    """The last entry that its state machine has applied."""
    snapshot_bytes: int | None = None
    """The size of its snapshot."""
    prune_index: int | None = None
    """The last entry that a snapshot may replace."""


class ZmqRaftStatusOutput(Document, frozen=True):
    """`zmq-raft status`."""

    leader: str | None
    """The id of the leader; null while none is known."""
    peers: tuple[ZmqRaftPeerView, ...]
    """The members; during a change, the old and the new ones."""


class ZmqRaftMemberView(Record, frozen=True):
    """A member of an ØMQ Raft cluster, by its id and the URL of its ROUTER socket."""

    id: str
    """Id of the member."""
    url: str
    """The address of its ROUTER socket."""


class ZmqRaftServeOutput(Document, frozen=True, omit_defaults=True):
    """A line of `zmq-raft serve`: an event of the peer. It contains only the keys that have a value for this event.

    `event` is `serving`, `role`, `members`, `compacted`, `compaction-failed`, `rejected`, `disk-full`, `disk-writable`
    or `stopped`.
    """

    event: str
    """The kind of the event."""
    peer: str
    """The id of the peer."""
    time_ms: int
    """Time by the machine's clock."""
    text: str
    """The event as text."""
    url: str | None = None
    """The peer's listening address (`serving`)."""
    broadcast_url: str | None = None
    """The address of its PUB socket, as clients receive it (`serving`)."""
    log_entries: int | None = None
    """The number of entries after the snapshot (`serving`)."""
    log_bytes: int | None = None
    """The size of these entries on disk (`serving`)."""
    role: str | None = None
    """`leader`, `candidate` or `follower` (`role`)."""
    term: int | None = None
    """The term (`role`)."""
    leader: str | None = None
    """The id of the leader, if it is known (`role`)."""
    members: tuple[ZmqRaftMemberView, ...] | None = None
    """The members (`members`); during a change, the old and the new ones."""
    joining: tuple[ZmqRaftMemberView, ...] | None = None
    """Servers that get the log and are not members yet (`members`, on the leader)."""
    index: int | None = None
    """The last entry that the snapshot covers (`compacted`)."""
    snapshot_bytes: int | None = None
    """The size of the snapshot (`compacted`)."""


class ZmqRaftConfigOutput(Document, frozen=True):
    """`zmq-raft config`."""

    leader: str | None
    """The id of the leader; null if no leader is known, and in the output of a change."""
    members: tuple[ZmqRaftMemberView, ...]
    """The members; during a change, the old and the new ones."""
    index: int | None
    """The index of the entry that changed them; null if they were only shown, or were the members already."""


class ZmqRaftUpdateOutput(Document, frozen=True):
    """A line of `zmq-raft update`: a committed update."""

    index: int
    """The index of the update in the log."""
    request_id: str
    """The id of its request, 24 hexadecimal digits."""


class ZmqRaftEntryView(Record, frozen=True):
    """A line of `zmq-raft log` or `follow`: a committed entry. It has either `value` or `base64`."""

    index: int
    """Place of the entry in the log, from 1 on."""
    term: int
    """The term of the leader that appended it."""
    kind: str
    """`state`, `config` or `checkpoint`."""
    request_id: str
    """The id of the request that caused it, 24 hexadecimal digits; zeros if none did."""
    value: str | UnsetType = UNSET
    """Content of the entry, if it is text in UTF-8; JSON for a configuration or a checkpoint."""
    base64: bytes | UnsetType = UNSET
    """Content of the entry in base64, if it is not text."""

    @classmethod
    def of(cls, index: int, term: int, kind: str, request_id: str, data: bytes) -> Self:
        """Return an entry of these bytes."""
        try:
            return cls(index, term, kind, request_id, value=data.decode())
        except UnicodeDecodeError:
            return cls(index, term, kind, request_id, base64=data)


class ZmqRaftSnapshotView(Record, frozen=True):
    """`zmq-raft log` and `follow`, if the log is compacted: a part of the snapshot that covers the removed entries."""

    last_index: int
    """The last entry that it covers."""
    last_term: int
    """The term of the entry `lastIndex`."""
    offset: int
    """Offset of this part in the snapshot. A part at 0 begins a snapshot."""
    total_bytes: int
    """The size of the snapshot."""
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
    """A replica of a KRaft quorum, as the leader sees it. Times are by the leader's clock."""

    id: int
    """node.id of the replica."""
    directory_id: str
    """The id of its directory; `AAAAAAAAAAAAAAAAAAAAAA` if the voters come from settings without such ids."""
    status: str
    """`Leader`, `Follower` or `Observer`, as in Kafka's tool."""
    log_end_offset: int
    """The offset of its next record."""
    lag: int | None
    """The number of records of the leader's log that it lacks; null: the server that replied does not lead."""
    last_fetch_ms: int | None
    """The time of its last fetch from the leader; null before its first fetch."""
    last_caught_up_ms: int | None
    """The last time when it had all of the leader's log; null before the first time."""
    listeners: tuple[str, ...]
    """Listeners of the replica, as NAME://HOST:PORT, if the leader reports them."""


class KraftDescribeOutput(Document, frozen=True):
    """`kraft describe`."""

    cluster: str
    """The quorum's id."""
    leader_id: int
    """The node.id of the leader."""
    leader_epoch: int
    """Epoch of the leader."""
    high_watermark: int
    """Records below this offset are committed."""
    max_follower_lag: int | None
    """The lag in records of the slowest voter; null: the server that replied does not lead."""
    max_follower_lag_ms: int | None
    """Duration of the slowest voter's lag, in milliseconds."""
    replicas: tuple[KraftReplicaView, ...]
    """The leader, the followers, the observers."""


class KraftVoterView(Record, frozen=True):
    """A voter of a KRaft quorum."""

    id: int
    """node.id of the voter."""
    address: str
    """The server's address for the other servers."""


class KraftServeOutput(Document, frozen=True, omit_defaults=True):
    """A line of `kraft serve`: an event of the server. It contains only the keys that have a value for this event.

    `event` is `serving`, `role`, `voters`, `rejected`, `address-refused`, `disk-full`, `disk-writable` or `stopped`.
    """

    event: str
    """The kind of the event."""
    node_id: int
    """The server's id."""
    time_ms: int
    """Time by the machine's clock."""
    text: str
    """The event as text."""
    address: str | None = None
    """The server's listening address (`serving`), or the address that the quorum refused (`address-refused`)."""
    cluster: str | None = None
    """The quorum's id (`serving`)."""
    directory_id: str | None = None
    """The id of the server's directory, if the log names the voters (`serving`)."""
    log_end_offset: int | None = None
    """The offset of the next record of its log (`serving`)."""
    log_bytes: int | None = None
    """The size on disk of the log after the snapshot (`serving`)."""
    metrics_port: int | None = None
    """The port of the metrics for Prometheus, if there is one (`serving`)."""
    role: str | None = None
    """`leader`, `candidate` or `follower` (`role`)."""
    epoch: int | None = None
    """The epoch of the leader or of the candidate (`role`)."""
    leader_id: int | None = None
    """The node.id of the leader, if it is known (`role`)."""
    voters: tuple[KraftVoterView, ...] | None = None
    """The voters (`voters`)."""


class KraftChangeOutput(Document, frozen=True):
    """`kraft add-voter` and `kraft remove-voter`."""

    changed: bool
    """False if the voters already were as requested."""
    leader_id: int
    """The node.id of the leader."""
    voters: tuple[int, ...]
    """The node.id of each voter now."""


class KraftRecordView(Record, frozen=True):
    """A line of `kraft log`: a committed record. Key and value are text, or otherwise base64."""

    offset: int
    """Place of the record in the log, from 0 on."""
    epoch: int
    """The epoch of the leader that appended it."""
    timestamp_ms: int
    """The writer's timestamp."""
    record: str
    """`Data`, or the kind of a control record: `LeaderChange`, `KRaftVersion`, `KRaftVoters`, …"""
    key: str | UnsetType | None = UNSET
    """The key, if it is null or text in UTF-8."""
    key_base64: bytes | UnsetType = UNSET
    """The key in base64, if it is not text."""
    value: str | UnsetType | None = UNSET
    """The value, if it is null or text in UTF-8."""
    value_base64: bytes | UnsetType = UNSET
    """The value in base64, if it is not text."""
    headers: Mapping[str, bytes | None] | UnsetType = UNSET
    """The headers, if there are any: the values in base64. Of several headers with one name, only the last one."""

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
        """Return a record with this key and value."""
        (key, key_base64), (value, value_base64) = map(_text_or_bytes, content)
        headers_or_unset = headers or UNSET
        return cls(offset, epoch, timestamp_ms, record, key, key_base64, value, value_base64, headers_or_unset)


def _text_or_bytes(data: bytes | None) -> tuple[str | UnsetType | None, bytes | UnsetType]:
    try:
        return (None if data is None else data.decode()), UNSET
    except UnicodeDecodeError:
        return UNSET, data or b""


class KraftLogStartView(Record, frozen=True):
    """`kraft log`, if the log is compacted: the log continues at this offset, and a snapshot covers earlier records."""

    log_start_offset: int
    """The first offset that follows."""
