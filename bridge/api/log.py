"""Pages of the farm's log (`docs/reference/control-endpoint.md`), read by position like the trace.

An application entry is bytes. Nearly always they are UTF-8 text, and then `value` is that text, unchanged; otherwise
`base64` carries them. `base64` also carries a text with many control characters, because a string of JSON needs six
bytes for each of them. The JSON of a page has a size limit, so that a reader accepts the page. An entry of JSON is a
string in the page, not an embedded object, because a string preserves the exact bytes. Readers hash these bytes, or
parse them with their key order, spacing and duplicate keys.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final, Self

from msgspec import UNSET, UnsetType

from bridge.api.json import DOCUMENT_LIMIT_BYTES, Document, Record, decode, encode
from consensus import Entry, Server, ServerId, decode_configuration, decode_no_op
from consensus import EntryKind as CoreEntryKind

SHORT_BYTES: Final = 1024
"""Entries up to this size are sent as text even with many control characters; the page is also bounded."""
PAGE_LIMIT_BYTES: Final = DOCUMENT_LIMIT_BYTES // 4
"""Bytes of JSON in a page, unless its first entry alone has more."""
_ENTRY_BYTES: Final = 256
"""Upper bound for the bytes of an entry's JSON without the entry itself."""
_TWO_BYTES: Final = b'"\\\b\t\n\f\r'
_SIX_BYTES: Final = bytes(each for each in range(0x20) if each not in _TWO_BYTES)
"""Characters that need six bytes each in a string of JSON."""


class EntryKind(Enum):
    """Kind of a log entry for its reader."""

    APPLICATION = "application"
    CONFIGURATION = "configuration"
    NO_OP = "no-op"


class LogEntryView(Record, frozen=True):
    """One committed entry. It has either `value` or `base64`."""

    index: int
    """Place of the entry in the log, from 1 on."""
    term: int
    """The term of the leader that appended it."""
    kind: EntryKind
    """Kind of the entry."""
    log_time_ms: int | None
    """The farm's log time after it was applied; null before the first clock entry."""
    value: str | UnsetType = UNSET
    """The entry, if it is text in UTF-8 that JSON does not make much larger."""
    base64: bytes | UnsetType = UNSET
    """The entry otherwise, in base64."""

    @classmethod
    def of(cls, index: int, term: int, kind: EntryKind, log_time_ms: int | None, data: bytes) -> Self:
        """Return an entry of these bytes."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = None
        if text is None or (len(data) > SHORT_BYTES and _string_bytes(data) > _base64_bytes(data)):
            return cls(index, term, kind, log_time_ms, base64=data)
        return cls(index, term, kind, log_time_ms, value=text)

    def __post_init__(self) -> None:
        if self.value is UNSET and self.base64 is UNSET:
            raise ValueError("an entry of the log without value")

    @property
    def json_bytes_max(self) -> int:
        """Return an upper bound of the size of this entry as JSON."""
        if self.base64 is UNSET:
            return _ENTRY_BYTES + _string_bytes(self.data)
        return _ENTRY_BYTES + _base64_bytes(self.data)

    @property
    def data(self) -> bytes:
        """Return the exact bytes of the entry."""
        if isinstance(self.value, str):
            return self.value.encode()
        return b"" if self.base64 is UNSET else self.base64


class LogPage(Document, frozen=True):
    """Committed entries in order, and the first and last index of the log on this node."""

    first_index: int
    """The first entry that this node's log still holds."""
    last_index: int
    """The last entry of this node's log."""
    commit_index: int
    """The last entry that this node can show."""
    next_index: int
    """The index of the next page."""
    entries: tuple[LogEntryView, ...] = ()
    """The entries."""
    cluster_id: str | None = None
    """The id of the cluster; null while this node is not a server of the farm."""


class _ListedServer(Record, frozen=True):
    id: ServerId
    endpoint: str


class _ListedConfiguration(Record, frozen=True, omit_defaults=True):
    voters: tuple[_ListedServer, ...]
    old_voters: tuple[_ListedServer, ...] = ()
    learners: tuple[_ListedServer, ...] = ()


class _ListedNoOp(Record, frozen=True):
    leader: ServerId | None


def _string_bytes(text: bytes) -> int:
    """Return the size of a text as a string of JSON, without its quotation marks."""
    return len(text) + _count(text, _TWO_BYTES) + 5 * _count(text, _SIX_BYTES)


def _base64_bytes(data: bytes) -> int:
    return 4 * ((len(data) + 2) // 3)


def _count(data: bytes, of: bytes) -> int:
    return len(data) - len(data.translate(None, of))


def fitting(entries: Iterable[LogEntryView]) -> tuple[LogEntryView, ...]:
    """Return the first entry, and the following entries that fit into the same page."""
    page: list[LogEntryView] = []
    left = PAGE_LIMIT_BYTES
    for each in entries:
        left -= each.json_bytes_max
        if page and left < 0:
            break
        page.append(each)
    return tuple(page)


def log_entry(index: int, entry: Entry, log_time_ms: int | None) -> LogEntryView:
    """Return a Raft entry as its reader sees it; a configuration becomes JSON text."""
    match entry.kind:
        case CoreEntryKind.COMMAND:
            return LogEntryView.of(index, entry.term, EntryKind.APPLICATION, log_time_ms, entry.data)
        case CoreEntryKind.CONFIGURATION:
            members = decode_configuration(entry.data)
            value = encode(
                _ListedConfiguration(_listed(members.voters), _listed(members.old_voters), _listed(members.learners))
            )
            return LogEntryView.of(index, entry.term, EntryKind.CONFIGURATION, log_time_ms, value)
        case CoreEntryKind.NO_OP | CoreEntryKind.CONTROL:
            leader = decode_no_op(entry.data).leader if entry.kind is CoreEntryKind.NO_OP else None
            return LogEntryView.of(index, entry.term, EntryKind.NO_OP, log_time_ms, encode(_ListedNoOp(leader)))


def servers_named(entry: LogEntryView) -> dict[str, tuple[ServerId, ...]]:
    """Return the servers in an entry that Raft itself writes, by role: voters, before, learners; or leader.

    Raise `DocumentError` if the node's version uses another format.
    """
    if entry.kind is EntryKind.NO_OP:
        leader = decode(entry.data, _ListedNoOp).leader
        return {} if leader is None else {"leader": (leader,)}
    configuration = decode(entry.data, _ListedConfiguration)
    groups = {"voters": configuration.voters, "before": configuration.old_voters, "learners": configuration.learners}
    return {name: tuple(each.id for each in group) for name, group in groups.items() if group}


def _listed(servers: Iterable[Server]) -> tuple[_ListedServer, ...]:
    return tuple(_ListedServer(server.server_id, server.endpoint) for server in servers)
