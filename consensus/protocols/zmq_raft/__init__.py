"""ØMQ Raft: servers among its peers, an endpoint for its clients, and a client, over pyzmq (the extra `zmq`).

What is named here is fetched when it is first used, so the wire can be used without pyzmq.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from consensus.protocols.zmq_raft.node.bound_endpoint import (
        BoundEndpoint,
        EndpointAddress,
        FollowedLog,
        ListedClients,
        bound_endpoint,
    )
    from consensus.protocols.zmq_raft.node.client import (
        ClientError,
        ConfigRefusedError,
        NoAnswerError,
        RequestExpiredError,
        ZmqRaftClient,
        connect,
    )
    from consensus.protocols.zmq_raft.node.client_links import (
        ClientOptions,
    )
    from consensus.protocols.zmq_raft.node.compaction import (
        CommandCompactor,
        Compacted,
        CompactionFailed,
        CompactionOptions,
    )
    from consensus.protocols.zmq_raft.node.log_reader import (
        LogEntry,
        LogEntryKind,
        LogItem,
        SnapshotPart,
    )
    from consensus.protocols.zmq_raft.node.open_peer import (
        PeerError,
        PeerNotice,
        PeerOptions,
        ZmqRaftPeer,
        open_peer,
    )
    from consensus.protocols.zmq_raft.node.replicated_log import LogOptions
    from consensus.protocols.zmq_raft.node.served_log import (
        LogDescription,
        ServedLog,
    )
    from consensus.protocols.zmq_raft.node.sockets import (
        CurveClient,
        SocketKind,
        ZmqSocket,
        zmq_context,
    )
    from consensus.protocols.zmq_raft.wire.frames import (
        DEFAULT_LIMITS,
        REQUEST_ID_BYTES,
        Limits,
        ZmqRaftError,
    )
    from consensus.protocols.zmq_raft.wire.messages import (
        ChangeRefused,
        ChangeReply,
        ChangeRequest,
        ConfigReply,
        LogInfoReply,
        Peer,
        UpdateAccepted,
        UpdateCommitted,
        UpdateExpired,
        UpdateRedirect,
        UpdateReply,
        UpdateRequest,
    )
    from consensus.protocols.zmq_raft.wire.request_ids import Window

__all__ = [
    "DEFAULT_LIMITS",
    "REQUEST_ID_BYTES",
    "BoundEndpoint",
    "ChangeRefused",
    "ChangeReply",
    "ChangeRequest",
    "ClientError",
    "ClientOptions",
    "CommandCompactor",
    "Compacted",
    "CompactionFailed",
    "CompactionOptions",
    "ConfigRefusedError",
    "ConfigReply",
    "CurveClient",
    "EndpointAddress",
    "FollowedLog",
    "Limits",
    "ListedClients",
    "LogDescription",
    "LogEntry",
    "LogEntryKind",
    "LogInfoReply",
    "LogItem",
    "LogOptions",
    "NoAnswerError",
    "Peer",
    "PeerError",
    "PeerNotice",
    "PeerOptions",
    "RequestExpiredError",
    "ServedLog",
    "SnapshotPart",
    "SocketKind",
    "UpdateAccepted",
    "UpdateCommitted",
    "UpdateExpired",
    "UpdateRedirect",
    "UpdateReply",
    "UpdateRequest",
    "Window",
    "ZmqRaftClient",
    "ZmqRaftError",
    "ZmqRaftPeer",
    "ZmqSocket",
    "bound_endpoint",
    "connect",
    "open_peer",
    "zmq_context",
]

_HOMES: Final = {
    "consensus.protocols.zmq_raft.node.bound_endpoint": (
        "BoundEndpoint",
        "EndpointAddress",
        "FollowedLog",
        "ListedClients",
        "bound_endpoint",
    ),
    "consensus.protocols.zmq_raft.node.client": (
        "ClientError",
        "ConfigRefusedError",
        "NoAnswerError",
        "RequestExpiredError",
        "ZmqRaftClient",
        "connect",
    ),
    "consensus.protocols.zmq_raft.node.client_links": ("ClientOptions",),
    "consensus.protocols.zmq_raft.node.compaction": (
        "CommandCompactor",
        "Compacted",
        "CompactionFailed",
        "CompactionOptions",
    ),
    "consensus.protocols.zmq_raft.node.log_reader": (
        "LogEntry",
        "LogEntryKind",
        "LogItem",
        "SnapshotPart",
    ),
    "consensus.protocols.zmq_raft.node.open_peer": (
        "PeerError",
        "PeerNotice",
        "PeerOptions",
        "ZmqRaftPeer",
        "open_peer",
    ),
    "consensus.protocols.zmq_raft.node.replicated_log": ("LogOptions",),
    "consensus.protocols.zmq_raft.node.served_log": (
        "LogDescription",
        "ServedLog",
    ),
    "consensus.protocols.zmq_raft.node.sockets": (
        "CurveClient",
        "SocketKind",
        "ZmqSocket",
        "zmq_context",
    ),
    "consensus.protocols.zmq_raft.wire.frames": (
        "DEFAULT_LIMITS",
        "REQUEST_ID_BYTES",
        "Limits",
        "ZmqRaftError",
    ),
    "consensus.protocols.zmq_raft.wire.messages": (
        "ChangeRefused",
        "ChangeReply",
        "ChangeRequest",
        "ConfigReply",
        "LogInfoReply",
        "Peer",
        "UpdateAccepted",
        "UpdateCommitted",
        "UpdateExpired",
        "UpdateRedirect",
        "UpdateReply",
        "UpdateRequest",
    ),
    "consensus.protocols.zmq_raft.wire.request_ids": ("Window",),
}

if not TYPE_CHECKING:  # mypy would take any name for one of the face

    def __getattr__(name: str) -> Any:
        """Fetch a public name from its home."""
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(home), name)
        raise AttributeError(f"module 'consensus.protocols.zmq_raft' has no attribute {name!r}")
