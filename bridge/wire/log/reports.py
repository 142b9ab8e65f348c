"""The JSON of a report ⇄ `bridge.core.log.records.Report`: one server's description of itself.

docs/reference/application-json.md has its keys. Members that only newer versions read are `Raw`: no value of them makes
an entry foreign. An entry has at most `BRACKETS_LIMIT` opening brackets, also within texts. So each part of a condition
is a member of its leaf, not of a nested object. The texts of these members have escapes for brackets.

`meta` is one object, as in I2P proposal 150, for a server with one master destination. For several master destinations,
it is a list of such objects, and an element of `destinations` may name its master by hash. A reader that knows only the
proposal understands all reports of servers with one master.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, defstruct, field, structs
from msgspec.structs import replace

from bridge.core.log.fields import (
    ABSENT,
    ApplicationError,
    Count,
    DestinationText,
    HashText,
    Milliseconds,
    Name,
    Request,
    Seconds,
    ServerId,
    StructureText,
    value_or_none,
)
from bridge.core.log.figures import COUNT_MAX, FIGURES, Figure, RouterStatus
from bridge.core.log.records import (
    ConditionStatus,
    LeafFault,
    LeafStatus,
    Measurement,
    MetaStatus,
    PublishConfig,
    Report,
    ReportedDirectory,
)
from bridge.core.state.farm_state import MASTERS_MAX
from bridge.wire.i2p.structures import I2pError, destination_from_base64

DESTINATIONS_LIMIT: Final = 64
MEASUREMENTS_LIMIT: Final = 16
_ENDPOINT: Final = re.compile(r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|\[[\w:.%-]{2,60}\]):\d{1,5}(?!\w)")
FAILURE_LIMIT: Final = 200
"""Characters of a failure; the rest is cut off."""
ERRORS_LIMIT: Final = 2048
"""Number of characters for the last errors of all leaves in a report; further errors are left out."""
_LEAF_TWICE: Final = "a destination appears twice in `destinations`"
_MASTER_TWICE: Final = "a master destination appears twice in `meta`"


# The structs' attributes have the names of the records' attributes, so conversion works without a list of them.


class MetaPart(Struct, rename="camel", omit_defaults=True):
    """An element of `meta` as it is written."""

    destination: DestinationText
    publish_config: PublishConfig
    publishing: bool | UnsetType = UNSET
    last_published_time_ms: Milliseconds | UnsetType = field(name="lastPublishedTime", default=UNSET)
    last_published_lease_set: StructureText | None = field(name="lastPublishedLS", default=None)
    can_sign_until_s: Seconds | None = field(name="canSignUntil", default=None)
    publish_failure: Raw = ABSENT
    """A text. Older versions ignore it, so no value of it makes the entry foreign."""
    standby: Raw = ABSENT
    """True or absent; older versions ignore it."""


def _json_type(figure: Figure) -> Any:
    limits = Meta(ge=0, lt=int(figure.maximum) + 1) if figure.kind is int else Meta(ge=0, le=figure.maximum)
    return Annotated[figure.kind, limits] | None


class _RouterPart(Struct, omit_defaults=True):
    attached: bool | UnsetType = UNSET


if TYPE_CHECKING:
    RouterPart = _RouterPart
else:
    RouterPart = defstruct(
        "RouterPart",
        [
            *((each.name, _json_type(each), field(name=each.key, default=None)) for each in FIGURES.values()),
            ("last_published_router_info", StructureText | None, field(name="lastPublishedRI", default=None)),
        ],
        bases=(_RouterPart,),
        omit_defaults=True,
    )
    """`router` as it is written."""


class LeafPart(Struct, rename="camel", omit_defaults=True):
    """An element of `destinations` as it is written."""

    destination: DestinationText
    healthy: bool | UnsetType = UNSET
    master_hash: HashText | None = field(name="master", default=None)
    uptime_ms: Milliseconds | None = field(name="uptime", default=None)
    configured_tunnels: Count | None = None
    current_tunnels: Count | None = None
    configured_bandwidth_bytes_per_s: Count | None = field(name="configuredBandwidth", default=None)
    current_bandwidth_bytes_per_s: Count | None = field(name="currentBandwidth", default=None)
    configured_connections: Count | None = None
    current_connections: Count | None = None
    faults: Raw = ABSENT
    """A list of words of `LeafFault`; older versions ignore it."""
    router_age: Raw = ABSENT
    router_failures: Raw = ABSENT
    router_error: Raw = ABSENT
    lease_set_age: Raw = ABSENT
    lease_set_failures: Raw = ABSENT
    lease_set_error: Raw = ABSENT
    service_age: Raw = ABSENT
    service_failures: Raw = ABSENT
    service_error: Raw = ABSENT
    """The parts of the `ConditionStatus` of each condition, in nine members; older versions ignore them."""


class _Measurement(Struct, rename="camel", omit_defaults=True):
    destination_hash: HashText = field(name="hash")
    reachable: bool
    fetch_ms: Milliseconds | None = field(name="fetchTime", default=None)


_Measurements = Annotated[list[_Measurement], Meta(max_length=MEASUREMENTS_LIMIT)]
_Metas = Annotated[list[MetaPart], Meta(min_length=1, max_length=MASTERS_MAX)]


class DirectoryPart(Struct, omit_defaults=True):
    """`directory` as it is written."""

    hash: HashText | None = None
    problem: str | None = None


class ReportEntry(Struct, rename="camel", omit_defaults=True):
    """A report as it is written."""

    cluster: Name
    date: Milliseconds
    id: ServerId
    router: RouterPart
    meta: MetaPart | _Metas | None = None
    destinations: Annotated[list[LeafPart], Meta(max_length=DESTINATIONS_LIMIT)] = []
    remote_destinations: _Measurements = []
    remote_metas: _Measurements = []
    request: Request | None = None
    config: dict[str, Any] | None = None
    directory: Raw = ABSENT
    """A `DirectoryPart`; older versions ignore it."""


def checked_destination(destination: str) -> str:
    """Return the text unchanged if it is a destination: the publisher must be able to rely on its hash."""
    try:
        destination_from_base64(destination)
    except I2pError as error:
        raise ApplicationError(f"destination {destination[:16]!r}…: {error}") from None
    return destination


def check_report(entry: ReportEntry, check: Callable[[str], object] = checked_destination) -> None:
    """Check values: raise `ApplicationError` if a destination occurs twice, or `check` refuses it."""
    masters = [part.destination for part in parts_of(entry)]
    leaves = [leaf.destination for leaf in entry.destinations]
    for named, refusal in ((masters, _MASTER_TWICE), (leaves, _LEAF_TWICE)):
        if len(set(named)) != len(named):
            raise ApplicationError(refusal)
        for destination in named:
            check(destination)


def parts_of(entry: ReportEntry) -> Sequence[MetaPart]:
    """Return the sender's part in each master that it names."""
    meta = entry.meta
    return meta if isinstance(meta, list) else () if meta is None else (meta,)


def to_report(entry: ReportEntry) -> Report:
    """Return a checked report as a record."""
    return Report(
        cluster=entry.cluster,
        date_ms=entry.date,
        server_id=entry.id,
        router=RouterStatus(**{**structs.asdict(entry.router), "attached": entry.router.attached is not False}),
        masters=tuple(_to_meta(part) for part in parts_of(entry)),
        destinations=with_bounded_errors(_to_leaf(leaf) for leaf in entry.destinations),
        remote_destinations=_to_measurements(entry.remote_destinations),
        remote_metas=_to_measurements(entry.remote_metas),
        request=entry.request,
        directory=_directory(entry.directory),
    )


def _to_meta(meta: MetaPart) -> MetaStatus:
    fields = {
        **structs.asdict(meta),
        "publishing": meta.publishing is True,
        "last_published_time_ms": 0 if meta.last_published_time_ms is UNSET else meta.last_published_time_ms,
        "publish_failure": _text(meta.publish_failure),
        "standby": value_or_none(meta.standby) is True,
    }
    return MetaStatus(**fields)


def _to_leaf(leaf: LeafPart) -> LeafStatus:
    fields = {name: value for name, value in structs.asdict(leaf).items() if name not in _CONDITION_MEMBERS}
    fields |= {"healthy": leaf.healthy is True, "faults": _faults(leaf.faults), "conditions": _conditions(leaf)}
    return LeafStatus(**fields)


_CONDITION_MEMBERS: Final = {
    f"{condition.name.lower()}_{part}": (condition, part)
    for condition in LeafFault
    for part in ("age", "failures", "error")
}
"""Members of `LeafPart`, with the condition of each."""


def _conditions(leaf: LeafPart) -> tuple[ConditionStatus, ...]:
    found: dict[LeafFault, dict[str, Any]] = {each: {} for each in LeafFault}
    for name, (condition, part) in _CONDITION_MEMBERS.items():
        member = getattr(leaf, name)
        found[condition][part] = _text(member) if part == "error" else _count(member)
    statuses = (
        ConditionStatus(each, part["age"], part["failures"] or 0, part["error"]) for each, part in found.items()
    )
    return tuple(each for each in statuses if each != ConditionStatus(each.condition))


def _count(member: Raw) -> int | None:
    value = value_or_none(member)
    return value if type(value) is int and 0 <= value <= COUNT_MAX else None


def with_bounded_errors(leaves: Iterable[LeafStatus]) -> tuple[LeafStatus, ...]:
    """Return the leaves without the errors beyond the first `ERRORS_LIMIT` characters."""
    left = ERRORS_LIMIT

    def bounded(condition: ConditionStatus) -> ConditionStatus:
        nonlocal left
        left -= len(condition.last_error or "")
        return condition if left >= 0 else replace(condition, last_error=None)

    return tuple(
        replace(leaf, conditions=tuple(map(bounded, leaf.conditions))) if leaf.conditions else leaf for leaf in leaves
    )


def _text(member: Raw) -> str | None:
    return _cut(value_or_none(member))


def _cut(value: object) -> str | None:
    return value[:FAILURE_LIMIT] if isinstance(value, str) else None


def _directory(member: Raw) -> ReportedDirectory | None:
    try:
        found = msgspec.convert(value_or_none(member), DirectoryPart)
    except msgspec.ValidationError:
        return None
    return ReportedDirectory(found.hash, _cut(found.problem))


def _faults(member: Raw) -> tuple[LeafFault, ...]:
    value = value_or_none(member)
    named = {each for each in value if isinstance(each, str)} if isinstance(value, list) else set[str]()
    return tuple(each for each in LeafFault if each.value in named)


def _to_measurements(measured: list[_Measurement]) -> tuple[Measurement, ...]:
    return tuple(Measurement(**structs.asdict(each)) for each in measured)


def from_report(report: Report, config: Mapping[str, Any] | None) -> ReportEntry:
    """Return the written form of a report."""
    masters = [_from_meta(each) for each in report.masters]
    return ReportEntry(
        cluster=report.cluster,
        date=report.date_ms,
        id=report.server_id,
        router=RouterPart(**structs.asdict(report.router)),
        meta=masters if len(masters) > 1 else masters[0] if masters else None,
        destinations=[_from_leaf(each) for each in with_bounded_errors(report.destinations)],
        remote_destinations=[_Measurement(**structs.asdict(each)) for each in report.remote_destinations],
        remote_metas=[_Measurement(**structs.asdict(each)) for each in report.remote_metas],
        request=report.request,
        config=None if config is None else dict(config),
        directory=_from_directory(report.directory),
    )


_Part = TypeVar("_Part", RouterStatus, MetaStatus, LeafStatus, Measurement)
_FIGURES: Final = {
    record: {each.name: each.type for each in structs.fields(part) if each.default is None or each.default is UNSET}
    for record, part in (
        (RouterStatus, RouterPart),
        (MetaStatus, MetaPart),
        (LeafStatus, LeafPart),
        (Measurement, _Measurement),
    )
}
"""The optional values of each part of a report, with their types and ranges in JSON."""


def within_ranges(report: Report) -> tuple[Report, tuple[str, ...]]:
    """Return the report without the figures that are outside their ranges, and the names of these figures.

    A router may report any number. Servers would refuse the whole report because of one such number, and the node would
    count as stale. The farm treats an omitted figure as unknown. The maximum would look like a measured value.
    """
    dropped: list[str] = []

    def checked(part: _Part) -> _Part:
        names = [name for name, kind in _FIGURES[type(part)].items() if not _is_within(getattr(part, name), kind)]
        dropped.extend(names)
        unknown: dict[str, Any] = {name: 0 if name == "last_published_time_ms" else None for name in names}
        return replace(part, **unknown)

    kept = replace(
        report,
        router=checked(report.router),
        masters=tuple(map(checked, report.masters)),
        destinations=tuple(map(checked, report.destinations)),
        remote_destinations=tuple(map(checked, report.remote_destinations)),
        remote_metas=tuple(map(checked, report.remote_metas)),
    )
    return (kept if dropped else report), tuple(dropped)


def _is_within(value: object, kind: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return True
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _from_leaf(leaf: LeafStatus) -> LeafPart:
    faults = Raw(msgspec.json.encode([each.value for each in leaf.faults])) if leaf.faults else ABSENT
    fields = {**structs.asdict(leaf), "faults": faults}
    del fields["conditions"]
    for each in leaf.conditions:
        member = each.condition.name.lower()
        fields[f"{member}_age"] = _number(each.age_ms)
        fields[f"{member}_failures"] = _number(each.failures or None)
        fields[f"{member}_error"] = _written(each.last_error)
    return LeafPart(**fields)


def _number(value: int | None) -> Raw:
    return ABSENT if value is None else Raw(b"%d" % value)


def _written(text: str | None) -> Raw:
    """Return a text for a member that older versions skip: shortened, and without brackets, which they count.

    All members and readers of the log see it, so it does not contain addresses of the node's own network.
    """
    if text is None:
        return ABSENT
    valid = _ENDPOINT.sub("its port", text)[:FAILURE_LIMIT].encode(errors="replace").decode()
    return Raw(msgspec.json.encode(valid).replace(b"[", b"\\u005b").replace(b"{", b"\\u007b"))


def _from_directory(directory: ReportedDirectory | None) -> Raw:
    if directory is None:
        return ABSENT
    members = {"hash": directory.destination_hash, "problem": _written(directory.problem) or None}
    return Raw(msgspec.json.encode({name: value for name, value in members.items() if value is not None}))


def _from_meta(part: MetaStatus) -> MetaPart:
    standby = Raw(b"true") if part.standby else ABSENT
    return MetaPart(**{**structs.asdict(part), "publish_failure": _written(part.publish_failure), "standby": standby})
