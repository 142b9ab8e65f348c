"""KRaft, Kafka's Raft (KIP-595), over kio's messages (the extra `kafka`): voters, observers, and a topic for clients.

What is named here is fetched when it is first used, so nothing of kio is loaded before it is needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from consensus.protocols.kraft.groups.coordinator import GroupOptions
    from consensus.protocols.kraft.groups.service import GroupService
    from consensus.protocols.kraft.node.connections.connection import (
        ConnectionOptions,
        KafkaConnection,
        KafkaConnectionError,
        connect,
        open_connection,
    )
    from consensus.protocols.kraft.node.connections.listener import KafkaListener, ListenerOptions, open_listener
    from consensus.protocols.kraft.node.connections.security import (
        ClientSecurity,
        ListenerSecurity,
        Login,
        client_context,
        server_context,
    )
    from consensus.protocols.kraft.node.connections.service import AskElsewhereError, Caller, ServedApi, Service
    from consensus.protocols.kraft.node.operators.log_records import (
        LogRecord,
        LogStart,
        control_text,
        stored_fault,
        stored_records,
    )
    from consensus.protocols.kraft.node.operators.quorum_client import (
        ChangeAnswer,
        QuorumClient,
        QuorumClientError,
        QuorumDescription,
        QuorumReplica,
    )
    from consensus.protocols.kraft.node.operators.quorum_directory import (
        META_FILE,
        InitialVoter,
        QuorumDirectory,
        QuorumDirectoryError,
        format_directory,
        new_uuid,
        parse_initial_voters,
        read_directory,
    )
    from consensus.protocols.kraft.node.operators.security_settings import (
        ServerSecurity,
        scram_users,
        server_security,
        split_settings,
        tool_security,
    )
    from consensus.protocols.kraft.node.operators.settings import (
        Endpoint,
        SettingsError,
        StaticVoter,
        VoterSettings,
        address,
        check_settings,
        endpoints,
        parse_properties,
        voter_settings,
    )
    from consensus.protocols.kraft.node.replica.announcing import AddressRefused
    from consensus.protocols.kraft.node.replica.log_topic import LogTopic
    from consensus.protocols.kraft.node.replica.metrics import STATES, QuorumFigures
    from consensus.protocols.kraft.node.replica.open_voter import (
        KraftVoter,
        VoterError,
        VoterOptions,
        open_voter,
    )
    from consensus.protocols.kraft.node.replica.peer_transport import KraftTransport, RetryTimes
    from consensus.protocols.kraft.node.replica.quorum_service import FetchDispatch, QuorumService, fetch_dispatch
    from consensus.protocols.kraft.node.topic.batch_cache import BatchCache
    from consensus.protocols.kraft.node.topic.configs_service import ConfigsService
    from consensus.protocols.kraft.node.topic.consumer_service import ConsumerService
    from consensus.protocols.kraft.node.topic.epoch_ends import end_of_term
    from consensus.protocols.kraft.node.topic.produce_service import ProduceService
    from consensus.protocols.kraft.node.topic.quorum_view import QuorumView, QuorumViewService, ReplicaView
    from consensus.protocols.kraft.node.topic.served_topic import (
        Broker,
        CommittedOffset,
        GroupOffsets,
        OffsetOutOfRangeError,
        Produced,
        ProduceRefusedError,
        ProducerId,
        ServedTopic,
        TopicState,
    )
    from consensus.protocols.kraft.wire.apis import ErrorCode, error_name
    from consensus.protocols.kraft.wire.limits import DEFAULT_LIMITS, KafkaWireError, Limits, uuid_of_text, uuid_text
    from consensus.protocols.kraft.wire.record_batches import encode_tail, encode_tails
    from consensus.protocols.kraft.wire.records import Compression, Record, RecordBatch
    from consensus.protocols.kraft.wire.scram import (
        Credentials,
        Mechanism,
        ScramCredential,
        ScramUsers,
        UnknownUsers,
        scram_credential,
    )

__all__ = [
    "DEFAULT_LIMITS",
    "META_FILE",
    "STATES",
    "AddressRefused",
    "AskElsewhereError",
    "BatchCache",
    "Broker",
    "Caller",
    "ChangeAnswer",
    "ClientSecurity",
    "CommittedOffset",
    "Compression",
    "ConfigsService",
    "ConnectionOptions",
    "ConsumerService",
    "Credentials",
    "Endpoint",
    "ErrorCode",
    "FetchDispatch",
    "GroupOffsets",
    "GroupOptions",
    "GroupService",
    "InitialVoter",
    "KafkaConnection",
    "KafkaConnectionError",
    "KafkaListener",
    "KafkaWireError",
    "KraftTransport",
    "KraftVoter",
    "Limits",
    "ListenerOptions",
    "ListenerSecurity",
    "LogRecord",
    "LogStart",
    "LogTopic",
    "Login",
    "Mechanism",
    "OffsetOutOfRangeError",
    "ProduceRefusedError",
    "ProduceService",
    "Produced",
    "ProducerId",
    "QuorumClient",
    "QuorumClientError",
    "QuorumDescription",
    "QuorumDirectory",
    "QuorumDirectoryError",
    "QuorumFigures",
    "QuorumReplica",
    "QuorumService",
    "QuorumView",
    "QuorumViewService",
    "Record",
    "RecordBatch",
    "ReplicaView",
    "RetryTimes",
    "ScramCredential",
    "ScramUsers",
    "ServedApi",
    "ServedTopic",
    "ServerSecurity",
    "Service",
    "SettingsError",
    "StaticVoter",
    "TopicState",
    "UnknownUsers",
    "VoterError",
    "VoterOptions",
    "VoterSettings",
    "address",
    "check_settings",
    "client_context",
    "connect",
    "control_text",
    "encode_tail",
    "encode_tails",
    "end_of_term",
    "endpoints",
    "error_name",
    "fetch_dispatch",
    "format_directory",
    "new_uuid",
    "open_connection",
    "open_listener",
    "open_voter",
    "parse_initial_voters",
    "parse_properties",
    "read_directory",
    "scram_credential",
    "scram_users",
    "server_context",
    "server_security",
    "split_settings",
    "stored_fault",
    "stored_records",
    "tool_security",
    "uuid_of_text",
    "uuid_text",
    "voter_settings",
]

_HOMES: Final = {
    "consensus.protocols.kraft.groups.coordinator": ("GroupOptions",),
    "consensus.protocols.kraft.groups.service": ("GroupService",),
    "consensus.protocols.kraft.node.connections.connection": (
        "ConnectionOptions",
        "KafkaConnection",
        "KafkaConnectionError",
        "connect",
        "open_connection",
    ),
    "consensus.protocols.kraft.node.connections.listener": ("KafkaListener", "ListenerOptions", "open_listener"),
    "consensus.protocols.kraft.node.connections.security": (
        "ClientSecurity",
        "ListenerSecurity",
        "Login",
        "client_context",
        "server_context",
    ),
    "consensus.protocols.kraft.node.connections.service": ("AskElsewhereError", "Caller", "ServedApi", "Service"),
    "consensus.protocols.kraft.node.operators.log_records": (
        "LogRecord",
        "LogStart",
        "control_text",
        "stored_fault",
        "stored_records",
    ),
    "consensus.protocols.kraft.node.operators.quorum_client": (
        "ChangeAnswer",
        "QuorumClient",
        "QuorumClientError",
        "QuorumDescription",
        "QuorumReplica",
    ),
    "consensus.protocols.kraft.node.operators.quorum_directory": (
        "META_FILE",
        "InitialVoter",
        "QuorumDirectory",
        "QuorumDirectoryError",
        "format_directory",
        "new_uuid",
        "parse_initial_voters",
        "read_directory",
    ),
    "consensus.protocols.kraft.node.operators.security_settings": (
        "ServerSecurity",
        "scram_users",
        "server_security",
        "split_settings",
        "tool_security",
    ),
    "consensus.protocols.kraft.node.operators.settings": (
        "Endpoint",
        "SettingsError",
        "StaticVoter",
        "VoterSettings",
        "address",
        "check_settings",
        "endpoints",
        "parse_properties",
        "voter_settings",
    ),
    "consensus.protocols.kraft.node.replica.log_topic": ("LogTopic",),
    "consensus.protocols.kraft.node.replica.metrics": ("STATES", "QuorumFigures"),
    "consensus.protocols.kraft.node.replica.open_voter": (
        "KraftVoter",
        "VoterError",
        "VoterOptions",
        "open_voter",
    ),
    "consensus.protocols.kraft.node.replica.announcing": ("AddressRefused",),
    "consensus.protocols.kraft.node.replica.peer_transport": ("KraftTransport", "RetryTimes"),
    "consensus.protocols.kraft.node.replica.quorum_service": ("FetchDispatch", "QuorumService", "fetch_dispatch"),
    "consensus.protocols.kraft.node.topic.batch_cache": ("BatchCache",),
    "consensus.protocols.kraft.node.topic.configs_service": ("ConfigsService",),
    "consensus.protocols.kraft.node.topic.consumer_service": ("ConsumerService",),
    "consensus.protocols.kraft.node.topic.epoch_ends": ("end_of_term",),
    "consensus.protocols.kraft.node.topic.produce_service": ("ProduceService",),
    "consensus.protocols.kraft.node.topic.quorum_view": ("QuorumView", "QuorumViewService", "ReplicaView"),
    "consensus.protocols.kraft.node.topic.served_topic": (
        "Broker",
        "CommittedOffset",
        "GroupOffsets",
        "OffsetOutOfRangeError",
        "ProduceRefusedError",
        "Produced",
        "ProducerId",
        "ServedTopic",
        "TopicState",
    ),
    "consensus.protocols.kraft.wire.apis": ("ErrorCode", "error_name"),
    "consensus.protocols.kraft.wire.limits": (
        "DEFAULT_LIMITS",
        "KafkaWireError",
        "Limits",
        "uuid_of_text",
        "uuid_text",
    ),
    "consensus.protocols.kraft.wire.record_batches": ("encode_tail", "encode_tails"),
    "consensus.protocols.kraft.wire.records": ("Compression", "Record", "RecordBatch"),
    "consensus.protocols.kraft.wire.scram": (
        "Credentials",
        "Mechanism",
        "ScramCredential",
        "ScramUsers",
        "UnknownUsers",
        "scram_credential",
    ),
}

if not TYPE_CHECKING:  # mypy would take any name for one of the face

    def __getattr__(name: str) -> Any:
        """Fetch a public name from its home."""
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(home), name)
        raise AttributeError(f"module 'consensus.protocols.kraft' has no attribute {name!r}")
