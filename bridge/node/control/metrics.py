"""Prometheus metrics, made out of a FarmView at the moment of scraping.

Nothing is counted twice: the figures are those of the view, and a registry of its own keeps the process's defaults and
other libraries' metrics out. Labels are names and small words only. Node ids, destinations and addresses are not among
them: a metrics store is read by many, keeps for long, and must not become a directory of which router serves what; each
would also be a new time series.

A counter of the node begins with the first thing that is counted. Prometheus needs it before: a series that begins at 1
has no increase, so an alert would miss the first stranger. What alerts and dashboards of `deploy/` read is therefore
told from 0 on (`FROM_ZERO`).
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.api.printable import printable
from bridge.api.view import SHOWN, FarmView, RaftRole, VerdictKind, counted_members
from bridge.core.formation.member import MemberStatus
from bridge.core.log.figures import Unit
from bridge.node.control.metric_texts import GAUGES, counter_text
from bridge.node.events.durations import TEXTS, Durations
from consensus import Histogram

PREFIX = "garlicfarm"
FROM_ZERO = (
    *(
        f"gossip_dropped_{reason}"
        for reason in (
            "bad_seal",
            "foreign_version",
            "other_farm",
            "overloaded",
            "rate_limited",
            "replay",
            "retired_key",
            "unknown_key",
        )
    ),
    *(
        f"garlic_farm_{fault}"
        for fault in (
            "expelled",
            "malformed",
            "unproven",
            "wrong_certificate",
            "wrong_cluster",
            "wrong_credentials",
        )
    ),
)
KAFKA_FROM_ZERO = ("kafka_bytes_received", "kafka_bytes_sent", "kafka_connections_accepted", "kafka_requests_answered")
ZMQ_FROM_ZERO = ("zmq_messages_received", "zmq_messages_sent")
"""Of a node that serves clients of these kinds."""


def exposition(
    view: FarmView, extra_counters: Mapping[str, int] | None = None, durations: Durations | None = None
) -> bytes:
    """The metrics of `view`, and histograms of durations, as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ViewCollector(view, extra_counters or {}))
    registry.register(_DurationCollector(durations or Durations(Histogram())))
    return generate_latest(registry)


class _DurationCollector(Collector):
    """How long things took."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations

    def collect(self) -> Iterator[Metric]:
        for name, histogram in self._durations.items():
            counts = histogram.cumulative()
            buckets = [("+Inf" if math.isinf(bound_s) else f"{bound_s:g}", count) for bound_s, count in counts]
            yield HistogramMetricFamily(f"{PREFIX}_{name}_seconds", TEXTS[name], buckets, sum_value=histogram.total_s)


class _ViewCollector(Collector):
    """Metrics of one view."""

    def __init__(self, view: FarmView, extra_counters: Mapping[str, int]) -> None:
        self._view = view
        self._extra_counters = extra_counters

    def collect(self) -> Iterator[Metric]:
        yield from _verdict(self._view)
        yield from _node(self._view)
        yield from _members(self._view)
        yield from _raft(self._view)
        yield from _publishing(self._view)
        yield from _router(self._view)
        yield from self._counters()

    def _counters(self) -> Iterator[Metric]:
        seen: set[str] = set()
        node = self._view.node
        groups = (
            ("", self._view.counters),
            ("gossip_", self._view.gossip.counters),
            ("raft_", self._view.raft.counters),
            ("", self._extra_counters),
            ("", dict.fromkeys(FROM_ZERO, 0)),
            ("", {} if node.kafka_address is None else dict.fromkeys(KAFKA_FROM_ZERO, 0)),
            ("", {} if node.zmq_address is None else dict.fromkeys(ZMQ_FROM_ZERO, 0)),
        )
        for prefix, counters in groups:
            for counter, value in sorted(counters.items()):
                name = f"{PREFIX}_{prefix}{counter}"
                if name not in seen:
                    seen.add(name)
                    yield CounterMetricFamily(name, counter_text(f"{prefix}{counter}"), value=value)


def _labels(*texts: str) -> tuple[str, ...]:
    return tuple(map(printable, texts))


def _gauge(name: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", GAUGES[name], value=value)


def _labeled(name: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", GAUGES[name], labels=labels)


def _verdict(view: FarmView) -> Iterator[Metric]:
    """As Prometheus' state sets are: one series for each kind, of which one is 1."""
    kinds = _labeled("verdict", ("kind",))
    for kind in VerdictKind:
        kinds.add_metric(_labels(kind.value), view.verdict.kind is kind)
    yield kinds
    if view.verdict.can_lose is not None:
        yield _gauge("can_lose_servers", view.verdict.can_lose)


def _node(view: FarmView) -> Iterator[Metric]:
    info = _labeled("node_info", ("name", "version", "phase"))
    info.add_metric(_labels(view.node.name, view.node.version, view.node.phase.value), 1)
    yield info
    yield _gauge("uptime_seconds", view.node.uptime_ms / 1000)
    yield _gauge("generation", view.node.generation)
    alarms = _labeled("alarms", ("kind",))
    for kind in sorted({alarm.kind for alarm in view.alarms}):
        alarms.add_metric(_labels(kind), sum(alarm.kind == kind for alarm in view.alarms))
    yield alarms


def _members(view: FarmView) -> Iterator[Metric]:
    members, counted = _labeled("members", ("status",)), counted_members(view)
    for status in MemberStatus:
        members.add_metric(_labels(status.value), sum(member.status is status for member in counted))
    yield members
    yield _gauge("gossip_peers", view.gossip.peer_count)
    yield _gauge("gossip_capacity", view.gossip.capacity)
    times = [member.rtt_ms for member in view.members if member.rtt_ms is not None]
    if times:
        yield _gauge("gossip_round_trip_seconds_max", max(times) / 1000)


def _raft(view: FarmView) -> Iterator[Metric]:
    raft = view.raft
    roles = _labeled("raft_role", ("role",))
    for role in RaftRole:
        roles.add_metric(_labels(role.value), raft.role is role)
    yield roles
    yield _gauge("raft_term", raft.term)
    yield _gauge("raft_has_leader", raft.leader_id is not None)
    yield _gauge("raft_last_index", raft.last_index)
    yield _gauge("raft_commit_index", raft.commit_index)
    yield _gauge("raft_applied_index", raft.applied_index)
    lags = _labeled("raft_follower_lag_entries", ("server",))
    for follower in raft.followers:
        if follower.lag_entries is None:
            continue
        lags.add_metric(_labels(follower.name or str(follower.raft_id)), follower.lag_entries)
    yield lags


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
