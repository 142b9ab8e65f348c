"""The JSON of application entries ⇄ `bridge.core.log.records`.

    bytes ──▶ is one JSON object, ≤ 64 KiB? ──▶ which kind? ──▶ typed and in range? ──▶ Record
                        │                          │                   │
                        └──────────────────────────┴───────────────────┴──▶ Foreign(reason)

`decode` never raises. Any client that can reach a server can have bytes committed, and every replica must apply them:
an exception would stop the whole farm. For the same reason the result depends on the bytes alone, so that all replicas
agree.

An entry that the farm acts on also carries a proof (`bridge.wire.log.proof`). `EntryReader` gives the record together
with its verified author; `decode` alone says only what an entry would mean.

The keys are the proposal's where it gives them and lowerCamelCase otherwise; `docs/reference/application-json.md`
has the table.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Struct

from bridge.core.log.records import (
    Author,
    Clock,
    Foreign,
    IdentityRecord,
    KafkaRecord,
    OperatorCommand,
    ProvenRecord,
    Publication,
    Record,
    Report,
)
from bridge.wire.log import handover_entries, identity_entries, kafka_entries
from bridge.wire.log.fields import (
    BRACKETS_LIMIT,
    ENTRY_LIMIT_BYTES,
    ApplicationError,
    DestinationText,
    Milliseconds,
    Request,
    Seconds,
    ServerId,
    checked_destination,
)
from bridge.wire.log.operator_commands import (
    ClientEntry,
    CommandEntry,
    CorrectionEntry,
    CostEntry,
    ExclusionEntry,
    FactorsEntry,
    ForceEntry,
    RemovalEntry,
    from_command,
    to_command,
)
from bridge.wire.log.proof import Proof, ends_like_proof, proven
from bridge.wire.log.reports import ReportEntry, check_report, from_report, to_report

VERIFIED_LIMIT: Final = 1024
"""Proofs that a reader caches, some 200 bytes each: more than are in flight between submission and application."""
SUBMITTED_LIMIT: Final = 1024
SUBMITTED_LIMIT_BYTES: Final = 4096
"""How many decoded submissions a reader keeps, and how large one may be: about 4 MiB in all."""
_REASON_LIMIT: Final = 200
_COMMANDS: Final[dict[str, msgspec.json.Decoder[CommandEntry]]] = {
    "exclusion": msgspec.json.Decoder(ExclusionEntry),
    "cost": msgspec.json.Decoder(CostEntry),
    "force": msgspec.json.Decoder(ForceEntry),
    "factors": msgspec.json.Decoder(FactorsEntry),
    "removal": msgspec.json.Decoder(RemovalEntry),
    "client": msgspec.json.Decoder(ClientEntry),
    "correction": msgspec.json.Decoder(CorrectionEntry),
}
_KINDS: Final = ("router", "clock", "publication", *identity_entries.KINDS, *_COMMANDS)
_NAMES_A_KIND: Final = re.compile(rb'\\|"(?:%s)"' % "|".join((*_KINDS, *kafka_entries.KINDS)).encode())
"""A member that tells a kind, or an escape that may hide one."""

__all__ = [
    "BRACKETS_LIMIT",
    "ENTRY_LIMIT_BYTES",
    "ApplicationError",
    "EntryReader",
    "decode",
    "decode_entry",
    "encode",
    "is_plainly_foreign",
    "kinds_named",
]


class _Clock(Struct, omit_defaults=True):
    time: Milliseconds
    id: ServerId
    period: Milliseconds | None = None


class _ClockEntry(Struct):
    clock: _Clock


class _Publication(Struct, rename="camel"):
    master: DestinationText
    id: ServerId
    published: Seconds
    content_hash: Request


class _PublicationEntry(Struct):
    publication: _Publication


_skeleton = msgspec.json.Decoder(dict[str, msgspec.Raw])
_report = msgspec.json.Decoder(ReportEntry)
_clock = msgspec.json.Decoder(_ClockEntry)
_publication = msgspec.json.Decoder(_PublicationEntry)
_request = msgspec.json.Decoder(Request)
_encoder = msgspec.json.Encoder()


def decode(data: bytes) -> Record:
    """The record in a committed application entry; `Foreign` with the reason for anything else."""
    entry = decode_entry(data)
    return to_report(entry) if isinstance(entry, ReportEntry) else entry


def decode_entry(data: bytes, check: Callable[[str], object] = checked_destination) -> ReportEntry | Record:
    """As `decode`, but a report as it is written: a reader of millions of reports makes no record of each.

    `check` is asked for each destination in a report; it must refuse the same ones as `checked_destination`.
    """
    if len(data) > ENTRY_LIMIT_BYTES:
        return Foreign(f"{len(data)} bytes, the limit is {ENTRY_LIMIT_BYTES}")
    if data.count(b"[") + data.count(b"{") > BRACKETS_LIMIT:
        return Foreign(f"more than {BRACKETS_LIMIT} opening brackets")
    try:
        members = _skeleton.decode(data)
    except ValueError as error:
        return Foreign(str(error)[:_REASON_LIMIT])
    kinds = [kind for kind in _KINDS if kind in members]
    if not kinds:
        # Of no other kind: a version that does not know these takes such an entry for a foreign one.
        kinds = [kind for kind in kafka_entries.KINDS if kind in members]
    if not kinds:
        return Foreign("a JSON object of no kind that a farm knows", _request_of(members))
    try:
        return _decode_kind(kinds, data, check)
    except ValueError as error:
        return Foreign(str(error)[:_REASON_LIMIT], _request_of(members))


def kinds_named(data: bytes) -> tuple[str, ...]:
    """The kinds of the farm's entries that an object names, whether it is a well-formed one of them or not."""
    try:
        members = _skeleton.decode(data)
    except ValueError:
        return ()
    return tuple(kind for kind in (*_KINDS, *kafka_entries.KINDS, handover_entries.KIND) if kind in members)


def is_plainly_foreign(data: bytes) -> bool:
    """Whether the bytes show without decoding that an entry is of no kind of the farm's; most entries do."""
    return _NAMES_A_KIND.search(data) is None


class EntryReader:
    """Reads the entries of one farm's log, with their authors.

    A verification takes about 0.1 ms, and an entry is read when it is submitted and again when it is applied. So valid
    proofs are cached, up to a limit. Invalid ones are not: there is no end of them.

    An entry that was submitted here is read three times: when it is committed, when it is applied, and when its client
    is answered. `read_submitted` keeps the result for the other two, so that the JSON is parsed once.
    """

    def __init__(self, cluster_id: bytes) -> None:
        self.cluster_id = cluster_id
        self._verified: OrderedDict[bytes, Proof] = OrderedDict()
        self._submitted: OrderedDict[bytes, ProvenRecord] = OrderedDict()

    def read(self, data: bytes) -> ProvenRecord:
        """The record in an application entry, and its author if its proof holds for this farm. Never raises.

        The author does not depend on the kind: a version that does not know a kind yet must find the same one.
        """
        return self._submitted.get(data) or self._read(data)

    def read_submitted(self, data: bytes) -> ProvenRecord:
        """Like `read`, for an entry that a client of this server waits for; the newest small ones are kept."""
        found = self.read(data)
        if len(data) <= SUBMITTED_LIMIT_BYTES:
            self._submitted[data] = found
            if len(self._submitted) > SUBMITTED_LIMIT:
                self._submitted.popitem(last=False)
        return found

    def _read(self, data: bytes) -> ProvenRecord:
        record = decode(data)
        if not ends_like_proof(data):
            return ProvenRecord(record, data=data)
        proof = self._proof_of(data)
        if proof is None:
            return ProvenRecord(record, forged=True, data=data)
        return ProvenRecord(record, Author(proof.author, proof.number), data=data)

    def _proof_of(self, data: bytes) -> Proof | None:
        digest = sha256(data).digest()
        found = self._verified.get(digest)
        if found is not None:
            self._verified.move_to_end(digest)
            return found
        proof = proven(data, self.cluster_id)
        if proof is not None:
            self._verified[digest] = proof
            if len(self._verified) > VERIFIED_LIMIT:
                self._verified.popitem(last=False)
        return proof


def _decode_kind(kinds: Sequence[str], data: bytes, check: Callable[[str], object]) -> ReportEntry | Record:
    match kinds:
        case ["router"]:
            report = _report.decode(data)
            check_report(report, check)
            return report
        case ["clock"]:
            clock = _clock.decode(data).clock
            return Clock(time_ms=clock.time, server_id=clock.id, period_ms=clock.period)
        case ["publication"]:
            return _to_publication(_publication.decode(data).publication)
        case [kind] if kind in identity_entries.KINDS:
            return identity_entries.decode_identity(kind, data)
        case [kind] if kind in kafka_entries.KINDS:
            return kafka_entries.decode_kafka(kind, data)
        case [command] if command in _COMMANDS:
            return to_command(_COMMANDS[command].decode(data))
        case _:
            raise ApplicationError(f"of several kinds at once: {', '.join(kinds)}")


def _request_of(members: Mapping[str, msgspec.Raw]) -> str | None:
    try:
        return _request.decode(members["request"]) if "request" in members else None
    except ValueError:
        return None


def encode(
    record: Report | Clock | Publication | IdentityRecord | OperatorCommand | KafkaRecord,
    *,
    config: Mapping[str, Any] | None = None,
) -> bytes:
    """The JSON of a record. `config`, for a report, is the sender's allow-listed configuration (without secrets)."""
    entry: Struct
    match record:
        case Report():
            entry = from_report(record, config)
        case Clock(time_ms, server_id, period_ms):
            entry = _ClockEntry(_Clock(time=time_ms, id=server_id, period=period_ms))
        case Publication(master, server_id, published_s, content_hash):
            entry = _PublicationEntry(
                _Publication(master=master, id=server_id, published=published_s, content_hash=content_hash)
            )
        case _ if isinstance(record, OperatorCommand):
            entry = from_command(record)
        case _ if isinstance(record, KafkaRecord):
            entry = kafka_entries.encode_kafka(record)
        case _:
            entry = identity_entries.encode_identity(record)
    data = _encoder.encode(entry)
    if isinstance(decoded := decode(data), Foreign):
        raise ApplicationError(f"no server would accept this entry ({type(record).__name__}): {decoded.reason}")
    return data


def _to_publication(publication: _Publication) -> Publication:
    return Publication(
        master=checked_destination(publication.master),
        server_id=publication.id,
        published_s=publication.published,
        content_hash=publication.content_hash,
    )
