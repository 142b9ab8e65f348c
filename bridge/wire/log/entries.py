"""The JSON of application entries ⇄ `bridge.core.log.records`.

    bytes ──▶ is one JSON object, ≤ 64 KiB? ──▶ which kind? ──▶ typed and in range? ──▶ Record
                        │                          │                   │
                        └──────────────────────────┴───────────────────┴──▶ Foreign(reason)

`decode` never raises. Any client that can reach a server can have bytes committed, and every replica must apply them:
an exception would stop the whole farm. For the same reason the result depends on the bytes alone, so that all replicas
agree.

An entry that the farm acts on also carries a proof (`bridge.wire.log.proof`). `EntryReader` gives the record together
with its verified author; `decode` alone returns only the meaning of an entry.

Keys of I2P proposal 150 keep their spelling; all other keys are in lowerCamelCase.
`docs/reference/application-json.md` has the table.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bridge.core.log import records
from bridge.core.log.fields import BRACKETS_LIMIT, ENTRY_LIMIT_BYTES, ApplicationError, RecordJson, Request
from bridge.core.log.kinds import KINDS, Kind, kinds_in
from bridge.wire.log import handover_entries
from bridge.wire.log.proof import Proof, ends_like_proof, proven
from bridge.wire.log.reports import ReportEntry, check_report, checked_destination, from_report, to_report
from gossip.wire import node_id_of

VERIFIED_LIMIT: Final = 1024
"""Number of cached proofs, about 200 bytes each: more than the entries between submission and application."""
SUBMITTED_LIMIT: Final = 1024
SUBMITTED_LIMIT_BYTES: Final = 4096
"""A reader keeps at most this number of decoded submissions, of at most this size each: about 4 MiB in all."""
_REASON_LIMIT: Final = 200
_NAMES_A_KIND: Final = re.compile(rb'\\|"(?:%s)"' % "|".join(each.member for each in KINDS).encode())
"""Finds a member that names a kind, or an escape that may hide such a member."""

_skeleton = msgspec.json.Decoder(dict[str, msgspec.Raw])
_report = msgspec.json.Decoder(ReportEntry)
_request = msgspec.json.Decoder(Request)
_json_of = {each.record: RecordJson(each.member, each.record) for each in KINDS if each.record is not records.Report}
_encoder = msgspec.json.Encoder()


def decode(data: bytes) -> records.Record:
    """Return the record in a committed application entry; `Foreign` with the reason for any other bytes."""
    entry = decode_entry(data)
    return to_report(entry) if isinstance(entry, ReportEntry) else entry


def decode_entry(data: bytes, check: Callable[[str], object] = checked_destination) -> ReportEntry | records.Record:
    """Decode like `decode`, but return a report in its written form, for readers of millions of reports.

    `check` is called for each destination in a report; it must refuse the same destinations as `checked_destination`.
    """
    if len(data) > ENTRY_LIMIT_BYTES:
        return records.Foreign(f"{len(data)} bytes, the limit is {ENTRY_LIMIT_BYTES}")
    if data.count(b"[") + data.count(b"{") > BRACKETS_LIMIT:
        return records.Foreign(f"more than {BRACKETS_LIMIT} opening brackets")
    try:
        members = _skeleton.decode(data)
    except ValueError as error:
        return records.Foreign(str(error)[:_REASON_LIMIT])
    kinds = kinds_in(members.keys())
    if not kinds:
        return records.Foreign("a JSON object of an unknown kind", _request_of(members))
    try:
        return _decode_kind(kinds, data, check)
    except ValueError as error:
        return records.Foreign(str(error)[:_REASON_LIMIT], _request_of(members))


def kinds_named(data: bytes) -> tuple[str, ...]:
    """Return the kinds of the farm's entries that an object names, even if the object is not a valid entry."""
    try:
        members = _skeleton.decode(data)
    except (ValueError, RecursionError):
        return ()
    return tuple(each for each in (*(kind.member for kind in KINDS), handover_entries.KIND) if each in members)


def is_plainly_foreign(data: bytes) -> bool:
    """Return True if a search shows, without decoding, that an entry does not have a kind of the farm."""
    return _NAMES_A_KIND.search(data) is None


class EntryReader:
    """Reads the entries of one farm's log, with their authors.

    A verification takes about 0.1 ms, and an entry may be read several times. So valid proofs are cached, up to a
    limit. Invalid proofs are not cached: their number is unlimited.

    The server of a waiting client reads the entry three times: when it is committed, when it is applied, and for the
    reply. `read_submitted` stores the first result for the two other reads, so that the JSON is parsed once.
    """

    def __init__(self, cluster_id: bytes) -> None:
        self.cluster_id = cluster_id
        self._verified: OrderedDict[bytes, Proof] = OrderedDict()
        self._submitted: OrderedDict[bytes, records.ProvenRecord] = OrderedDict()

    def read(self, data: bytes) -> records.ProvenRecord:
        """Return the record in an application entry, and its author if its proof holds for this farm. Never raise.

        The author does not depend on the kind: a version that does not know a kind must find the same author.
        """
        return self._submitted.get(data) or self._read(data)

    def read_submitted(self, data: bytes) -> records.ProvenRecord:
        """Read like `read`, for an entry whose client waits at this server; store the newest small results."""
        found = self.read(data)
        if len(data) <= SUBMITTED_LIMIT_BYTES:
            self._submitted[data] = found
            if len(self._submitted) > SUBMITTED_LIMIT:
                self._submitted.popitem(last=False)
        return found

    def _read(self, data: bytes) -> records.ProvenRecord:
        record = decode(data)
        if not ends_like_proof(data):
            return records.ProvenRecord(record, data=data)
        proof = self._proof_of(data)
        if proof is None:
            return records.ProvenRecord(record, forged=True, data=data)
        return records.ProvenRecord(record, records.Author(proof.author, proof.number), data=data)

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


def _decode_kind(kinds: Sequence[Kind], data: bytes, check: Callable[[str], object]) -> ReportEntry | records.Record:
    if len(kinds) > 1:
        raise ApplicationError(f"of more than one kind: {', '.join(kind.member for kind in kinds)}")
    if kinds[0].record is records.Report:
        report = _report.decode(data)
        check_report(report, check)
        return report
    return _checked(_json_of[kinds[0].record].decode(data))


def _checked(record: records.Record) -> records.Record:
    """Apply the rules that the types of the fields cannot express; return the record, or raise `ValueError`."""
    match record:
        case records.Force(master) | records.Publication(master):
            checked_destination(master)
        case records.Admission(node_id, key=bytes(key)) | records.Approval(node_id, key=bytes(key)) if (
            node_id_of(key) != node_id
        ):
            raise ValueError(f"this public key does not belong to node {node_id.hex()}")
        case records.ClientKey(key=key):
            return replace(record, node_id=node_id_of(key))
        case _:
            pass
    return record


def _request_of(members: Mapping[str, msgspec.Raw]) -> str | None:
    try:
        return _request.decode(members["request"]) if "request" in members else None
    except ValueError:
        return None


def encode(record: records.EntryRecord, *, config: Mapping[str, Any] | None = None) -> bytes:
    """Return the JSON of a record.

    `config`, for a report, is the sender's allow-listed configuration without secrets.
    """
    if isinstance(record, records.Report):
        entry: Struct = from_report(record, config)
    else:
        entry = _json_of[type(record)].entry_of(record)
    data = _encoder.encode(entry)
    if isinstance(decoded := decode(data), records.Foreign):
        raise ApplicationError(f"no server would accept this entry ({type(record).__name__}): {decoded.reason}")
    return data
