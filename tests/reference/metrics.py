"""docs/reference/metrics.md: the gauges of a fictional farm, and all declared counters, histograms and others."""

from collections.abc import Iterator
from itertools import chain

from prometheus_client.parser import text_string_to_metric_families

from bridge.cli.kraft import metrics as kraft
from bridge.connect import ClientCounter, client_status
from bridge.connect.forwarding import ListenerCount
from bridge.node.control import metrics
from bridge.node.control.counters import FAMILIES, ViewPart, identifier
from bridge.node.events import durations
from consensus import Histogram
from consensus.protocols.kraft.replica.peer_transport import TransportEvent
from consensus.protocols.zmq_raft.counters import ClientEvent, PeerEvent
from pipeline.serve import metrics as pipeline
from tests.operator_views import farm_view

HEAD = f"""# Metrics

`GET /metrics` on the control socket returns Prometheus' text format ([control-endpoint.md](control-endpoint.md);
[monitor.md](../how-to/monitor.md) has a configuration). The node computes the metrics from its view for each request.
Each name begins with `{metrics.PREFIX}_`. Labels are names of nodes and fixed words, never node ids, destinations,
hashes or addresses.

## Gauges

| metric | labels | meaning |
|---|---|---|
"""
COUNTERS = """
## Counters

Each name ends in `_total`. A counter starts at 0 with the process, and is exported from 0 on. Counters of `kafka`,
`zmq` and `directory` exist if the node has that endpoint. The view has the same counters. The key of a counter without
labels is the name of its metric; in the parts `gossip` and `raft` without this prefix. The sections below have the keys
of counters with labels.

| counter | labels | meaning |
|---|---|---|
"""
LIBRARIES = """
## Servers and clients in Python

`counters` of a `ZmqRaftPeer`, a `ZmqRaftClient` and a `KraftVoter` count these events since their start. A
`ZmqRaftPeer` also has the reasons of `zmq_dropped`.

| class | member | meaning |
|---|---|---|
"""
OF_LIBRARIES = (PeerEvent, ClientEvent, TransportEvent)
"""Counters of servers and clients outside a farm."""
OF_CLIENT = (ListenerCount, ClientCounter)
"""Counters of `garlicfarm connect`."""
PARTS = {ViewPart.NODE: "`counters`", ViewPart.GOSSIP: "`counters` of `gossip`", ViewPart.RAFT: "`counters` of `raft`"}
HISTOGRAMS = f"""
## Histograms

Each is `{metrics.PREFIX}_…_seconds`, with `_bucket`, `_sum` and `_count`, since the start of this process.

| metric | meaning |
|---|---|
"""
KRAFT = f"""
## A server of a KRaft quorum

`garlicfarm kraft serve --metrics HOST:PORT` replies to `GET /metrics` there, in the same format. These are the metrics
of KIP-595. Each name is the KIP's name after `{kraft.PREFIX}`, with `_` for `-`; an average and a maximum are
two gauges. Averages, maxima and rates cover the last 30 to 60 seconds, as in Kafka; `NaN` means without measurements.

| metric | name in the KIP | labels | meaning |
|---|---|---|---|
"""
CLIENT = f"""
## The client of farms

A running `garlicfarm connect` replies to `GET {client_status.METRICS_PATH}` on its socket, in the same format. Each
name begins with `{client_status.PREFIX}_`, a counter ends in `_total`. The label `link` is the name of a link in the
links file, or its number. Metrics without it concern all links together.

| metric | kind | labels | meaning |
|---|---|---|---|
"""
PIPELINE = f"""
## The data pipeline

`garlicfarm pipeline run --metrics [HOST:]PORT` replies to `GET /metrics` there, in the same format. Each name begins
with `{pipeline.PREFIX}_`, a counter ends in `_total`, and the histogram has `_bucket`, `_sum` and `_count`. Figures
cover this run since its start, and all its farms together; `NaN` means not known yet.

| metric | kind | meaning |
|---|---|---|
"""


def page() -> str:
    histograms = [f"| `{name}_seconds` | {meaning} |\n" for name, meaning in durations.TEXTS.items()]
    measured = HISTOGRAMS + "".join(histograms)
    return (
        HEAD
        + "".join(_gauges())
        + COUNTERS
        + "".join(_counters())
        + "".join(_labels())
        + measured
        + KRAFT
        + "".join(_of_kraft())
        + CLIENT
        + "".join(_of_client())
        + PIPELINE
        + "".join(_of_pipeline())
        + LIBRARIES
        + "".join(f"| `{type(each).__name__}` | `{each.value}` | {each.meaning} |\n" for each in chain(*OF_LIBRARIES))
    )


def _of_pipeline() -> Iterator[str]:
    for metric in text_string_to_metric_families(pipeline.RunMetrics().exposition().decode()):
        name = metric.name.removeprefix(f"{pipeline.PREFIX}_")
        yield f"| `{name}` | {metric.type} | {metric.documentation} |\n"


def _of_client() -> Iterator[str]:
    for name, meaning in client_status.GAUGES.items():
        labels = "" if name == "open_connections" else "`link`, `state`" if name == "leaves" else "`link`"
        yield f"| `{name}` | gauge | {labels} | {meaning} |\n"
    for each in ListenerCount:
        yield f"| `{each.value}` | counter | | {each.meaning}. |\n"
    for count in ClientCounter:
        yield f"| `{count.value}` | counter | `link` | {count.meaning[0].upper()}{count.meaning[1:]}. |\n"


def _of_kraft() -> Iterator[str]:
    for name, meaning in kraft.TEXTS.items():
        labels = "`state`" if name == kraft.STATE else ""
        yield f"| `{kraft.PREFIX}{name}` | `{name.replace('_', '-')}` | {labels} | {meaning} |\n"


def _gauges() -> Iterator[str]:
    for metric in metrics._NodeCollector(farm_view(), durations.Durations(Histogram())).collect():
        if metric.type == "gauge":
            labels = dict.fromkeys(label for sample in metric.samples for label in sample.labels)
            name = metric.name.removeprefix(f"{metrics.PREFIX}_")
            yield f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {metric.documentation} |\n"


def _counters() -> Iterator[str]:
    rows = {family.name(each): (family, each) for family in FAMILIES for each in family.members}
    for name, (family, member) in rows.items():
        label = f"`{family.label}`" if family.metric else ""
        yield f"| `{name}` | {label} | {family.text(member)} |\n"


def _labels() -> Iterator[str]:
    """Yield a table for each metric with a label. Keys that differ from the labels, and remedies, have a column."""
    for family in FAMILIES:
        if not family.metric:
            continue
        key = f"key in {PARTS[family.part]}"
        rows = [[f"`{family.label}`", key, "meaning", "remedy"]]
        rows += [
            [f"`{identifier(each)}`", f"`{family.key(each)}`", each.meaning, family.advice.get(each, "")]
            for each in family.members
        ]
        shown = [0, *([1] if family.keys else []), 2, *([3] if family.advice else [])]
        yield f"\n### {family.metric}\n\n"
        if not family.keys:
            prefix = f"`{family.prefix}` and " if family.prefix else ""
            yield f"{key.capitalize()}: {prefix}the {family.label}.\n\n"
        lines = [f"| {' | '.join(row[column] for column in shown)} |\n" for row in rows]
        yield from (lines[0], f"|{'---|' * len(shown)}\n", *lines[1:])
