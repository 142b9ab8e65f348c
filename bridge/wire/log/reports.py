"""The JSON of a report ⇄ `bridge.core.log.records.Report`: what one server says about itself.

docs/reference/application-json.md has its keys.

`meta` is the proposal's one object where a server serves one master destination, or a list of such objects where it
serves several; then an element of `destinations` may say by `master` (a hash) behind which of them it stands. A reader
that knows the proposal alone reads everything of a server with one master, and of one with several all but their parts.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from bridge.core.log.records import LeafStatus, Measurement, MetaStatus, PublishConfig, Report, RouterStatus
from bridge.core.state.farm_state import MASTERS_MAX
from bridge.wire.log.fields import (
    ApplicationError,
    Count,
    DestinationText,
    HashText,
    Lag,
    Milliseconds,
    Name,
    Percent,
    Request,
    Seconds,
    ServerId,
    StructureText,
    checked_destination,
)

DESTINATIONS_LIMIT: Final = 64
MEASUREMENTS_LIMIT: Final = 16


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
    master: HashText | None = None
    uptime: Milliseconds | None = None
    configured_tunnels: Count | None = None
    current_tunnels: Count | None = None
    configured_bandwidth: Count | None = None
    current_bandwidth: Count | None = None
    configured_connections: Count | None = None
    current_connections: Count | None = None


class _Measurement(Struct, rename="camel", omit_defaults=True):
    hash: HashText
    reachable: bool
    fetch_time: Milliseconds | None = None


_Measurements = Annotated[list[_Measurement], Meta(max_length=MEASUREMENTS_LIMIT)]
_Metas = Annotated[list[_Meta], Meta(min_length=1, max_length=MASTERS_MAX)]


class ReportEntry(Struct, rename="camel", omit_defaults=True):
    """A report as it is written."""

    cluster: Name
    date: Milliseconds
    id: ServerId
    router: _Router
    meta: _Meta | _Metas | None = None
    destinations: Annotated[list[_Leaf], Meta(max_length=DESTINATIONS_LIMIT)] = []
    remote_destinations: _Measurements = []
    remote_metas: _Measurements = []
    request: Request | None = None
    config: dict[str, Any] | None = None


def to_report(entry: ReportEntry) -> Report:
    """What it means; `ApplicationError` if a destination is none, or there twice."""
    return Report(
        cluster=entry.cluster,
        date_ms=entry.date,
        server_id=entry.id,
        router=_to_router(entry.router),
        masters=_to_masters(entry.meta),
        destinations=_to_leaves(entry.destinations),
        remote_destinations=_to_measurements(entry.remote_destinations),
        remote_metas=_to_measurements(entry.remote_metas),
        request=entry.request,
    )


def _to_masters(meta: _Meta | list[_Meta] | None) -> tuple[MetaStatus, ...]:
    parts = [] if meta is None else meta if isinstance(meta, list) else [meta]
    if len({part.destination for part in parts}) != len(parts):
        raise ApplicationError("a master destination appears twice in `meta`")
    return tuple(_to_meta(part) for part in parts)


def _to_meta(meta: _Meta) -> MetaStatus:
    return MetaStatus(
        destination=checked_destination(meta.destination),
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
        destination=checked_destination(leaf.destination),
        healthy=leaf.healthy is True,
        master_hash=leaf.master,
        uptime_ms=leaf.uptime,
        configured_tunnels=leaf.configured_tunnels,
        current_tunnels=leaf.current_tunnels,
        configured_bandwidth_bytes_per_s=leaf.configured_bandwidth,
        current_bandwidth_bytes_per_s=leaf.current_bandwidth,
        configured_connections=leaf.configured_connections,
        current_connections=leaf.current_connections,
    )


def _to_measurements(measured: list[_Measurement]) -> tuple[Measurement, ...]:
    return tuple(Measurement(each.hash, each.reachable, each.fetch_time) for each in measured)


def _from_measurements(measured: tuple[Measurement, ...]) -> list[_Measurement]:
    return [_Measurement(each.destination_hash, each.reachable, each.fetch_ms) for each in measured]


def from_report(report: Report, config: Mapping[str, Any] | None) -> ReportEntry:
    """How it is written."""
    return ReportEntry(
        cluster=report.cluster,
        date=report.date_ms,
        id=report.server_id,
        router=_from_router(report.router),
        meta=_from_masters(report.masters),
        destinations=[_from_leaf(leaf) for leaf in report.destinations],
        remote_destinations=_from_measurements(report.remote_destinations),
        remote_metas=_from_measurements(report.remote_metas),
        request=report.request,
        config=None if config is None else dict(config),
    )


def _from_masters(masters: tuple[MetaStatus, ...]) -> _Meta | list[_Meta] | None:
    parts = [_from_meta(part) for part in masters]
    return parts if len(parts) > 1 else parts[0] if parts else None


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
        master=leaf.master_hash,
        uptime=leaf.uptime_ms,
        configured_tunnels=leaf.configured_tunnels,
        current_tunnels=leaf.current_tunnels,
        configured_bandwidth=leaf.configured_bandwidth_bytes_per_s,
        current_bandwidth=leaf.current_bandwidth_bytes_per_s,
        configured_connections=leaf.configured_connections,
        current_connections=leaf.current_connections,
    )
