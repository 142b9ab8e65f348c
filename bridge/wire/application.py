"""The JSON of application entries ⇄ `bridge.core.records`.

    bytes ──▶ is one JSON object, ≤ 64 KiB? ──▶ which kind? ──▶ typed and in range? ──▶ Record
                        │                          │                   │
                        └──────────────────────────┴───────────────────┴──▶ Foreign(reason)

`decode` never raises. Committed bytes come from any client that can reach a server, and every replica must apply them:
a decoder that raised would stop the whole farm on one bad entry. For the same reason the outcome depends on the bytes
alone, so that all replicas agree on it.

The keys are the proposal's where it gives them and lowerCamelCase otherwise; `docs/application-json.md` has the table.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from bridge.core.founding import NODE_ID_BYTES
from bridge.core.records import (
    Admission,
    Clock,
    Foreign,
    LeafStatus,
    MetaStatus,
    Publication,
    PublishConfig,
    Record,
    Report,
    RouterStatus,
)
from bridge.wire.i2p import I2pError, destination_from_base64

ENTRY_LIMIT_BYTES: Final = 65_536
DESTINATIONS_LIMIT: Final = 64
BRACKETS_LIMIT: Final = 256
"""Bounds nesting by the bytes alone: how deep a parser gets before it gives up depends on its caller's stack."""

_REASON_LIMIT: Final = 200
_KINDS: Final = ("router", "clock", "publication", "admission")

Milliseconds = Annotated[int, Meta(ge=0, lt=2**53)]
Seconds = Annotated[int, Meta(ge=0, lt=2**32)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
ServerId = Annotated[int, Meta(ge=0, lt=2**31)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Lag = Annotated[float, Meta(ge=0, le=1e9)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Request = Annotated[str, Meta(max_length=128)]
DestinationText = Annotated[str, Meta(max_length=2048)]
StructureText = Annotated[str, Meta(max_length=32_768)]


class ApplicationError(ValueError):
    """The record cannot be an entry: it would be over the limits that every server keeps."""


class _Meta(Struct, rename="camel", omit_defaults=True):
    destination: DestinationText
    publish_config: Literal["off", "auto", "on"]
    publishing: bool | UnsetType = UNSET
    last_published_time: Milliseconds | UnsetType = UNSET
    last_published_lease_set: StructureText | None = msgspec.field(name="lastPublishedLS", default=None)
    can_sign_until: Seconds | None = None


class _Router(Struct, rename="camel", omit_defaults=True):
    attached: bool | UnsetType = UNSET
    uptime: Milliseconds | None = None
    job_lag: Lag | None = None
    exploratory_tunnels: Count | None = None
    participating_tunnels: Count | None = None
    configured_bandwidth: Count | None = None
    current_bandwidth: Count | None = None
    cpu_percent: Percent | None = None
    memory_percent: Percent | None = None
    last_published_router_info: StructureText | None = msgspec.field(name="lastPublishedRI", default=None)


class _Leaf(Struct, rename="camel", omit_defaults=True):
    destination: DestinationText
    healthy: bool | UnsetType = UNSET
    uptime: Milliseconds | None = None
    configured_tunnels: Count | None = None
    current_tunnels: Count | None = None
    configured_bandwidth: Count | None = None
    current_bandwidth: Count | None = None
    configured_connections: Count | None = None
    current_connections: Count | None = None


class _Report(Struct, omit_defaults=True):
    cluster: Name
    date: Milliseconds
    id: ServerId
    router: _Router
    meta: _Meta | None = None
    destinations: Annotated[list[_Leaf], Meta(max_length=DESTINATIONS_LIMIT)] = []
    request: Request | None = None
    config: dict[str, Any] | None = None


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


class _Admission(Struct):
    node: Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * NODE_ID_BYTES}}}\\Z")]
    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,31}\\Z")]


class _AdmissionEntry(Struct):
    admission: _Admission


_skeleton = msgspec.json.Decoder(dict[str, msgspec.Raw])
_report = msgspec.json.Decoder(_Report)
_clock = msgspec.json.Decoder(_ClockEntry)
_publication = msgspec.json.Decoder(_PublicationEntry)
_admission = msgspec.json.Decoder(_AdmissionEntry)
_request = msgspec.json.Decoder(Request)
_encoder = msgspec.json.Encoder()


def decode(data: bytes) -> Record:
    """The record in a committed application entry; `Foreign` with the reason for whatever is none."""
    if len(data) > ENTRY_LIMIT_BYTES:
        return Foreign(f"{len(data)} bytes, the limit is {ENTRY_LIMIT_BYTES}")
    if data.count(b"[") + data.count(b"{") > BRACKETS_LIMIT:
        return Foreign(f"more than {BRACKETS_LIMIT} opening brackets")
    try:
        members = _skeleton.decode(data)
    except ValueError as error:
        return Foreign(str(error)[:_REASON_LIMIT])
    kinds = [kind for kind in _KINDS if kind in members]
    try:
        return _decode_kind(kinds, data)
    except ValueError as error:
        return Foreign(str(error)[:_REASON_LIMIT], _request_of(members))


def _decode_kind(kinds: Sequence[str], data: bytes) -> Record:
    match kinds:
        case ["router"]:
            return _to_report(_report.decode(data))
        case ["clock"]:
            clock = _clock.decode(data).clock
            return Clock(time_ms=clock.time, server_id=clock.id, period_ms=clock.period)
        case ["publication"]:
            return _to_publication(_publication.decode(data).publication)
        case ["admission"]:
            admission = _admission.decode(data).admission
            return Admission(bytes.fromhex(admission.node), admission.name)
        case []:
            raise ApplicationError("a JSON object of no kind that a farm knows")
        case _:
            raise ApplicationError(f"of several kinds at once: {', '.join(kinds)}")


def _request_of(members: Mapping[str, msgspec.Raw]) -> str | None:
    try:
        return _request.decode(members["request"]) if "request" in members else None
    except ValueError:
        return None


def encode(record: Report | Clock | Publication | Admission, *, config: Mapping[str, Any] | None = None) -> bytes:
    """The JSON of a record. `config`, for a report, is the sender's allow-listed configuration (without secrets)."""
    match record:
        case Report():
            entry: Struct = _from_report(record, config)
        case Clock(time_ms, server_id, period_ms):
            entry = _ClockEntry(_Clock(time=time_ms, id=server_id, period=period_ms))
        case Publication(master, server_id, published_s, content_hash):
            entry = _PublicationEntry(
                _Publication(master=master, id=server_id, published=published_s, content_hash=content_hash)
            )
        case Admission(node_id, name):
            entry = _AdmissionEntry(_Admission(node=node_id.hex(), name=name))
    data = _encoder.encode(entry)
    if isinstance(decoded := decode(data), Foreign):
        raise ApplicationError(f"no server would accept this entry ({type(record).__name__}): {decoded.reason}")
    return data


def _to_report(entry: _Report) -> Report:
    return Report(
        cluster=entry.cluster,
        date_ms=entry.date,
        server_id=entry.id,
        router=_to_router(entry.router),
        meta=None if entry.meta is None else _to_meta(entry.meta),
        destinations=_to_leaves(entry.destinations),
        request=entry.request,
    )


def _to_meta(meta: _Meta) -> MetaStatus:
    return MetaStatus(
        destination=_checked(meta.destination),
        publish_config=PublishConfig(meta.publish_config),
        publishing=meta.publishing is True,
        last_published_time_ms=0 if meta.last_published_time is UNSET else meta.last_published_time,
        last_published_lease_set=meta.last_published_lease_set,
        can_sign_until_s=meta.can_sign_until,
    )


def _to_router(router: _Router) -> RouterStatus:
    return RouterStatus(
        attached=router.attached is not False,
        uptime_ms=router.uptime,
        job_lag_ms=router.job_lag,
        exploratory_tunnels=router.exploratory_tunnels,
        participating_tunnels=router.participating_tunnels,
        configured_bandwidth_bytes_per_s=router.configured_bandwidth,
        current_bandwidth_bytes_per_s=router.current_bandwidth,
        cpu_percent=router.cpu_percent,
        memory_percent=router.memory_percent,
        last_published_router_info=router.last_published_router_info,
    )


def _to_leaves(leaves: list[_Leaf]) -> tuple[LeafStatus, ...]:
    if len({leaf.destination for leaf in leaves}) != len(leaves):
        raise ApplicationError("a destination appears twice in `destinations`")
    return tuple(_to_leaf(leaf) for leaf in leaves)


def _to_leaf(leaf: _Leaf) -> LeafStatus:
    return LeafStatus(
        destination=_checked(leaf.destination),
        healthy=leaf.healthy is True,
        uptime_ms=leaf.uptime,
        configured_tunnels=leaf.configured_tunnels,
        current_tunnels=leaf.current_tunnels,
        configured_bandwidth_bytes_per_s=leaf.configured_bandwidth,
        current_bandwidth_bytes_per_s=leaf.current_bandwidth,
        configured_connections=leaf.configured_connections,
        current_connections=leaf.current_connections,
    )


def _to_publication(publication: _Publication) -> Publication:
    return Publication(
        master=_checked(publication.master),
        server_id=publication.id,
        published_s=publication.published,
        content_hash=publication.content_hash,
    )


def _checked(destination: str) -> str:
    """Return the text unchanged if it is a destination: the publisher must be able to rely on its hash."""
    try:
        destination_from_base64(destination)
    except I2pError as error:
        raise ApplicationError(f"destination {destination[:16]!r}…: {error}") from None
    return destination


def _from_report(report: Report, config: Mapping[str, Any] | None) -> _Report:
    return _Report(
        cluster=report.cluster,
        date=report.date_ms,
        id=report.server_id,
        router=_from_router(report.router),
        meta=None if report.meta is None else _from_meta(report.meta),
        destinations=[_from_leaf(leaf) for leaf in report.destinations],
        request=report.request,
        config=None if config is None else dict(config),
    )


def _from_meta(meta: MetaStatus) -> _Meta:
    return _Meta(
        destination=meta.destination,
        publish_config=meta.publish_config.value,
        publishing=meta.publishing,
        last_published_time=meta.last_published_time_ms,
        last_published_lease_set=meta.last_published_lease_set,
        can_sign_until=meta.can_sign_until_s,
    )


def _from_router(router: RouterStatus) -> _Router:
    return _Router(
        attached=router.attached,
        uptime=router.uptime_ms,
        job_lag=router.job_lag_ms,
        exploratory_tunnels=router.exploratory_tunnels,
        participating_tunnels=router.participating_tunnels,
        configured_bandwidth=router.configured_bandwidth_bytes_per_s,
        current_bandwidth=router.current_bandwidth_bytes_per_s,
        cpu_percent=router.cpu_percent,
        memory_percent=router.memory_percent,
        last_published_router_info=router.last_published_router_info,
    )


def _from_leaf(leaf: LeafStatus) -> _Leaf:
    return _Leaf(
        destination=leaf.destination,
        healthy=leaf.healthy,
        uptime=leaf.uptime_ms,
        configured_tunnels=leaf.configured_tunnels,
        current_tunnels=leaf.current_tunnels,
        configured_bandwidth=leaf.configured_bandwidth_bytes_per_s,
        current_bandwidth=leaf.current_bandwidth_bytes_per_s,
        configured_connections=leaf.configured_connections,
        current_connections=leaf.current_connections,
    )
