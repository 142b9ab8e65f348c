from .groups.coordinator import GroupOptions as GroupOptions
from .groups.service import GroupService as GroupService
from .node.connections.connection import (
    ConnectionOptions as ConnectionOptions,
    KafkaConnection as KafkaConnection,
    KafkaConnectionError as KafkaConnectionError,
    connect as connect,
    open_connection as open_connection,
)
from .node.connections.listener import (
    KafkaListener as KafkaListener,
    ListenerOptions as ListenerOptions,
    open_listener as open_listener,
)
from .node.connections.security import (
    ClientSecurity as ClientSecurity,
    ListenerSecurity as ListenerSecurity,
    Login as Login,
    client_context as client_context,
    server_context as server_context,
)
from .node.connections.service import (
    AskElsewhereError as AskElsewhereError,
    Caller as Caller,
    ServedApi as ServedApi,
    Service as Service,
)
from .node.operators.log_records import (
    LogRecord as LogRecord,
    LogStart as LogStart,
    control_text as control_text,
    stored_fault as stored_fault,
    stored_records as stored_records,
)
from .node.operators.quorum_client import (
    ChangeAnswer as ChangeAnswer,
    QuorumClient as QuorumClient,
    QuorumClientError as QuorumClientError,
    QuorumDescription as QuorumDescription,
    QuorumReplica as QuorumReplica,
)
from .node.operators.quorum_directory import (
    META_FILE as META_FILE,
    InitialVoter as InitialVoter,
    QuorumDirectory as QuorumDirectory,
    QuorumDirectoryError as QuorumDirectoryError,
    format_directory as format_directory,
    new_uuid as new_uuid,
    parse_initial_voters as parse_initial_voters,
    read_directory as read_directory,
)
from .node.operators.security_settings import (
    scram_users as scram_users,
    server_security as server_security,
    split_settings as split_settings,
    tool_security as tool_security,
)
from .node.operators.settings import (
    Endpoint as Endpoint,
    SettingsError as SettingsError,
    StaticVoter as StaticVoter,
    VoterSettings as VoterSettings,
    address as address,
    endpoints as endpoints,
    parse_properties as parse_properties,
    voter_settings as voter_settings,
)
from .node.replica.announcing import AddressRefused as AddressRefused
from .node.replica.metrics import STATES as STATES, QuorumFigures as QuorumFigures
from .node.replica.open_voter import (
    KraftVoter as KraftVoter,
    VoterError as VoterError,
    VoterOptions as VoterOptions,
    open_voter as open_voter,
)
from .node.replica.peer_transport import KraftTransport as KraftTransport, RetryTimes as RetryTimes
from .node.replica.quorum_service import FetchDispatch as FetchDispatch, QuorumService as QuorumService
from .node.topic.batch_cache import BatchCache as BatchCache
from .node.topic.configs_service import ConfigsService as ConfigsService
from .node.topic.consumer_service import ConsumerService as ConsumerService
from .node.topic.epoch_ends import end_of_term as end_of_term
from .node.topic.produce_service import ProduceService as ProduceService
from .node.topic.quorum_view import (
    QuorumView as QuorumView,
    QuorumViewService as QuorumViewService,
    ReplicaView as ReplicaView,
)
from .node.topic.served_topic import (
    Broker as Broker,
    CommittedOffset as CommittedOffset,
    GroupOffsets as GroupOffsets,
    OffsetOutOfRangeError as OffsetOutOfRangeError,
    Produced as Produced,
    ProduceRefusedError as ProduceRefusedError,
    ProducerId as ProducerId,
    ServedTopic as ServedTopic,
    TopicState as TopicState,
)
from .wire.apis import ErrorCode as ErrorCode, error_name as error_name
from .wire.limits import (
    DEFAULT_LIMITS as DEFAULT_LIMITS,
    KafkaWireError as KafkaWireError,
    Limits as Limits,
    uuid_of_text as uuid_of_text,
    uuid_text as uuid_text,
)
from .wire.record_batches import encode_tail as encode_tail, encode_tails as encode_tails
from .wire.records import Compression as Compression, Record as Record, RecordBatch as RecordBatch
from .wire.scram import (
    Credentials as Credentials,
    Mechanism as Mechanism,
    ScramCredential as ScramCredential,
    ScramUsers as ScramUsers,
    UnknownUsers as UnknownUsers,
    scram_credential as scram_credential,
)
