"""The one error of the decoders for Kafka's protocol, their limits, and common names.

Kafka and Raft count the same things under different names. This folder uses Kafka's words; the core has Raft's.

    Kafka                       core
    leader epoch                term (a signed integer of 32 bits here)
    offset of a record          index - 1
    log end offset, exclusive   index of the last entry
    high watermark, exclusive   commit index
    replica id, directory id    `ReplicaKey`

The log is one partition of one topic. A UUID is written as Kafka's tools write it, in URL-safe Base64 without padding.

This is a separate module because most modules of this folder need it.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final
from uuid import UUID

from msgspec import Struct

TOPIC_NAME: Final = "__cluster_metadata"
TOPIC_ID: Final = UUID(int=1)


class Topic(Struct, frozen=True):
    """Name and id of a quorum's log, whose only partition is 0. Only Fetch uses the id, from version 13 on."""

    name: str = TOPIC_NAME
    id: UUID = TOPIC_ID


PARTITION: Final = 0
ZERO_UUID: Final = UUID(int=0)
"""The UUID of an absent value."""
NO_REPLICA: Final = -1
"""Replica id of a consumer; leader id of an unknown leader."""
NO_EPOCH: Final = -1
MAX_EPOCH: Final = 2**31 - 1
_UUID_TEXT_LENGTH: Final = 22


class KafkaWireError(ValueError):
    """Bytes or values that are not a message, batch or record of Kafka; the text is the reason."""


class Limits(Struct, frozen=True):
    """Limits of one message. Kafka's controller appends batches of up to 8 MiB or 10,000 records."""

    max_request_bytes: int = 16 * 1024 * 1024
    max_response_bytes: int = 64 * 1024 * 1024
    max_request_elements: int = 2_000
    """Limit of all arrays of one request together: an element of two bytes takes hundreds in memory. Hundreds of
    requests may wait for their replies. Clients need few elements, since there is only one topic with one partition.
    """
    max_elements: int = 100_000
    """Limit of all arrays of one response together."""
    max_batch_bytes: int = 16 * 1024 * 1024
    """Limit of one record batch, compressed and uncompressed."""
    max_batch_records: int = 100_000
    max_record_bytes: int = 10 * 1024 * 1024 - 64
    """A record of this size, with the head of its entry, is within the core's limit for a command."""
    max_fetched_entries: int = 131_072
    max_fetched_bytes: int = 32 * 1024 * 1024
    """Limit of the uncompressed records of one Fetch reply; the batch that reaches a limit is the last one read."""
    max_headers: int = 1_000
    """Limit of one record."""
    max_batch_headers: int = 200_000
    """Limit of all records of one batch: a header of two bytes would take a hundred in memory."""
    max_voters: int = 64
    max_listeners: int = 16
    """Limit of one voter."""
    max_text_bytes: int = 255
    """Limit of a host, the name of a listener, a feature."""


DEFAULT_LIMITS: Final = Limits()


def uuid_text(uuid: UUID | bytes) -> str:
    """Return a UUID as Kafka's tools print it: 22 characters of URL-safe Base64."""
    raw = uuid.bytes if isinstance(uuid, UUID) else uuid
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def uuid_of_text(text: str) -> UUID:
    """Reverse `uuid_text`; raises `KafkaWireError`."""
    try:
        uuid = UUID(bytes=urlsafe_b64decode(text + "=="))
    except ValueError as error:
        raise KafkaWireError(
            f"{text!r} is not a UUID: Kafka writes a UUID as 22 characters of URL-safe Base64"
        ) from error
    if len(text) != _UUID_TEXT_LENGTH or uuid_text(uuid) != text:
        raise KafkaWireError(f"{text!r} is not a UUID: Kafka writes a UUID as 22 characters of URL-safe Base64")
    return uuid
