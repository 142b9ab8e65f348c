"""Kafka's APIs and error codes by number, and the versions of each API that this package reads and writes.

The versions are those that kio has the schemas of, up to what Kafka 4.1 sends and at least back to what it still takes.
A listener serves of these what its services serve (`connections.service.ServedApi`); a client picks the newest version
that both sides have (`version_for`).

A module of its own, because messages, codec, listener and services need the numbers, and nothing else of each other.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self


class ApiKey(IntEnum):
    """The number of a kind of request, the module of its messages, and the versions that the codec has."""

    subject: str
    """Its messages are in `messages_{subject}`."""
    versions: tuple[int, int]

    if not TYPE_CHECKING:  # mypy would want all four to look a member up

        def __new__(cls, number: int, subject: str, lowest: int, highest: int) -> Self:
            """Make a member that is its number."""
            key = int.__new__(cls, number)
            key._value_, key.subject, key.versions = number, subject, (lowest, highest)
            return key

    PRODUCE = 0, "clients", 3, 13
    FETCH = 1, "clients", 4, 18
    LIST_OFFSETS = 2, "clients", 1, 10
    METADATA = 3, "clients", 0, 13
    OFFSET_COMMIT = 8, "groups", 2, 9
    OFFSET_FETCH = 9, "groups", 1, 9
    FIND_COORDINATOR = 10, "groups", 0, 6
    JOIN_GROUP = 11, "groups", 0, 9
    HEARTBEAT = 12, "groups", 0, 4
    LEAVE_GROUP = 13, "groups", 0, 5
    SYNC_GROUP = 14, "groups", 0, 5
    DESCRIBE_GROUPS = 15, "groups", 0, 6
    LIST_GROUPS = 16, "groups", 0, 5
    SASL_HANDSHAKE = 17, "clients", 0, 1
    API_VERSIONS = 18, "clients", 0, 4
    INIT_PRODUCER_ID = 22, "clients", 0, 5
    OFFSET_FOR_LEADER_EPOCH = 23, "clients", 2, 4
    DESCRIBE_CONFIGS = 32, "admin", 1, 4
    SASL_AUTHENTICATE = 36, "clients", 0, 2
    VOTE = 52, "quorum", 0, 2
    BEGIN_QUORUM_EPOCH = 53, "quorum", 0, 1
    END_QUORUM_EPOCH = 54, "quorum", 0, 1
    DESCRIBE_QUORUM = 55, "admin", 0, 2
    FETCH_SNAPSHOT = 59, "quorum", 0, 1
    DESCRIBE_CLUSTER = 60, "admin", 0, 2
    BROKER_REGISTRATION = 62, "admin", 0, 4
    BROKER_HEARTBEAT = 63, "admin", 0, 1
    CONTROLLER_REGISTRATION = 70, "admin", 0, 0
    ADD_RAFT_VOTER = 80, "admin", 0, 1
    REMOVE_RAFT_VOTER = 81, "admin", 0, 0
    UPDATE_RAFT_VOTER = 82, "admin", 0, 0


VERSIONS: Final[Mapping[int, tuple[int, int]]] = MappingProxyType({key: key.versions for key in ApiKey})
"""Of each API the lowest and the highest version that the codec has."""


def version_for(api_key: int, offered: Mapping[int, tuple[int, int]]) -> int | None:
    """The newest version of an API that the codec has and that a server offers; None: there is none."""
    if api_key not in VERSIONS or api_key not in offered:
        return None
    ours, theirs = VERSIONS[api_key], offered[api_key]
    version = min(ours[1], theirs[1])
    return version if version >= max(ours[0], theirs[0]) else None


class ErrorCode(IntEnum):
    """Kafka's error codes. A message may carry others, from a newer server: fields of messages are plain numbers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


def error_name(error_code: int) -> str:
    """An error code as Kafka writes it in its documents, for people."""
    return ErrorCode(error_code).name if error_code in ErrorCode.__members__.values() else f"error {error_code}"
