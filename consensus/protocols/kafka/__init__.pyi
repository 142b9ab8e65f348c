from .connections.connection import (
    DialOptions as DialOptions,
    KafkaConnectionError as KafkaConnectionError,
    connect as connect,
    open_connection as open_connection,
)
from .connections.counters import ListenerClose as ListenerClose, ListenerEvent as ListenerEvent
from .connections.listener import (
    KafkaListener as KafkaListener,
    ListenerOptions as ListenerOptions,
    open_listener as open_listener,
)
from .connections.security import (
    ClientSecurity as ClientSecurity,
    ListenerSecurity as ListenerSecurity,
    Login as Login,
)
from .connections.service import (
    AskElsewhereError as AskElsewhereError,
    Caller as Caller,
    Service as Service,
)
from .groups.coordinator import GroupOptions as GroupOptions
from .groups.service import GroupService as GroupService
from .topic.batch_cache import BatchCache as BatchCache
from .topic.configs_service import ConfigsService as ConfigsService
from .topic.consumer_service import ConsumerService as ConsumerService
from .topic.epoch_ends import end_of_term as end_of_term
from .topic.produce_service import ProduceService as ProduceService
from .topic.quorum_view import (
    QuorumView as QuorumView,
    QuorumViewService as QuorumViewService,
    ReplicaView as ReplicaView,
)
from .topic.served_topic import (
    Broker as Broker,
    CommittedOffset as CommittedOffset,
    GroupOffsets as GroupOffsets,
    OffsetOutOfRangeError as OffsetOutOfRangeError,
    Produced as Produced,
    ProduceRefusedError as ProduceRefusedError,
    ProducerId as ProducerId,
    TopicState as TopicState,
)
from .wire.apis import (
    ErrorCode as ErrorCode,
)
from .wire.limits import (
    DEFAULT_LIMITS as DEFAULT_LIMITS,
    KafkaWireError as KafkaWireError,
    Limits as Limits,
    uuid_of_text as uuid_of_text,
    uuid_text as uuid_text,
)
from .wire.record_batches import (
    encode_tail as encode_tail,
    encode_tails as encode_tails,
)
from .wire.records import (
    Record as Record,
    RecordBatch as RecordBatch,
)
from .wire.scram import (
    UserSource as UserSource,
    Mechanism as Mechanism,
    ScramCredential as ScramCredential,
    UnknownUsers as UnknownUsers,
    scram_credential as scram_credential,
)
