"""Raft: one pure core, storage that survives what disks do, and the protocols through which servers speak.

    async with open_server(path, server_id, configuration, transport, machine, features=KRAFT) as server:
        answer = await server.propose((b"command",))

Imports point one way only: `core` (pure decisions) <- `storage`, `sessions` <- `server` (trio) <- `net` <- `protocols`.
Other packages import from here and from the faces `consensus.sessions`, `consensus.storage`, `consensus.net` and
`consensus.protocols.garlic_farm`, never from further inside. What is named here is fetched when it is first used, so
that a program with its own I/O gets the pure `Raft` without trio.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from consensus.core.effects import (
        ChangeOutcome,
        ChangeRefusal,
        ConfigurationChanged,
        ConfigurationResolved,
        Install,
        Outcome,
        Persist,
        ProposalResolved,
        ReadEntries,
        ReadReady,
        ReadRefused,
        ReadSnapshot,
        Role,
        RoleChanged,
        SnapshotChange,
        StoreChunk,
        TransferEnded,
        TransferOutcome,
    )
    from consensus.core.entry_data import (
        configuration_entry,
        configuration_head,
        decode_configuration,
        decode_no_op,
        encode_configuration,
        no_op_entry,
        no_op_head,
    )
    from consensus.core.features import (
        GARLIC_FARM,
        KRAFT,
        KRAFT_STATIC,
        ZMQ_RAFT,
        Extensions,
        Features,
        LeaderRecords,
    )
    from consensus.core.messages import Reply, Request
    from consensus.core.model import (
        COMMAND,
        MAX_MEMBERS,
        MAX_NUMBER,
        ORIGIN,
        Configuration,
        Entry,
        EntryKind,
        HardState,
        Index,
        LogId,
        NoOp,
        ReplicaKey,
        Server,
        ServerId,
        SnapshotDescription,
        Term,
        integer_id,
    )
    from consensus.core.options import Options, i2p, lan, local
    from consensus.core.raft import Raft
    from consensus.core.replica import TERM_STEP_MAX
    from consensus.core.status import Description, FollowerProgress
    from consensus.server.block_nursery import block_nursery, single_errors
    from consensus.server.errors import HaltedError, NotLeaderError, ServerBusyError, ServerStoppedError
    from consensus.server.event_loop import now_ms
    from consensus.server.histogram import Histogram
    from consensus.server.interfaces import APPLIED_AT_ONCE, ContentChecks, Receiver, StateMachine, Transport, next_call
    from consensus.server.log_stream import SnapshotChunk
    from consensus.server.opening import open_server
    from consensus.server.options import ServerOptions
    from consensus.server.server import ConsensusServer
    from consensus.server.status import ContentRejected, DiskFull, Notice, ServerDescription
    from consensus.storage.disk import StorageError
    from consensus.storage.planner import StorageOptions

__all__ = [
    "APPLIED_AT_ONCE",
    "COMMAND",
    "GARLIC_FARM",
    "KRAFT",
    "KRAFT_STATIC",
    "MAX_MEMBERS",
    "MAX_NUMBER",
    "ORIGIN",
    "TERM_STEP_MAX",
    "ZMQ_RAFT",
    "ChangeOutcome",
    "ChangeRefusal",
    "Configuration",
    "ConfigurationChanged",
    "ConfigurationResolved",
    "ConsensusServer",
    "ContentChecks",
    "ContentRejected",
    "Description",
    "DiskFull",
    "Entry",
    "EntryKind",
    "Extensions",
    "Features",
    "FollowerProgress",
    "HaltedError",
    "HardState",
    "Histogram",
    "Index",
    "Install",
    "LeaderRecords",
    "LogId",
    "NoOp",
    "NotLeaderError",
    "Notice",
    "Options",
    "Outcome",
    "Persist",
    "ProposalResolved",
    "Raft",
    "ReadEntries",
    "ReadReady",
    "ReadRefused",
    "ReadSnapshot",
    "Receiver",
    "ReplicaKey",
    "Reply",
    "Request",
    "Role",
    "RoleChanged",
    "Server",
    "ServerBusyError",
    "ServerDescription",
    "ServerId",
    "ServerOptions",
    "ServerStoppedError",
    "SnapshotChange",
    "SnapshotChunk",
    "SnapshotDescription",
    "StateMachine",
    "StorageError",
    "StorageOptions",
    "StoreChunk",
    "Term",
    "TransferEnded",
    "TransferOutcome",
    "Transport",
    "block_nursery",
    "configuration_entry",
    "configuration_head",
    "decode_configuration",
    "decode_no_op",
    "encode_configuration",
    "i2p",
    "integer_id",
    "lan",
    "local",
    "next_call",
    "no_op_entry",
    "no_op_head",
    "now_ms",
    "open_server",
    "single_errors",
]

_HOMES: Final = {
    "consensus.core.effects": (
        "ChangeOutcome",
        "ChangeRefusal",
        "ConfigurationChanged",
        "ConfigurationResolved",
        "Install",
        "Outcome",
        "Persist",
        "ProposalResolved",
        "ReadEntries",
        "ReadReady",
        "ReadRefused",
        "ReadSnapshot",
        "Role",
        "RoleChanged",
        "SnapshotChange",
        "StoreChunk",
        "TransferEnded",
        "TransferOutcome",
    ),
    "consensus.core.entry_data": (
        "configuration_entry",
        "configuration_head",
        "decode_configuration",
        "decode_no_op",
        "encode_configuration",
        "no_op_entry",
        "no_op_head",
    ),
    "consensus.core.features": (
        "Extensions",
        "Features",
        "GARLIC_FARM",
        "KRAFT",
        "KRAFT_STATIC",
        "LeaderRecords",
        "ZMQ_RAFT",
    ),
    "consensus.core.messages": ("Reply", "Request"),
    "consensus.core.model": (
        "COMMAND",
        "Configuration",
        "Entry",
        "EntryKind",
        "HardState",
        "Index",
        "LogId",
        "MAX_MEMBERS",
        "MAX_NUMBER",
        "NoOp",
        "ORIGIN",
        "ReplicaKey",
        "Server",
        "ServerId",
        "SnapshotDescription",
        "Term",
        "integer_id",
    ),
    "consensus.core.options": ("Options", "i2p", "lan", "local"),
    "consensus.core.raft": ("Raft",),
    "consensus.core.replica": ("TERM_STEP_MAX",),
    "consensus.core.status": ("Description", "FollowerProgress"),
    "consensus.server.block_nursery": ("block_nursery", "single_errors"),
    "consensus.server.errors": ("HaltedError", "NotLeaderError", "ServerBusyError", "ServerStoppedError"),
    "consensus.server.event_loop": ("now_ms",),
    "consensus.server.histogram": ("Histogram",),
    "consensus.server.interfaces": (
        "APPLIED_AT_ONCE",
        "ContentChecks",
        "Receiver",
        "StateMachine",
        "Transport",
        "next_call",
    ),
    "consensus.server.log_stream": ("SnapshotChunk",),
    "consensus.server.opening": ("open_server",),
    "consensus.server.options": ("ServerOptions",),
    "consensus.server.server": ("ConsensusServer",),
    "consensus.server.status": ("ContentRejected", "DiskFull", "Notice", "ServerDescription"),
    "consensus.storage.disk": ("StorageError",),
    "consensus.storage.planner": ("StorageOptions",),
}

if not TYPE_CHECKING:  # mypy would take any name for one of the face

    def __getattr__(name: str) -> Any:
        """Fetch a public name from its home."""
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(home), name)
        raise AttributeError(f"module 'consensus' has no attribute {name!r}")
