from .core.drops import CountedReason as CountedReason, Drop as Drop
from .core.effects import (
    ChangeOutcome as ChangeOutcome,
    ChangeRefusal as ChangeRefusal,
    ConfigurationChanged as ConfigurationChanged,
    ConfigurationResolved as ConfigurationResolved,
    Install as Install,
    Outcome as Outcome,
    Persist as Persist,
    ProposalResolved as ProposalResolved,
    ReadEntries as ReadEntries,
    ReadReady as ReadReady,
    ReadRefused as ReadRefused,
    ReadSnapshot as ReadSnapshot,
    Role as Role,
    RoleChanged as RoleChanged,
    SnapshotChange as SnapshotChange,
    StoreChunk as StoreChunk,
    TransferEnded as TransferEnded,
    TransferOutcome as TransferOutcome,
)
from .core.entry_data import (
    configuration_entry as configuration_entry,
    decode_configuration as decode_configuration,
    decode_no_op as decode_no_op,
    encode_configuration as encode_configuration,
    no_op_entry as no_op_entry,
)
from .core.features import (
    GARLIC_FARM as GARLIC_FARM,
    KRAFT as KRAFT,
    KRAFT_STATIC as KRAFT_STATIC,
    Extensions as Extensions,
    Features as Features,
    LeaderRecords as LeaderRecords,
)
from .core.messages import Reply as Reply, Request as Request
from .core.model import (
    COMMAND as COMMAND,
    MAX_MEMBERS as MAX_MEMBERS,
    MAX_NUMBER as MAX_NUMBER,
    ORIGIN as ORIGIN,
    Configuration as Configuration,
    Entry as Entry,
    EntryKind as EntryKind,
    HardState as HardState,
    Index as Index,
    LogId as LogId,
    NoOp as NoOp,
    ReplicaKey as ReplicaKey,
    endpoint_text as endpoint_text,
    Server as Server,
    ServerId as ServerId,
    SnapshotDescription as SnapshotDescription,
    Term as Term,
    integer_id as integer_id,
)
from .core.options import Options as Options, PolicyTimes as PolicyTimes, i2p as i2p, lan as lan, local as local
from .core.raft import Raft as Raft
from .core.replica import TERM_STEP_MAX as TERM_STEP_MAX
from .core.status import FollowerProgress as FollowerProgress, RaftDescription as RaftDescription
from .core.words import counted as counted
from .server.block_nursery import block_nursery as block_nursery, single_errors as single_errors
from .server.callbacks import log_failure as log_failure, run_task as run_task
from .server.errors import (
    HaltedError as HaltedError,
    NotLeaderError as NotLeaderError,
    ServerBusyError as ServerBusyError,
    ServerStoppedError as ServerStoppedError,
)
from .server.event_loop import next_tick_s as next_tick_s, now_ms as now_ms, sleep_to_tick as sleep_to_tick
from .server.histogram import Histogram as Histogram
from .server.interfaces import (
    ContentChecks as ContentChecks,
    Receiver as Receiver,
    StateMachine as StateMachine,
    Transport as Transport,
    next_call as next_call,
)
from .server.storage_reads import SnapshotChunk as SnapshotChunk
from .server.parts import ServerParts as ServerParts
from .server.opening import open_server as open_server
from .server.opening import prepare_server as prepare_server
from .server.options import ServerOptions as ServerOptions
from .server.server import ConsensusServer as ConsensusServer
from .server.status import (
    ContentRejected as ContentRejected,
    DiskFull as DiskFull,
    Notice as Notice,
    ShellDrop as ShellDrop,
)
from .server.task_owner import TaskOwner as TaskOwner
from .storage.disk import StorageError as StorageError
from .storage.planner import StorageOptions as StorageOptions
