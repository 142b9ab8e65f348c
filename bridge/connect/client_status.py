"""The state of a running `garlicfarm connect`, as JSON and as metrics: the pages of its socket.

    GET /status     ClientStatus, as JSON (docs/reference/json.md)
    GET /metrics    the same figures as Prometheus text (docs/reference/metrics.md)

`FarmStatus` has the figures of one farm; the listeners have the figures of the process. Labels of metrics are the names
of links in the links file, or their numbers. Addresses are excluded: a metrics store must not list the services of a
user.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import trio
from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge import VERSION
from bridge.api.json import Document, Record, encode
from bridge.connect.forwarding import ListenerCount, Listeners, StreamOpener
from bridge.connect.http_proxy import Page
from bridge.connect.status import ClientCounter, FarmStatus
from bridge.core.connecting.leaves import LeafState

PREFIX: Final = "garlicfarm_connect"
STATUS_PATH: Final = "/status"
METRICS_PATH: Final = "/metrics"
GAUGES: Final[Mapping[str, str]] = {
    "ready": "1 with a session and a usable structure, else 0. `garlicfarm connect --status` has the reason.",
    "structure_seconds_to_end": (
        "Seconds until the structure in use ends. Below 0 new connections fail: no directory has replied for long."
    ),
    "leaves": "Leaves of the structure in use, by state.",
    "sessions": "Ready sessions of the SAM bridge, at most two. At 0 connections wait for a session.",
    "streams": "Open streams to leaves.",
    "open_connections": "Open connections of local programs, all listeners together.",
}
"""The meaning of each gauge; `ClientCounter` and `ListenerCount` have the meanings of the counters."""
_EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"


class LinkStatus(Record, frozen=True):
    """One link of the client."""

    name: str | None
    """Name of the link in the links file."""
    listen: str | None
    """The TCP port of this link."""
    farm: FarmStatus
    """The state of the client of the link's farm."""


class ClientStatus(Document, frozen=True):
    """`connect --status`, and `GET /status` of the client's socket."""

    version: str
    """Version of the program."""
    pid: int
    """Process id of the client."""
    uptime_s: float
    """Seconds since the start of the client."""
    http: str | None
    """Address of the HTTP proxy."""
    open_connections: int
    """Open connections of local programs."""
    counters: Mapping[str, int]
    """Counters of the listeners."""
    last_error: str | None
    """The last reason of a failed connection."""
    links: tuple[LinkStatus, ...]
    """The links, in their order."""


class ReportingFarm(StreamOpener, Protocol):
    """A farm with a state."""

    def status(self) -> FarmStatus:
        """Return the state."""


class ServedLink(Struct, frozen=True):
    """One link with its farm; `listen` is the address of its TCP port."""

    farm: ReportingFarm
    name: str | None = None
    listen: str | None = None


class ClientPages:
    """The pages about one process."""

    def __init__(self, links: Sequence[ServedLink], listeners: Listeners, http: str | None) -> None:
        self._links = tuple(links)
        self._listeners = listeners
        self._http = http
        self._started_s = trio.current_time()

    def status(self) -> ClientStatus:
        """Return the present state."""
        return ClientStatus(
            version=VERSION,
            pid=os.getpid(),
            uptime_s=trio.current_time() - self._started_s,
            http=self._http,
            open_connections=self._listeners.open_connections,
            counters={each.value: self._listeners.counters[each] for each in ListenerCount},
            last_error=self._listeners.last_error,
            links=tuple(LinkStatus(each.name, each.listen, each.farm.status()) for each in self._links),
        )

    def pages(self) -> dict[str, Callable[[], Page]]:
        """Return the maker of each page by path."""
        return {
            STATUS_PATH: lambda: Page(encode(self.status()), "application/json"),
            METRICS_PATH: lambda: Page(exposition(self.status()), _EXPOSITION),
        }


def exposition(status: ClientStatus) -> bytes:
    """Return the metrics as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status))
    return generate_latest(registry)


class StatusCollector(Collector):
    """The collector of one status."""

    def __init__(self, status: ClientStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the listeners, then the metrics of each link."""
        status = self._status
        yield GaugeMetricFamily(f"{PREFIX}_open_connections", GAUGES["open_connections"], status.open_connections)
        for listener_count in ListenerCount:
            name, text = f"{PREFIX}_{listener_count.value}", f"{listener_count.meaning}."
            yield CounterMetricFamily(name, text, status.counters[listener_count.value])
        farms = [(each.name or str(number), each.farm) for number, each in enumerate(status.links, start=1)]
        yield _by_link("ready", [(name, farm.ready) for name, farm in farms])
        ends = [(name, farm.structure_ends_in_s) for name, farm in farms]
        yield _by_link("structure_seconds_to_end", [(name, end) for name, end in ends if end is not None])
        leaves = GaugeMetricFamily(f"{PREFIX}_leaves", GAUGES["leaves"], labels=("link", "state"))
        for name, farm in farms:
            for state in LeafState:
                leaves.add_metric((name, state.value), sum(leaf.state is state for leaf in farm.leaves))
        yield leaves
        yield _by_link("sessions", [(name, farm.sessions) for name, farm in farms])
        yield _by_link("streams", [(name, farm.streams) for name, farm in farms])
        for client_count in ClientCounter:
            text = f"{client_count.meaning[0].upper()}{client_count.meaning[1:]}."
            counter = CounterMetricFamily(f"{PREFIX}_{client_count.value}", text, labels=("link",))
            for name, farm in farms:
                counter.add_metric((name,), farm.counters[client_count.value])
            yield counter


def _by_link(gauge: str, values: Sequence[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{gauge}", GAUGES[gauge], labels=("link",))
    for name, value in values:
        family.add_metric((name,), value)
    return family
