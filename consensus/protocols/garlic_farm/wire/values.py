"""The values of log entries: five kinds, as plain data.

The decoder returns an application's entry as the core's own `Entry`. Its value is opaque bytes here (JSON by the
document's application layer), and its wire form equals its form in the log. Every other value is part of a `LogEntry`,
which the mapping translates. LogPack and SnapshotSyncRequest exist in requests only, never in a log; ClusterServer only
in requests to add or remove a server.
"""

from enum import IntEnum

from msgspec import Struct

from consensus.core.model import Entry
from consensus.protocols.garlic_farm.wire.errors import malformed
from consensus.protocols.garlic_farm.wire.limits import ID_MAX, ID_MIN, LONG_MAX


class ValueType(IntEnum):
    """The byte that names a value's kind."""

    APPLICATION = 1
    CONFIGURATION = 2
    CLUSTER_SERVER = 3
    LOG_PACK = 4
    SNAPSHOT_SYNC_REQUEST = 5
    EXTENDED_CONFIGURATION = 66
    """A joint configuration, or one with learners: only with the extension, since I2P proposal 150 lacks both."""


class ClusterServer(Struct, frozen=True):
    """A server's id and endpoint. Without an endpoint it names the server to remove."""

    server_id: int
    endpoint: str | None


class Configuration(Struct, frozen=True):
    """A cluster's servers; `log_index` is this configuration's index, `last_log_index` the previous configuration's.

    The document has only servers that vote. Old servers (C_old of a joint configuration) and learners are an extension.
    """

    log_index: int
    last_log_index: int
    servers: tuple[ClusterServer, ...]
    old_servers: tuple[ClusterServer, ...] = ()
    learners: tuple[ClusterServer, ...] = ()

    @property
    def is_extended(self) -> bool:
        """Return True if a server without extensions could not read it."""
        return bool(self.old_servers or self.learners)


class LogPack(Struct, frozen=True):
    """A run of log entries for a server that catches up.

    `first_offset` is the offset of the first record in a data file (`log_pack`); the offsets on the wire begin with it.
    """

    first_offset: int
    entries: "tuple[WireEntry, ...]"


class SnapshotSyncRequest(Struct, frozen=True):
    """One chunk of a snapshot, which ends at (`last_log_index`, `last_log_term`) and carries its configuration."""

    last_log_index: int
    last_log_term: int
    configuration: Configuration
    offset: int
    data: bytes
    done: bool


Value = Configuration | ClusterServer | LogPack | SnapshotSyncRequest


class LogEntry(Struct, frozen=True):
    """A value other than an application's, and the term of the leader that created it."""

    term: int
    value: Value


WireEntry = Entry | LogEntry
"""An application's entry (term 0 in client requests), or any other."""


def checked_long(value: int, name: str) -> int:
    """Return a term, index or offset that every implementation can hold."""
    if not 0 <= value <= LONG_MAX:
        raise malformed(f"{name} {value} is outside 0 … 2^63-1")
    return value


def checked_id(value: int, name: str) -> int:
    """Return a server id that fits the wire."""
    if not ID_MIN <= value <= ID_MAX:
        raise malformed(f"{name} {value} does not fit a signed 32-bit id")
    return value
