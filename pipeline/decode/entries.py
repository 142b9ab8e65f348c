"""Decoded entries of the log: kind and members, or the reason of a refusal.

    bytes ──▶ the farm's own decoder (`bridge.wire.log.entries`) ──▶ does it have a proof? ──▶ Decoded

The farm's own code makes the verdict: entries that a server acts on become rows of the tables, ignored entries become
rows of `quarantine`. This module adds one rule: it refuses an entry without a proof of its author, since the
farm ignores such an entry (docs/reference/application-json.md). The validity of a proof and the rights of its author
depend on the farm's identities, which only the farm has. So an entry with a proof is counted here, although the farm
may have refused it.

Only this module of the pipeline calls the farm's decoder.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from bridge.core.log.fields import BRACKETS_LIMIT, ENTRY_LIMIT_BYTES
from bridge.core.log.hashes import hash_of
from bridge.core.log.kinds import KINDS, kind_of
from bridge.core.log.records import (
    Clock,
    CostFactor,
    Eviction,
    Exclusion,
    Factors,
    Force,
    Foreign,
    IdentityRecord,
    KeyReplacement,
    OperatorCommand,
    Publication,
    Record,
    request_of,
)
from bridge.wire.log.entries import decode_entry, kinds_named
from bridge.wire.log.handover_entries import KIND as HANDOVER
from bridge.wire.log.handover_entries import handover_in
from bridge.wire.log.proof import ends_like_proof
from bridge.wire.log.reports import LeafPart, MetaPart, ReportEntry, checked_destination, parts_of

APPLICATION, SNAPSHOT, CONFIGURATION = "application", "snapshot", "configuration"
REFUSED: Final = "refused"
UNSIGNED: Final = "without a proof of its author, so the farm gives it no effect"
OPERATOR_KINDS: Final = frozenset(
    each.name
    for each in KINDS
    if issubclass(each.record, IdentityRecord | OperatorCommand) and each.record is not Factors
) | {HANDOVER}
"""The kinds about the farm itself."""
_DECODED_BY_THE_FARM: Final = frozenset({APPLICATION, SNAPSHOT})
ADDRESSES_KEPT: Final = 16_384
DIGITS_MAX: Final = 19
"""Maximum number of digits in a request's sequence number."""
_CLAIMS: Final = {"clock": "clock", "publication": "publication", "factors": "factors", "router": "report"}
_QUOTED: Final = re.compile(r"""(['"]).*\1""", re.DOTALL)
_PLACE: Final = re.compile(r" \(byte \d+\)")

__all__ = [
    "Action",
    "Clock",
    "Configuration",
    "Decoded",
    "Factors",
    "LeafPart",
    "MetaPart",
    "Publication",
    "ReportEntry",
    "address_of",
    "decoded",
    "parts_of",
    "repeats",
]


@dataclass(frozen=True, slots=True)
class Action:
    """An entry of an operator or a leader about the farm itself: `subject` is the b32 address of a destination."""

    subject: str | None
    detail: str


class _ServerId(Struct):
    id: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Configuration(Struct, rename="camel"):
    """A member set of the Raft group, from a control endpoint."""

    voters: list[_ServerId] = []
    learners: list[_ServerId] = []
    old_voters: list[_ServerId] = []


Content = ReportEntry | Clock | Publication | Factors | Action | Configuration


@dataclass(slots=True)
class Decoded:
    """One decoded entry. `content` is missing in a refused entry, and in an entry that has only a kind."""

    entry: str
    """report, clock, publication, …, configuration, no-op; `refused`; `snapshot`: a report that only a snapshot has."""
    content: Content | None = None
    reason: str | None = None
    """The reason of a refusal."""
    claimed: str | None = None
    """The kind that a refused entry claims."""
    request: str | None = None


_configuration = msgspec.json.Decoder(Configuration)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_MEMBERS: Final = Configuration()


def decoded(kind: str, body: bytes) -> Decoded:
    """Decode an entry that has the kind `kind` in the log; never raise."""
    if kind in _DECODED_BY_THE_FARM:
        return _application(kind, body)
    if kind != CONFIGURATION:
        return Decoded(kind)
    try:
        return Decoded(kind, _configuration.decode(body))
    except ValueError:
        return Decoded(kind, _NO_MEMBERS)


@lru_cache(maxsize=ADDRESSES_KEPT)
def address_of(destination: str) -> str:
    """Return the b32 address (52 characters, without `.b32.i2p`) of a destination; raise ValueError for any other text.

    A farm's reports repeat the same destinations, and parsing one takes long, so results are cached.
    """
    return hash_of(checked_destination(destination))


def _application(kind: str, body: bytes) -> Decoded:
    record = decode_entry(body, address_of)
    order = handover_in(body) if isinstance(record, Foreign) else None
    if isinstance(record, Foreign) and order is None:
        return _refused(body, _without_contents(record.reason), record.request)
    # A snapshot holds the result of a report, not the entry itself.
    if kind == APPLICATION and not ends_like_proof(body):
        return _refused(body, UNSIGNED, None)
    if isinstance(record, Foreign):
        return Decoded(HANDOVER, Action(None, msgspec.json.encode(order).decode()), request=record.request)
    if isinstance(record, ReportEntry):
        return Decoded("report" if kind == APPLICATION else SNAPSHOT, record, request=record.request)
    return Decoded(kind_of(record).name, _content(record, body), request=request_of(record))


def _refused(body: bytes, reason: str, request: str | None) -> Decoded:
    claimed = None
    if len(body) <= ENTRY_LIMIT_BYTES and body.count(b"[") + body.count(b"{") <= BRACKETS_LIMIT:
        named = kinds_named(body)
        claimed = next((word for member, word in _CLAIMS.items() if member in named), None)
    return Decoded(REFUSED, None, reason, claimed, request)


def _without_contents(reason: str) -> str:
    """Remove quotations of the entry: tables name destinations by pseudonyms, and reasons are counted."""
    return _PLACE.sub("", _QUOTED.sub("…", reason))


def _content(record: Record, body: bytes) -> Content | None:
    match record:
        case Clock() | Publication() | Factors():
            return record
        case Force(master):
            return Action(hash_of(master), "{}")
        case Exclusion(leaf_hash, excluded):
            return Action(leaf_hash, _text(excluded=excluded))
        case CostFactor(leaf_hash, factor):
            return Action(leaf_hash, _text(factor=factor))
        case _:
            detail = _detail(record, body)
            return None if detail is None else Action(None, detail)


def _detail(record: Record, body: bytes) -> str | None:
    """Return the content of an entry about the farm itself, as JSON; None for other entries."""
    match record:
        # Leave out the boxes, which contain the encrypted new key.
        case Eviction(node_id):
            return _text(node=node_id.hex())
        case KeyReplacement(era):
            return _text(era=era)
        # The members of other kinds do not contain destinations, and are kept unchanged.
        case _ if (kind := kind_of(record)).name in OPERATOR_KINDS:
            return bytes(_members.decode(body)[kind.member]).decode("utf-8", "replace")
        case _:
            return None


def _text(**members: object) -> str:
    return msgspec.json.encode(members).decode()


def repeats(request: str, last: str) -> bool:
    """Return True if `request` is `last` or an earlier request of the same sender; False if either is empty.

    A request is named `CLIENT-BORN-SEQUENCE`; names with different CLIENT-BORN parts have different senders.
    """
    # The usual case: of two names with the same sender and length, the greater text has the greater number.
    if len(request) == len(last) and request > last:
        return False
    (sender, _, number), (last_sender, _, last_number) = request.rpartition("-"), last.rpartition("-")
    if not sender or sender != last_sender:
        return False
    return _is_number(number) and _is_number(last_number) and int(number) <= int(last_number)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
