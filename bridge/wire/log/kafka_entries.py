"""The JSON of entries for Kafka's clients ⇄ `bridge.core.log.records`.

    {"kafkaProducer": {"name": TEXT, "principal": HASH}}              a node's, for a client that produces
    {"kafkaOffset": {"group": TEXT, "offset": N, "epoch": N, "metadata": TEXT, "principal": HASH}}
                                                                      the leader's, for a consumer group

`principal` is the user, and is in entries from `BOUNDS_LEVEL` on (`bridge.core.state.kafka_clients.principal_hash`).
Older versions do not read it, so a value that is no such hash counts as none and does not make the entry foreign.

Both are of their kind only if they have no member that tells another kind. A version that does not know them takes
them for foreign entries; so would an entry of two kinds be one thing there and another here. For the same reason
`request` counts as it does in a foreign entry.

A module of its own, because these entries serve other programs' clients and the farm does not act on them.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct

from bridge.core.log.records import GroupOffset, KafkaRecord, ProducerStart
from bridge.core.state.kafka_clients import is_principal
from bridge.wire.log.fields import ABSENT, Count, Request, value_or_none

KINDS: Final = ("kafkaProducer", "kafkaOffset")
GROUP_CHARACTERS: Final = 255
METADATA_CHARACTERS: Final = 1024


class _Producer(Struct, omit_defaults=True):
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    principal: Raw = ABSENT


class _ProducerEntry(Struct, rename="camel", omit_defaults=True):
    kafka_producer: _Producer
    request: Request | None = None


class _Offset(Struct, omit_defaults=True):
    group: Annotated[str, Meta(min_length=1, max_length=GROUP_CHARACTERS)]
    offset: Count
    epoch: Annotated[int, Meta(ge=-1, lt=2**31)] = -1
    metadata: Annotated[str, Meta(max_length=METADATA_CHARACTERS)] = ""
    principal: Raw = ABSENT


class _OffsetEntry(Struct, rename="camel", omit_defaults=True):
    kafka_offset: _Offset
    request: Request | None = None


_producer = msgspec.json.Decoder(_ProducerEntry)
_offset = msgspec.json.Decoder(_OffsetEntry)


def decode_kafka(kind: str, data: bytes) -> KafkaRecord:
    """What an entry of this kind means; raises `ValueError`."""
    if kind == "kafkaProducer":
        found = _producer.decode(data)
        return ProducerStart(found.kafka_producer.name, found.request, _principal(found.kafka_producer.principal))
    noted = _offset.decode(data)
    told = noted.kafka_offset
    return GroupOffset(told.group, told.offset, told.epoch, told.metadata, noted.request, _principal(told.principal))


def encode_kafka(record: KafkaRecord) -> Struct:
    """As it is written."""
    match record:
        case ProducerStart(name, request, principal):
            return _ProducerEntry(_Producer(name, _written(principal)), request)
        case GroupOffset(group, offset, leader_epoch, metadata, request, principal):
            return _OffsetEntry(_Offset(group, offset, leader_epoch, metadata, _written(principal)), request)


def _principal(member: Raw) -> str:
    value = value_or_none(member)
    return value if isinstance(value, str) and is_principal(value) else ""


def _written(principal: str) -> Raw:
    return Raw(msgspec.json.encode(principal)) if principal else ABSENT
