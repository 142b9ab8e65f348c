"""docs/reference/metrics.md: gauges as the collector tells them of a fabricated farm, and the names of all counters."""

import ast
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from types import ModuleType

from prometheus_client.parser import text_string_to_metric_families

from bridge.cli.kraft import metrics as kraft
from bridge.core.log.kinds import COUNTED
from bridge.core.membership.authors import NoEffect
from bridge.node.control import metric_texts, metrics, routes, view_builder
from bridge.node.events import durations
from consensus import Drop, ShellDrop
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent
from consensus.protocols.garlic_farm.wire.errors import Fault
from gossip.core.effects import DropReason
from gossip.node.limits import Loss
from gossip.wire.seal import SealFault
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

Each ends in `_total`, and begins at 0 with the process; the view has the same counters without `garlicfarm_` and
`_total`. A name with `…` stands for several, which end in a reason in words and come into being with their first count.

| counter | meaning |
|---|---|
"""
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
    counters = [f"| `{name}` | {metric_texts.counter_text(name)} |\n" for name in counter_names()]
    histograms = [f"| `{name}_seconds` | {meaning} |\n" for name, meaning in durations.TEXTS.items()]
    measured = HISTOGRAMS + "".join(histograms)
    return (
        HEAD
        + "".join(_gauges())
        + COUNTERS
        + "".join(counters)
        + measured
        + KRAFT
        + "".join(_of_kraft())
        + PIPELINE
        + "".join(_of_pipeline())
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
    for metric in metrics._ViewCollector(farm_view(), {}).collect():
        if metric.type == "gauge":
            labels = dict.fromkeys(label for sample in metric.samples for label in sample.labels)
            name = metric.name.removeprefix(f"{metrics.PREFIX}_")
            yield f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {metric.documentation} |\n"


def counter_names() -> list[str]:
    """Every counter that is known before a node runs, and how the others begin."""
    known = [
        *_keys(view_builder, "gossip_counters", "gossip_"),
        *_values("gossip_dropped_", SealFault, Loss),
        *_values("gossip_ignored_", DropReason),
        *routes.new_counters(),
        *_values("garlic_farm_", Fault),
        *_values("garlic_farm_", ConnectionEvent),
        *(f"raft_{name}" for name in COUNTED),
        *_values("raft_without_effect_", NoEffect),
        *_values("raft_dropped_", ShellDrop),
        *_values("raft_ignored_", Drop),
        *_keys(view_builder, "counters", "raft_", of="FarmInputs"),
        *_keys(view_builder, "counters", "", of="ViewInputs"),
    ]
    made_later = [name for name in metric_texts.COUNTERS if name.startswith(("zmq_", "kafka_"))]
    return [*known, *made_later, *metric_texts.names_of_families()]


def _values(prefix: str, *kinds: type[Enum]) -> list[str]:
    return [prefix + re.sub(r"\W", "_", each.value) for kind in kinds for each in kind]


def _keys(module: ModuleType, keyword: str, prefix: str, of: str = "") -> list[str]:
    """The keys of the dictionaries that are made for `keyword` of a call of `of`."""
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Call(ast.Name(name), _, keywords) if of in {"", name}:
                found += [each.value for each in keywords if each.arg == keyword]
    keys = [key for each in found if isinstance(each, ast.Dict) for key in each.keys]
    return [prefix + str(key.value) for key in keys if isinstance(key, ast.Constant)]
