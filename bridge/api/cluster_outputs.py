"""What `zmq-raft` and `kraft` print with `--json`: commands for clusters that are no farm (`docs/reference/json.md`).

Both kinds replicate a plain log for other programs, so what they tell is of members and entries, and nothing of it is
of routers. No key and no password is in any of these documents.
"""

from collections.abc import Mapping
from typing import Self

from msgspec import UNSET, UnsetType

from bridge.api.json import Document, Record


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

    `event` is `serving`, `role`, `voters`, `rejected`, `address-refused`, `disk-full`, `disk-writable` or `stopped`.
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
    """Where the server listens (`serving`), or the advertised address that is not recorded (`address-refused`)."""
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
