from .counters import EndpointDrop as EndpointDrop, EndpointEvent as EndpointEvent, SocketDrop as SocketDrop
from .endpoint.bound_endpoint import (
    BoundEndpoint as BoundEndpoint,
    EndpointAddress as EndpointAddress,
    ListedClients as ListedClients,
    bound_endpoint as bound_endpoint,
)
from .client.client import (
    ClientError as ClientError,
    ConfigRefusedError as ConfigRefusedError,
    NoAnswerError as NoAnswerError,
    RequestExpiredError as RequestExpiredError,
    ZmqRaftClient as ZmqRaftClient,
    connect as connect,
)
from .client.links import ZmqClientOptions as ZmqClientOptions
from .peer.compaction import (
    CommandCompactor as CommandCompactor,
    Compacted as Compacted,
    CompactionFailed as CompactionFailed,
    CompactionOptions as CompactionOptions,
)
from .client.log_reader import (
    CommittedEntry as CommittedEntry,
    LogEntryKind as LogEntryKind,
    LogItem as LogItem,
    SnapshotPart as SnapshotPart,
)
from .peer.open_peer import (
    PeerError as PeerError,
    PeerNotice as PeerNotice,
    PeerOptions as PeerOptions,
    ZmqRaftPeer as ZmqRaftPeer,
    open_peer as open_peer,
)
from .peer.replicated_log import LogOptions as LogOptions
from .endpoint.served_log import (
    LogDescription as LogDescription,
    ServedLog as ServedLog,
    SnapshotUnreadableError as SnapshotUnreadableError,
)
from .sockets import (
    CurveClient as CurveClient,
    SocketKind as SocketKind,
    ZmqSocket as ZmqSocket,
    zmq_context as zmq_context,
)
from .wire.frames import (
    DEFAULT_LIMITS as DEFAULT_LIMITS,
    REQUEST_ID_BYTES as REQUEST_ID_BYTES,
    FrameLimits as FrameLimits,
    ZmqRaftError as ZmqRaftError,
)
from .wire.messages import (
    ChangeRefused as ChangeRefused,
    ChangeReply as ChangeReply,
    ChangeRequest as ChangeRequest,
    ConfigReply as ConfigReply,
    LogInfoReply as LogInfoReply,
    Peer as Peer,
    UpdateAccepted as UpdateAccepted,
    UpdateCommitted as UpdateCommitted,
    UpdateExpired as UpdateExpired,
    UpdateRedirect as UpdateRedirect,
    UpdateReply as UpdateReply,
    UpdateRequest as UpdateRequest,
)
from .wire.request_ids import Window as Window
from .endpoint.broadcast import FollowedLog as FollowedLog
