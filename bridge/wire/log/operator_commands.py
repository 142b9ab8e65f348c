"""The JSON of the commands of operators and the pipeline ⇄ the commands of `bridge.core.log.records`.

    {"exclusion": {"hash": b32, "excluded": true}}
    {"cost": {"hash": b32, "factor": 1.5}}
    {"force": {"master": destination in base64}}
    {"factors": {"throughIndex": N, "formula": "…", "factors": {b32: 1.1}}}
    {"removal": {"server": 3, "removed": true}}
    {"client": {"name": "pipeline", "key": KEY, "scopes": ["weights"], "admitted": true}}
    {"correction": {"clock": 1767225600000}}

KEY is an Ed25519 public key in base64.

The state machine decides whether a command is carried out and gives the reason if not: a factor out of bounds is
decoded like any other. Each command may carry the member `request`.
"""

import base64
from typing import Annotated, Final, assert_never

from msgspec import Meta, Struct

from bridge.core.log.records import (
    ClientKey,
    Correction,
    CostFactor,
    Exclusion,
    Factors,
    Force,
    OperatorCommand,
    Removal,
    Scope,
)
from bridge.core.log.weights import FACTORS_MAX
from bridge.wire.log.fields import (
    Count,
    DestinationText,
    Factor,
    HashText,
    Milliseconds,
    NodeName,
    Request,
    ServerId,
    checked_destination,
    octets,
)
from gossip.wire import PUBLIC_KEY_BYTES, node_id_of

FORMULA_LIMIT: Final = 200


class _Exclusion(Struct):
    hash: HashText
    excluded: bool


class ExclusionEntry(Struct, omit_defaults=True):
    """An exclusion as it is written."""

    exclusion: _Exclusion
    request: Request | None = None


class _Cost(Struct):
    hash: HashText
    factor: Factor


class CostEntry(Struct, omit_defaults=True):
    """An operator's factor as it is written."""

    cost: _Cost
    request: Request | None = None


class _Force(Struct):
    master: DestinationText


class ForceEntry(Struct, omit_defaults=True):
    """A forced publication as it is written."""

    force: _Force
    request: Request | None = None


class _Factors(Struct, rename="camel"):
    through_index: Count
    formula: Annotated[str, Meta(max_length=FORMULA_LIMIT)]
    factors: Annotated[dict[HashText, Factor], Meta(max_length=FACTORS_MAX)]


class FactorsEntry(Struct, omit_defaults=True):
    """The pipeline's factors as they are written."""

    factors: _Factors
    request: Request | None = None


class _Removal(Struct):
    server: ServerId
    removed: bool


class RemovalEntry(Struct, omit_defaults=True):
    """A server's removal as it is written."""

    removal: _Removal
    request: Request | None = None


class _Client(Struct):
    name: NodeName
    key: Annotated[str, Meta(min_length=44, max_length=44)]
    scopes: Annotated[list[Scope], Meta(max_length=len(Scope))]
    admitted: bool


class ClientEntry(Struct, omit_defaults=True):
    """What becomes of a client key, as it is written."""

    client: _Client
    request: Request | None = None


class _Correction(Struct):
    clock: Milliseconds


class CorrectionEntry(Struct, omit_defaults=True):
    """A correction of log time as it is written."""

    correction: _Correction
    request: Request | None = None


CommandEntry = ExclusionEntry | CostEntry | ForceEntry | FactorsEntry | RemovalEntry | ClientEntry | CorrectionEntry


def to_command(entry: CommandEntry) -> OperatorCommand:  # noqa: PLR0911 - one case per command
    """What it means; `ApplicationError` if it names a master that is no destination."""
    match entry:
        case ExclusionEntry(exclusion, request):
            return Exclusion(exclusion.hash, exclusion.excluded, request)
        case CostEntry(cost, request):
            return CostFactor(cost.hash, cost.factor, request)
        case ForceEntry(force, request):
            return Force(checked_destination(force.master), request)
        case FactorsEntry(factors, request):
            return Factors(factors.through_index, factors.formula, factors.factors, request)
        case RemovalEntry(removal, request):
            return Removal(removal.server, removal.removed, request)
        case CorrectionEntry(correction, request):
            return Correction(correction.clock, request)
        case ClientEntry(client, request):
            key = octets(client.key, PUBLIC_KEY_BYTES)
            scopes = tuple(each for each in Scope if each in client.scopes)
            return ClientKey(node_id_of(key), client.name, key, scopes, client.admitted, request)
        case _:
            assert_never(entry)


def from_command(command: OperatorCommand) -> CommandEntry:  # noqa: PLR0911 - one case per command
    """How it is written."""
    match command:
        case Exclusion(leaf_hash, excluded, request):
            return ExclusionEntry(_Exclusion(leaf_hash, excluded), request)
        case CostFactor(leaf_hash, factor, request):
            return CostEntry(_Cost(leaf_hash, factor), request)
        case Force(master, request):
            return ForceEntry(_Force(master), request)
        case Factors(through_index, formula, factors, request):
            return FactorsEntry(_Factors(through_index, formula, dict(factors)), request)
        case Removal(server_id, removed, request):
            return RemovalEntry(_Removal(server_id, removed), request)
        case Correction(time_ms, request):
            return CorrectionEntry(_Correction(time_ms), request)
        case ClientKey(_, name, key, scopes, admitted, request):
            text = base64.b64encode(key).decode("ascii")
            return ClientEntry(_Client(name, text, list(scopes), admitted), request)
        case _:
            assert_never(command)
