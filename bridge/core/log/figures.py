"""The figures that a server reports about its router, declared once.

Each figure is a field of `RouterStatus` with a `Declaration`. A report has the class as its `router`, so its JSON and
its ranges follow from the fields. The rest derives from `FIGURES`:

    bridge.core.state.numbers             the range of each number in a snapshot
    bridge.api.view.SHOWN                 figures in the view: a field of the same name in `ReportView`
    cli, tui, page, metrics               a column, a chart, a text and a gauge for each of `SHOWN`
    pipeline.schemas, pipeline.decode     a column for each figure
    docs/reference/router-report.md       the table of keys

A new figure needs its field here, the code that measures it (`bridge.wire.i2p.i2pcontrol`, `bridge.node.router`), and a
field in `ReportView` if screens show it. A value outside its range makes the entry foreign on all servers, so the
ranges include all possible values.
"""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Annotated, Any, Final, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

COUNT_MAX: Final = 2**53 - 1
"""The greatest integer that all JSON readers represent exactly."""


class Unit(Enum):
    """The unit of a figure, as texts write it."""

    COUNT = ""
    MILLISECONDS = "ms"
    BYTES_PER_S = "bytes/s"
    PERCENT = "%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The facts about a figure beyond the name and type of its field."""

    key: str
    """Name in the JSON of reports."""
    label: str
    unit: Unit
    maximum: float = COUNT_MAX
    meaning: str
    source: str
    """Origin of the value if a router reports it."""
    kinds: tuple[str, str, str]
    """Origin by kind of router (file, Java, i2pd): `yes` (the router), `newer` (its newer versions), `host` or `no`."""
    column: str = ""
    """Name in the tables of the pipeline, if it differs from the name of the field."""
    of_proposal: bool = False
    """I2P proposal 150 has the key."""


class RouterStatus(Struct, frozen=True, cache_hash=True):
    """`router`: the sender's router. None is an unknown figure, for example of a router that cannot report it."""

    attached: bool
    """False for a node without a router."""
    uptime_ms: Annotated[
        int | None,
        Declaration(
            key="uptime",
            label="uptime",
            unit=Unit.MILLISECONDS,
            meaning="Time since the router (file: the node) started",
            source="router (`i2p.router.uptime`)",
            kinds=("host", "yes", "yes"),
            of_proposal=True,
        ),
    ] = None
    job_lag_ms: Annotated[
        float | None,
        Declaration(
            key="jobLag",
            label="job lag",
            unit=Unit.MILLISECONDS,
            maximum=1e9,
            meaning="Lag of the router's job queue (file, i2pd: mean lag of the node's own loop in the last minute)",
            source="router (`GetRate` of `jobQueue.jobLag` over 60 s) or node",
            kinds=("host", "yes", "host"),
        ),
    ] = None
    exploratory_tunnels: Annotated[
        int | None,
        Declaration(
            key="exploratoryTunnels",
            label="exploratory tunnels",
            unit=Unit.COUNT,
            meaning="Exploratory tunnels, in + out",
            source="router (`…tunnels.exploratory.inbound`, `.outbound`)",
            kinds=("no", "newer", "no"),
        ),
    ] = None
    participating_tunnels: Annotated[
        int | None,
        Declaration(
            key="participatingTunnels",
            label="participating tunnels",
            unit=Unit.COUNT,
            meaning="Transit tunnels of other routers through this router",
            source="router (`…tunnels.participating`)",
            kinds=("no", "yes", "yes"),
        ),
    ] = None
    configured_bandwidth_bytes_per_s: Annotated[
        int | None,
        Declaration(
            key="configuredBandwidth",
            label="bandwidth limit",
            unit=Unit.BYTES_PER_S,
            meaning="Bandwidth limit, in + out",
            source="router (`NetworkSetting` `…bw.in`, `.out`, in KiB/s)",
            kinds=("no", "yes", "no"),
        ),
    ] = None
    current_bandwidth_bytes_per_s: Annotated[
        int | None,
        Declaration(
            key="currentBandwidth",
            label="bandwidth",
            unit=Unit.BYTES_PER_S,
            meaning="Traffic of the host (file) or router, in + out, over 15 s",
            source="host or router (`…bw.inbound.15s`, `.outbound.15s`)",
            kinds=("host", "yes", "yes"),
            column="bandwidth_bytes_per_s",
        ),
    ] = None
    cpu_percent: Annotated[
        float | None,
        Declaration(
            key="cpuPercent",
            label="machine CPU",
            unit=Unit.PERCENT,
            maximum=100,
            meaning="Processor load of the host",
            source="host",
            kinds=("host", "host", "host"),
        ),
    ] = None
    memory_percent: Annotated[
        float | None,
        Declaration(
            key="memoryPercent",
            label="machine RAM",
            unit=Unit.PERCENT,
            maximum=100,
            meaning="Memory in use on the host",
            source="host",
            kinds=("host", "host", "host"),
        ),
    ] = None
    last_published_router_info: str | None = None
    """RouterInfo in I2P base64, if it changed, and once an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Declaration):
    """A figure with the facts of its field."""

    name: str
    kind: type[int] | type[float]

    @property
    def label_and_unit(self) -> str:
        """The label, and the unit if there is one."""
        return " in ".join(filter(None, (self.label, self.unit.value)))

    def text(self, value: float | None) -> str:
        """Return the value with its unit, as tables show it."""
        return "-" if value is None else f"{value:.0f} {self.unit.value}".rstrip()

    def of(self, holder: object) -> float | None:
        """Return the value in a report's `router` or in its view."""
        value: float | None = getattr(holder, self.name)
        return value


def _figures() -> dict[str, Figure]:
    found = {}
    for name, hint in get_type_hints(RouterStatus, include_extras=True).items():
        match get_args(hint):
            case (optional, Declaration() as declaration):
                found[name] = Figure(**asdict(declaration), name=name, kind=get_args(optional)[0])
            case _:
                pass
    return found


FIGURES: Final = _figures()
"""By name of the field, in the order of the report."""


def known_of(first: RouterStatus, second: RouterStatus) -> RouterStatus:
    """Return `first`, with figures of `second` in place of its unknown figures."""
    missing: dict[str, Any] = {name: figure.of(second) for name, figure in FIGURES.items() if figure.of(first) is None}
    return replace(first, **missing)
