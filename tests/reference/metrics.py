"""docs/reference/metrics.md: gauges as the collector tells them of a fabricated farm, and the names of all counters."""

import ast
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from types import ModuleType

from bridge.cli.kraft import metrics as kraft
from bridge.core.membership.authors import NoEffect
from bridge.node.control import metrics, routes, view_builder
from bridge.node.events import durations
from bridge.node.raft.applied_state import _COUNTED
from consensus.protocols.garlic_farm.wire.errors import Fault
from gossip.core.effects import DropReason
from gossip.node.limits import Loss
from gossip.wire.seal import Refusal
from tests.operator_views import farm_view
from tests.structure.raft_rules import ROOT

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

Each ends in `_total`; the view has the same counters without `garlicfarm_` and `_total`.

| counters | what is counted |
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


def page() -> str:
    """The document."""
    counters = [f"| {_names(names)} | {meaning} |\n" for names, meaning in _counters()]
    histograms = [f"| `{name}_seconds` | {meaning} |\n" for name, meaning in durations.TEXTS.items()]
    measured = HISTOGRAMS + "".join(histograms)
    return HEAD + "".join(_gauges()) + COUNTERS + "".join(counters) + measured + KRAFT + "".join(_of_kraft())


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


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _counters() -> Iterator[tuple[list[str], str]]:
    yield _keys(view_builder, "gossip_counters", "gossip_"), "datagrams, bytes and events of gossip"
    yield _values("gossip_dropped_", Refusal, Loss), "datagrams that gossip dropped, by reason"
    yield _values("gossip_ignored_", DropReason), "messages that changed nothing, by reason"
    yield list(routes.new_counters()), "requests of the control endpoint"
    yield _values("garlic_farm_", Fault), "connections of the Raft port that failed, by [fault](refusals.md)"
    yield _counted("garlic_farm_"), "other events of the Raft port"
    yield [f"raft_{name}" for name in _COUNTED.values()], "entries that this node applied, by kind"
    reasons = _values("raft_without_effect_", NoEffect)
    yield reasons, "entries [without effect](application-json.md#the-proof-of-an-entrys-author), by reason"
    yield _keys(view_builder, "counters", "raft_", of="FarmInputs"), "work of the Raft server and its disk"
    yield ["raft_dropped_…", "raft_ignored_…"], "what the Raft server did not take, by reason in words"
    yield _keys(view_builder, "counters", "", of="ViewInputs"), "what other nodes told and this node could not use"
    text = "with `[zmq]`: messages of the ØMQ endpoint, updates by their end, and what it dropped, by reason in words"
    yield ["zmq_messages_received", "zmq_messages_sent", "zmq_updates_…", "zmq_…"], text
    text = (
        "with `[kafka]`: requests of the Kafka listener, bytes of requests and answers, logins;"
        " records that clients produced and batches that were refused, by reason; connections by their end, in words"
    )
    names = ["kafka_requests_answered", "kafka_bytes_received", "kafka_bytes_sent", "kafka_logins"]
    yield [*names, "kafka_connections_accepted", "kafka_closed_…", "kafka_produced_…"], text


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


def _counted(prefix: str) -> list[str]:
    """The literal names that modules of the Garlic Farm protocol give to `count`."""
    folder = ROOT / "consensus" / "protocols" / "garlic_farm" / "node"
    names = {
        str(node.args[0].value)
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "count"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    return [prefix + name.replace("-", "_") for name in sorted(names)]
