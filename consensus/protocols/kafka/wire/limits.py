"""The one error of KRaft's decoders, the limits on what they take, and the names that every part shares.

Kafka counts what Raft counts under other names. Inside this folder Kafka's words are used; the core has Raft's.

    Kafka                       core
    leader epoch                term (a signed integer of 32 bits here)
    offset of a record          index - 1
    log end offset, exclusive   index of the last entry
    high watermark, exclusive   commit index
    replica id, directory id    `ReplicaKey`

The log is one partition of one topic. A UUID is written as Kafka's tools write it, in URL-safe Base64 without padding.

A module of its own, because every other one of the wire needs it.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final
from uuid import UUID

TOPIC_NAME: Final = "__cluster_metadata"
TOPIC_ID: Final = UUID(int=1)


@dataclass(frozen=True, slots=True)
class Topic:
    """What the servers of a quorum call its log, whose only partition is 0: Fetch by the id, all else by the name."""

    name: str = TOPIC_NAME
    id: UUID = TOPIC_ID


PARTITION: Final = 0
ZERO_UUID: Final = UUID(int=0)
"""Stands for none."""
NO_REPLICA: Final = -1
"""In the place of a replica's id: a consumer; in that of a leader's: it is not known."""
NO_EPOCH: Final = -1
MAX_EPOCH: Final = 2**31 - 1
_UUID_TEXT_LENGTH: Final = 22


class KafkaWireError(ValueError):
    """These bytes or values are no message, batch or record of Kafka's; the text says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message may have. Kafka's controller appends batches of up to 8 MiB or 10,000 records."""

    max_request_bytes: int = 16 * 1024 * 1024
    max_response_bytes: int = 64 * 1024 * 1024
    max_request_elements: int = 2_000
    """Of all arrays of one request together: an element of two bytes takes hundreds in memory, and requests wait for
    their answers by the hundred. There is one topic to ask for, of one partition."""
    max_elements: int = 100_000
    """Of all arrays of one response together."""
    max_batch_bytes: int = 16 * 1024 * 1024
    """Of one record batch, compressed and uncompressed."""
    max_batch_records: int = 100_000
    max_record_bytes: int = 10 * 1024 * 1024 - 64
    """With what an entry has before it, a record fits the core's limit on a command."""
    max_fetched_entries: int = 131_072
    max_fetched_bytes: int = 32 * 1024 * 1024
    """Of the records of one Fetch answer, uncompressed; the batch with which either is reached is the last one read."""
    max_headers: int = 1_000
    """Of one record."""
    max_batch_headers: int = 200_000
    """Of all records of one batch: a header of two bytes would take a hundred in memory."""
    max_voters: int = 64
    max_listeners: int = 16
    """Of one voter."""
    max_text_bytes: int = 255
    """Of a host, the name of a listener, a feature."""


DEFAULT_LIMITS: Final = Limits()


def uuid_text(uuid: UUID | bytes) -> str:
    """A UUID as Kafka's tools print it: 22 characters of URL-safe Base64."""
    raw = uuid.bytes if isinstance(uuid, UUID) else uuid
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def uuid_of_text(text: str) -> UUID:
    """Reverse of `uuid_text`; raises `KafkaWireError`."""
    try:
        uuid = UUID(bytes=urlsafe_b64decode(text + "=="))
    except ValueError as error:
        raise KafkaWireError(
            f"{text!r} is not a UUID: Kafka writes a UUID as 22 characters of URL-safe Base64"
        ) from error
    if len(text) != _UUID_TEXT_LENGTH or uuid_text(uuid) != text:
        raise KafkaWireError(f"{text!r} is not a UUID: Kafka writes a UUID as 22 characters of URL-safe Base64")
    return uuid
