"""Kafka's APIs and error codes by number, and the versions of each API that this package reads and writes.

All versions have schemas in the library kio. They begin at or before the oldest version that Kafka 4.1 accepts, and end
at the version that it sends. A listener serves the versions of its services (`connections.service.ServedApi`); a client
picks the newest common version (`version_for`).

This is a separate module because messages, codec, listener and services all need these numbers.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self


class ApiKey(IntEnum):
    """The number of a kind of request, the module of its messages, and the versions that the codec has."""

    subject: str
    """Subject of the API, whose messages are in the module `messages_{subject}`."""
    versions: tuple[int, int]

    if not TYPE_CHECKING:  # mypy would require all four arguments to look up a member

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
"""The lowest and the highest version of each API in the codec."""


def version_for(api_key: int, offered: Mapping[int, tuple[int, int]]) -> int | None:
    """Return the newest version of an API in the codec and in a server's offer, or None."""
    if api_key not in VERSIONS or api_key not in offered:
        return None
    known, theirs = VERSIONS[api_key], offered[api_key]
    version = min(known[1], theirs[1])
    return version if version >= max(known[0], theirs[0]) else None


class ErrorCode(IntEnum):
    """Kafka's error codes that the servers here send, or receive from Kafka's controllers.

    Fields of messages are plain numbers, since a message may carry another code. `error_name` shows its number.
    """

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
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
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_PRODUCER_ID_MAPPING = 49
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    INCONSISTENT_VOTER_SET = 94
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127


def error_name(error_code: int) -> str:
    """Return the name of an error code in Kafka's documents, or its number if it is not listed here."""
    return ErrorCode(error_code).name if error_code in ErrorCode.__members__.values() else f"error {error_code}"
