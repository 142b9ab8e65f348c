"""docs/reference/metrics.md: the gauges of a made-up farm, and the counters, histograms and others as declared."""

from collections.abc import Iterator
from itertools import chain

from prometheus_client.parser import text_string_to_metric_families

from bridge.cli.kraft import metrics as kraft
from bridge.node.control import metrics
from bridge.node.control.counters import FAMILIES, ViewPart, identifier
from bridge.node.events import durations
from consensus.protocols.kraft.replica.peer_transport import TransportEvent
from consensus.protocols.zmq_raft.counters import ClientEvent, PeerEvent
from pipeline.serve import metrics as pipeline
from tests.operator_views import farm_view

HEAD = f"""# Metrics

`GET /metrics` on the control socket answers in Prometheus' text format ([control-endpoint.md](control-endpoint.md);
[monitor.md](../how-to/monitor.md) has a configuration). The node makes the metrics from its view when it is asked.
Each name begins with `{metrics.PREFIX}_`. Labels are names of nodes and small words; no node id, destination, hash or
address is among them.

## Gauges

| metric | labels | meaning |
|---|---|---|
"""
COUNTERS = """
## Counters

Each ends in `_total`, and is there from 0 on; it begins at 0 with the process. Those of `kafka` and `zmq` are there if
the node has that endpoint. The view has the same counters: without labels the key is the metric's name, without
`gossip_` and `raft_` in the counters of these parts. The tables of the labels have the other keys.

| counter | labels | meaning |
|---|---|---|
"""
LABEL = """
### {name}

| `{label}` | key in {part} | meaning | what to do |
|---|---|---|---|
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
PARTS = {ViewPart.NODE: "`counters`", ViewPart.GOSSIP: "`counters` of `gossip`", ViewPart.RAFT: "`counters` of `raft`"}
HISTOGRAMS = f"""
## Histograms

Each is `{metrics.PREFIX}_…_seconds`, with `_bucket`, `_sum` and `_count`; of this process since its start.

| metric | meaning |
|---|---|
"""
KRAFT = f"""
## A server of a KRaft quorum

`garlicfarm kraft serve --metrics HOST:PORT` answers `GET /metrics` there, in the same format. The metrics are the
thirteen of KIP-595: each name is the KIP's after `{kraft.PREFIX}`, with `_` for `-`; an average and a maximum are two
gauges. Averages, maxima and rates are of the last 30 to 60 seconds, as in Kafka; `NaN` means that there was nothing to
measure.

| metric | of the KIP | labels | meaning |
|---|---|---|---|
"""
PIPELINE = f"""
## The data pipeline

`garlicfarm pipeline run --metrics [HOST:]PORT` answers `GET /metrics` there, in the same format. Each name begins with
`{pipeline.PREFIX}_`, a counter ends in `_total`, and the histogram has `_bucket`, `_sum` and `_count`. All are of this
run since its start, and of all its farms together; `NaN` is not known yet.

| metric | kind | meaning |
|---|---|---|
"""


def page() -> str:
    """The document."""
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
        + PIPELINE
        + "".join(_of_pipeline())
        + LIBRARIES
        + "".join(f"| `{type(each).__name__}` | `{each.value}` | {each.meaning} |\n" for each in chain(*OF_LIBRARIES))
    )


def _of_pipeline() -> Iterator[str]:
    for metric in text_string_to_metric_families(pipeline.RunMetrics().exposition().decode()):
        name = metric.name.removeprefix(f"{pipeline.PREFIX}_")
        yield f"| `{name}` | {metric.type} | {metric.documentation} |\n"


def _of_kraft() -> Iterator[str]:
    for name, meaning in kraft.TEXTS.items():
        labels = "`state`" if name == kraft.STATE else ""
        yield f"| `{kraft.PREFIX}{name}` | `{name.replace('_', '-')}` | {labels} | {meaning} |\n"


def _gauges() -> Iterator[str]:
    for metric in metrics._ViewCollector(farm_view()).collect():
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
    for family in FAMILIES:
        if family.metric:
            yield LABEL.format(name=family.metric, label=family.label, part=PARTS[family.part])
            for each in family.members:
                advice = family.advice.get(each, "")
                yield f"| `{identifier(each)}` | `{family.key(each)}` | {each.meaning} | {advice} |\n"
