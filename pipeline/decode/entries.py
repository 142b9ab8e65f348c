"""What an entry of the log says: its kind and its members, or the reason why it is refused.

    bytes ──▶ the farm's own decoder (`bridge.wire.log.entries`) ──▶ is it proven? ──▶ Decoded

The verdict is the farm's, because it is its code that gives it: what every server applies becomes rows of the tables,
what every server ignores becomes a row of `quarantine`. One rule is added. An entry without a proof of its author is
refused, since the farm gives it no effect (docs/reference/application-json.md). Whether a proof holds, and whether its
author may write such an entry, depends on the identities that the farm had admitted by then. Only the farm knows: an
entry that looks proven is counted here although the farm may have refused it.

This is the only module of the pipeline that knows how the farm decodes entries.
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
from bridge.wire.log.proof import ends_like_proof
from bridge.wire.log.reports import LeafPart, MetaPart, ReportEntry, checked_destination, parts_of

APPLICATION, SNAPSHOT, CONFIGURATION = "application", "snapshot", "configuration"
REFUSED: Final = "refused"
UNSIGNED: Final = "without a proof of its author, so the farm gives it no effect"
OPERATOR_KINDS: Final = frozenset(
    each.name
    for each in KINDS
    if issubclass(each.record, IdentityRecord | OperatorCommand) and each.record is not Factors
)
"""The kinds about the farm itself."""
_DECODED_BY_THE_FARM: Final = frozenset({APPLICATION, SNAPSHOT})
ADDRESSES_KEPT: Final = 16_384
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
]


@dataclass(frozen=True, slots=True)
class Action:
    """An entry of an operator or a leader about the farm itself: `subject` is the b32 address of a destination."""

    subject: str | None
    detail: str


class _ServerId(Struct):
    id: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Configuration(Struct, rename="camel"):
    """A member set of the Raft group, as a control endpoint tells it."""

    voters: list[_ServerId] = []
    learners: list[_ServerId] = []
    old_voters: list[_ServerId] = []


Content = ReportEntry | Clock | Publication | Factors | Action | Configuration


@dataclass(slots=True)
class Decoded:
    """What one entry says. `content` is None for an entry that is refused, or of which its kind says all."""

    entry: str
    """report, clock, publication, …, configuration, no-op; `refused`; `snapshot`: a report of which the log holds only
    what came of it."""
    content: Content | None = None
    reason: str | None = None
    """Why it is refused."""
    claimed: str | None = None
    """What a refused entry calls itself."""
    request: str | None = None


_configuration = msgspec.json.Decoder(Configuration)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_MEMBERS: Final = Configuration()


def decoded(kind: str, body: bytes) -> Decoded:
    """The verdict about an entry that the log holds as `kind`. Never raises."""
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
    """The b32 address (52 characters, without `.b32.i2p`) of a destination; raises ValueError for any other text.

    A farm's reports name the same destinations again and again, and parsing one takes as long as all else of a report.
    """
    return hash_of(checked_destination(destination))


def _application(kind: str, body: bytes) -> Decoded:
    record = decode_entry(body, address_of)
    if isinstance(record, Foreign):
        return _refused(body, _without_contents(record.reason), record.request)
    # A snapshot holds the result of a report, not the entry itself.
    if kind == APPLICATION and not ends_like_proof(body):
        return _refused(body, UNSIGNED, None)
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
    """Without what the decoder quotes of an entry: tables name destinations by pseudonyms, and reasons are counted."""
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
    """What an entry about the farm itself says, as JSON; None of an entry that is not one."""
    match record:
        # Without the boxes, which hold the new key sealed.
        case Eviction(node_id):
            return _text(node=node_id.hex())
        case KeyReplacement(era):
            return _text(era=era)
        # The members of the others name no destination, and are kept as they came.
        case _ if (kind := kind_of(record)).name in OPERATOR_KINDS:
            return bytes(_members.decode(body)[kind.member]).decode("utf-8", "replace")
        case _:
            return None


def _text(**members: object) -> str:
    return msgspec.json.encode(members).decode()
