"""Prometheus metrics, made from a FarmView at each scrape.

Except durations, the figures come from the view, so nothing is counted a second time. A separate registry excludes the
metrics of the process and of other libraries. Labels are names and short words. Node ids, destinations and addresses
are excluded. Many people read a metrics store, and it keeps data for a long time, so it must not list routers and their
services. Each value of a label would also make a new time series.

Each declared counter begins at 0 (`bridge.node.control.counters`). If a series began at 1, an alert on its increase
would miss the first event. The counters of a client endpoint exist only on nodes with this endpoint.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.api.printable import printable
from bridge.api.view import SHOWN, FarmView, RaftRole, VerdictKind, counted_members
from bridge.core.formation.member import MemberStatus
from bridge.core.log.figures import Unit
from bridge.node.control.counters import FAMILIES, ViewPart, identifier
from bridge.node.events.durations import TEXTS, Durations
from consensus import Histogram

PREFIX: Final = "garlicfarm"
GAUGES: Final[Mapping[str, str]] = {
    "verdict": (
        "The verdict of this node about the farm: 1 for the kind of the verdict, 0 for the others."
        " `garlicfarm help verdicts` explains each kind."
    ),
    "can_lose_servers": (
        "The number of servers, any of them, that may fail before the farm stops working. At 0 start the failed server"
        " before another fails."
    ),
    "node_info": "Constant 1, with the name, version and phase of this node as labels; join other metrics with it.",
    "uptime_seconds": (
        "Seconds since this process started. It falls when the node restarts: the log of the node has the reason."
    ),
    "generation": (
        "The number of starts of this node, stored on disk. It grows by one with each start; fast growth means that a"
        " supervisor restarts the node repeatedly."
    ),
    "alarms": (
        "Active alarms of this node, by kind; no series without an alarm. `garlicfarm status` shows each alarm with its"
        " remedy."
    ),
    "members": (
        "Members known to this node by gossip, by status, without evicted identities. Dead members are removed after"
        " a time; start members that should run."
    ),
    "gossip_peers": ("Other members that this node probes. At 0 it is isolated: check the seeds and the firewall."),
    "gossip_capacity": (
        "The maximum number of members that this node probes, from `gossip.capacity`. Raise it if members are"
        " redirected all the time."
    ),
    "gossip_round_trip_seconds_max": (
        "The last round trip of gossip to the slowest peer, in seconds. Above a second running members are suspected:"
        " check the network."
    ),
    "directory_serving": (
        "1 while the directory of this node returns structures to clients, else 0; no series without a SAM bridge. At 0"
        " `garlicfarm status` shows the reason."
    ),
    "raft_role": (
        "The role of this node in the Raft group: 1 for its role, 0 for the others. One of all nodes should be leader."
    ),
    "raft_term": (
        "The latest Raft term known to this node. It grows by one with each election; steady growth means that leaders"
        " lose their majority."
    ),
    "raft_has_leader": (
        "1 while this node knows a leader, else 0. 0 for more than some seconds means that the voters that reach"
        " each other are not a majority."
    ),
    "raft_last_index": (
        "The index of the last entry in this node's log. Entries above the commit index wait for a majority."
    ),
    "raft_commit_index": (
        "The index of the last committed entry known to this node. It grows with every report; if it does not, the"
        " farm cannot commit."
    ),
    "raft_applied_index": (
        "The index of the last entry applied by this node's state machine. It follows the commit index immediately;"
        " a lasting gap means a stuck process."
    ),
    "raft_follower_lag_entries": (
        "Entries of the log that a follower still lacks, from the leader's view, by the server's name. It falls to 0"
        " once the server has caught up; if it grows, check that server."
    ),
    "publishing": (
        "The number of master destinations whose publisher is this node. The sum over all nodes is the number of"
        " masters; 0 on all nodes means that no node can publish. `lease_set_seconds_to_expiry` shows if a router takes"
        " the structures."
    ),
    "lease_set_entries": (
        "Leaves in the last structures of all masters that the log accepted. It falls when leaves are excluded or their"
        " routers fail."
    ),
    "lease_set_healthy_entries": (
        "Leaves in the last structures of all masters, with a healthy router, tunnels and service. At 0 clients cannot"
        " reach the farm: see `garlicfarm farm`."
    ),
    "lease_set_seconds_to_expiry": (
        "Seconds of log time until the first of the structures that routers took expires. Structures are renewed every"
        " five minutes; below 600 no router takes the next one: check the alarms of the publisher."
    ),
    "lease_set_seen": (
        "Masters whose last structure the router of another node found by a look-up after the hand-over. Only Java"
        " routers look a Meta LeaseSet2 up."
    ),
    "lease_set_not_found": (
        "Masters whose last structure the routers of other nodes did not find within 90 seconds and a reporting period"
        " after the hand-over. Above 0 clients may not find the farm: see the alarm `structure-not-found`."
    ),
}
"""The help of each gauge: its value, when it grows, and the remedy. `bridge.core.log.figures` has router gauges."""


def exposition(view: FarmView, durations: Durations | None = None) -> bytes:
    """Return the metrics of `view` and the histograms of durations, as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_NodeCollector(view, durations or Durations(Histogram())))
    return generate_latest(registry)


class _NodeCollector(Collector):
    def __init__(self, view: FarmView, durations: Durations) -> None:
        self._view = view
        self._durations = durations

    def collect(self) -> Iterator[Metric]:
        yield from _verdict(self._view)
        yield from _node(self._view)
        yield from _members(self._view)
        yield from _raft(self._view)
        yield from _publishing(self._view)
        yield from _router(self._view)
        yield from _counters(self._view)
        yield from _durations(self._durations)


def _gauge(name: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", GAUGES[name], value=value)


def _labeled(name: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return one series for each value of the label."""
    metric = GaugeMetricFamily(f"{PREFIX}_{name}", GAUGES[name], labels=(label,))
    for text, value in values:
        metric.add_metric((printable(text),), value)
    return metric


def _state_set(name: str, label: str, states: Iterable[Enum], present: Enum) -> Metric:
    """Return a state set of Prometheus: one series for each state, with 1 for the present state."""
    return _labeled(name, label, ((state.value, state is present) for state in states))


def _verdict(view: FarmView) -> Iterator[Metric]:
    yield _state_set("verdict", "kind", VerdictKind, view.verdict.kind)
    if view.verdict.can_lose is not None:
        yield _gauge("can_lose_servers", view.verdict.can_lose)


def _node(view: FarmView) -> Iterator[Metric]:
    info = {"name": view.node.name, "version": view.node.version, "phase": view.node.phase.value}
    metric = GaugeMetricFamily(f"{PREFIX}_node_info", GAUGES["node_info"], labels=tuple(info))
    metric.add_metric(tuple(map(printable, info.values())), 1)
    yield metric
    yield _gauge("uptime_seconds", view.node.uptime_ms / 1000)
    yield _gauge("generation", view.node.generation)
    if view.node.directory is not None:
        yield _gauge("directory_serving", view.node.directory.problem is None)
    yield _labeled("alarms", "kind", sorted(Counter(alarm.kind for alarm in view.alarms).items()))


def _members(view: FarmView) -> Iterator[Metric]:
    counts = Counter(member.status for member in counted_members(view))
    yield _labeled("members", "status", ((status.value, counts[status]) for status in MemberStatus))
    yield _gauge("gossip_peers", view.gossip.peer_count)
    yield _gauge("gossip_capacity", view.gossip.capacity)
    times = [member.rtt_ms for member in view.members if member.rtt_ms is not None]
    if times:
        yield _gauge("gossip_round_trip_seconds_max", max(times) / 1000)


def _raft(view: FarmView) -> Iterator[Metric]:
    raft = view.raft
    yield _state_set("raft_role", "role", RaftRole, raft.role)
    yield _gauge("raft_term", raft.term)
    yield _gauge("raft_has_leader", raft.leader_id is not None)
    yield _gauge("raft_last_index", raft.last_index)
    yield _gauge("raft_commit_index", raft.commit_index)
    yield _gauge("raft_applied_index", raft.applied_index)
    lags = (
        (each.name or str(each.raft_id), each.lag_entries) for each in raft.followers if each.lag_entries is not None
    )
    yield _labeled("raft_follower_lag_entries", "server", lags)


def _publishing(view: FarmView) -> Iterator[Metric]:
    if not view.publishing:
        return
    here = sum(each.publisher_id is not None and each.publisher_id == view.node.raft_id for each in view.publishing)
    yield _gauge("publishing", here)
    yield _gauge("lease_set_entries", sum(len(each.entries) for each in view.publishing))
    healthy = sum(entry.healthy for each in view.publishing for entry in each.entries)
    yield _gauge("lease_set_healthy_entries", healthy)
    left = [each.seconds_to_expiry for each in view.publishing if each.seconds_to_expiry is not None]
    if left:
        yield _gauge("lease_set_seconds_to_expiry", min(left))
    yield _gauge("lease_set_seen", sum(each.seen is True for each in view.publishing))
    yield _gauge("lease_set_not_found", sum(each.seen is False for each in view.publishing))


def _router(view: FarmView) -> Iterator[Metric]:
    """Yield the figures of this node's own report, in base units."""
    own = [each for each in view.reports if each.raft_id == view.node.raft_id]
    for figure, report in itertools.product(SHOWN, own):
        value = figure.of(report)
        if value is not None:
            is_time = figure.unit is Unit.MILLISECONDS
            name = f"{figure.name.removesuffix('_ms')}_seconds" if is_time else figure.name
            text = f"{figure.meaning}, as this node reported it last."
            yield GaugeMetricFamily(f"{PREFIX}_router_{name}", text, value=value / 1000 if is_time else value)


def _counters(view: FarmView) -> Iterator[Metric]:
    """Yield every declared counter, at 0 if the view does not have it."""
    counts: Mapping[ViewPart, Mapping[str, int]] = {
        ViewPart.NODE: view.counters,
        ViewPart.GOSSIP: view.gossip.counters,
        ViewPart.RAFT: view.raft.counters,
    }
    endpoints = {
        "": True,
        "directory": view.node.directory is not None,
        "zmq": view.node.zmq_address is not None,
        "kafka": view.node.kafka_address is not None,
    }
    for family in FAMILIES:
        if not endpoints[family.endpoint]:
            continue
        metrics: dict[str, CounterMetricFamily] = {}
        for member in family.members:
            name, labels = family.name(member), (family.label,) if family.metric else ()
            if name not in metrics:
                metrics[name] = CounterMetricFamily(f"{PREFIX}_{name}", family.text(member), labels=labels)
            value = counts[family.part].get(family.key(member), 0)
            metrics[name].add_metric((identifier(member),) if family.metric else (), value)
        yield from metrics.values()


def _durations(durations: Durations) -> Iterator[Metric]:
    for name, histogram in durations.items():
        counts = histogram.cumulative()
        buckets = [("+Inf" if math.isinf(bound_s) else f"{bound_s:g}", count) for bound_s, count in counts]
        yield HistogramMetricFamily(f"{PREFIX}_{name}_seconds", TEXTS[name], buckets, sum_value=histogram.total_s)
