"""A made-up day: the history, events, the end of the log, and the sights of all nodes, for pages and pictures."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from msgspec.json import encode as json

from bridge.api.log import EntryKind, LogEntryView
from bridge.api.observations.history import NOT_REPORTED
from bridge.api.trace import TraceEvent
from bridge.api.view import FarmView
from bridge.core.formation.member import MemberStatus
from bridge.core.log.records import Clock
from bridge.wire.log.entries import encode as encode_entry
from tests.operator_views import MASTER, leaf

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
STEPS = 24 * 60
PERIOD_MS = 30_000
CLOCKS = 18
SEVERITY = {"alive": "ok", "suspect": "warning", "dead": "critical", "left": "warning"}
Json = dict[str, Any]


def span(start_ms: int, end_ms: int, text: str, severity: str = "ok") -> Json:
    return {"startMs": start_ms, "endMs": end_ms, "text": text, "severity": severity}


def row(kind: str, name: str | None, spans: list[Json], owner: str | None = None) -> Json:
    return {"kind": kind, "name": name, "owner": owner, "spans": spans}


def history(now_ms: int, names: Sequence[str], *, short_failures: int = 0) -> Json:
    """Return a day with two failures of the second node, an hour without records, and changes of the leader."""
    start = now_ms - 24 * HOUR_MS
    at = [start + round(each * HOUR_MS) for each in (0, 5, 6, 9, 9.05, 9.6, 17, 17.02, 17.3, 24)]
    first, second, third = (list(names) * 3)[:3]
    ran = (at[0], at[1])
    rows = [
        row(
            "verdict",
            None,
            [
                span(*ran, "Healthy, can lose 1 of 3"),
                span(at[2], at[3], "Healthy, can lose 1 of 3"),
                span(at[3], at[5], f"Degraded: {second} is dead", "warning"),
                span(at[5], at[6], "Healthy, can lose 1 of 3"),
                span(at[6], at[7], "No quorum: 1 of 3 voters is reachable", "critical"),
                span(at[7], at[8], f"Degraded: {second} is dead", "warning"),
                span(at[8], at[9], "Healthy, can lose 1 of 3"),
            ],
        ),
        row(
            "leader",
            None,
            [
                span(*ran, first),
                span(at[2], at[3], second),
                span(at[3], at[4], "", "critical"),
                span(at[4], at[6], third),
                span(at[6], at[7], "", "critical"),
                span(at[7], at[9], first),
            ],
        ),
        row("publisher", MASTER, [span(*ran, first), span(at[2], at[4], second), span(at[4], at[9], third)]),
    ]
    for place, name in enumerate(names):
        fails = place == 1
        states = [span(*ran, "alive"), span(at[2], at[9], "alive")]
        if fails:
            states = [span(*ran, "alive"), span(at[2], at[3], "alive"), span(at[3], at[4], "suspect", "warning")]
            states += [span(at[4], at[5], "dead", "critical"), span(at[5], at[6], "alive")]
            states += [span(at[6], at[8], "dead", "critical"), span(at[8], at[9], "alive")]
        if short_failures:
            states = flapping(start, now_ms, short_failures)
        rows.append(row("node", name, states))
        healthy = [span(*ran, "healthy"), span(at[2], at[9], "healthy")]
        if fails:
            healthy = [span(at[2], at[3], "healthy"), span(at[3], at[5], NOT_REPORTED, "critical")]
            healthy += [span(at[5], at[9], "healthy")]
        rows.append(row("leaf", leaf(place + 1), healthy, name))
    rows.append(row("alarm", "no-quorum", [span(at[6], at[7], "no quorum", "critical")]))
    rows.append(row("alarm", "signing-key-ends", [span(at[2], at[9], "the signing key ends", "warning")]))
    random = Random(1)
    trips = [
        {"kind": "roundTrip", "name": name, "unit": "ms", "values": _values(random, 0.8 + place % 5, 5 * 60, 6 * 60)}
        for place, name in enumerate(names[1:])
    ]
    lag = {"kind": "commitLag", "name": None, "unit": "ms", "values": _values(random, 12.0, 5 * 60, 6 * 60)}
    return {
        "schema": 1,
        "node": first,
        "fromMs": start,
        "toMs": now_ms,
        "stepMs": MINUTE_MS,
        "rows": rows,
        "series": [*trips, lag],
        "spansLeftOut": 0,
        "rowsLeftOut": 0,
    }


def up_to(view: FarmView, day: Json, since_ms: int) -> Json:
    now_ms = day["toMs"]
    alive = {each.name: each.status.value for each in view.members}
    healthy = {leaf.destination: leaf.healthy and not each.stale for each in view.reports for leaf in each.leaves}
    publishers = {each.master: each.publisher_name or "" for each in view.publishing}
    leader = view.raft.leader_name or ""
    present: dict[str, Callable[[Any], tuple[str, str]]] = {
        "verdict": lambda _: (view.verdict.text, view.verdict.severity.value),
        "leader": lambda _: (leader, "ok" if leader else "critical"),
        "publisher": lambda name: (publishers[name], "ok" if publishers[name] else "critical"),
        "node": lambda name: (alive[name], SEVERITY[alive[name]]),
        "leaf": lambda name: ("healthy", "ok") if healthy[name] else (NOT_REPORTED, "critical"),
    }
    rows = []
    for each in day["rows"]:
        before = [one | {"endMs": min(one["endMs"], since_ms)} for one in each["spans"] if one["startMs"] < since_ms]
        before += [
            span(since_ms, now_ms, one.text, one.severity.value) for one in view.alarms if one.kind == each["name"]
        ]
        if each["kind"] in present:
            before.append(span(since_ms, now_ms, *present[each["kind"]](each["name"])))
        rows.append(each | {"spans": before})
    known = {each["name"] for each in rows}
    rows += [
        row("alarm", each.kind, [span(since_ms, now_ms, each.text, each.severity.value)])
        for each in view.alarms
        if each.kind not in known
    ]
    steps = (since_ms - day["fromMs"]) // day["stepMs"]
    ended = {each.name for each in view.members if each.status is not MemberStatus.ALIVE} | (
        {None} if not leader else set()
    )
    series = [
        each | {"values": each["values"][:steps] + [None] * (STEPS - steps)} if each["name"] in ended else each
        for each in day["series"]
    ]
    return day | {"rows": rows, "series": series}


def trace(view: FarmView, now_ms: int, since_ms: int) -> tuple[TraceEvent, ...]:
    """Return the events of a farm that was healthy until `since_ms`, and has the state of the view since then."""
    node, raft, minute = view.node.name, view.raft, since_ms - 3 * MINUTE_MS
    leader = {"leader": raft.leader_id, "leaderName": raft.leader_name, "term": raft.term}
    found: list[tuple[int, str, dict[str, Any]]] = []
    if raft.voters:
        found = [
            (now_ms - 402 * MINUTE_MS, "member-alive", {"member": "node-2"}),
            (now_ms - 402 * MINUTE_MS + 900, "connection-restored", {"text": "TCP to node-2", "failures": 31}),
            (now_ms - 401 * MINUTE_MS, "verdict-changed", {"text": "Healthy, can lose 1 of 3", "severity": "ok"}),
            (minute, "structure-seen", {"master": MASTER}),
        ]
    else:
        found = [(minute, "node-started", {"pid": view.node.pid, "generation": view.node.generation})]
    late = [each for each in view.members if each.status is not MemberStatus.ALIVE]
    found += [(since_ms - 4_000 + each.number, "member-suspect", {"member": each.name}) for each in late]
    if raft.voters and raft.leader_id is None:
        found += [(since_ms - 2_900, "leader-unknown", {"term": raft.term})]
        found += [(since_ms - 1_500, "election-started", {"term": raft.term})]
    elif raft.leader_id not in {None, 1}:
        found += [(since_ms - 1_500, "leader-followed", leader)]
    found += [(since_ms - 1_000 + each.number, "member-dead", {"member": each.name}) for each in late]
    for leaf_view in (each for report in view.reports if report.raft_id == view.node.raft_id for each in report.leaves):
        failed = [each for each in leaf_view.conditions or () if not each.holds]
        if failed:
            facts = {"leaf": leaf_view.destination.removesuffix(".b32.i2p"), "error": failed[0].last_error}
            found += [(since_ms - 500, "leaf-unhealthy", {**facts, "conditions": failed[0].condition})]
    found += [(since_ms, "alarm-raised", {"alarm": each.kind, "text": each.text}) for each in view.alarms]
    verdict = view.verdict
    found += [(since_ms + 10, "verdict-changed", {"text": verdict.text, "severity": verdict.severity.value})]
    return tuple(
        TraceEvent(place, at_ms, None, kind, node, facts) for place, (at_ms, kind, facts) in enumerate(found, 1)
    )


def log_tail(view: FarmView, until_ms: int) -> tuple[LogEntryView, ...]:
    """Return the last entries of the log: two of a new leader, then a clock entry per reporting period."""
    last, leader = view.raft.commit_index, view.raft.leader_id or 1
    servers = [{"id": each.raft_id, "endpoint": each.endpoint} for each in view.raft.voters]
    start_ms = until_ms - CLOCKS * PERIOD_MS
    first = last - CLOCKS - 1
    found = [
        LogEntryView.of(first, view.raft.term, EntryKind.NO_OP, start_ms, json({"leader": leader})),
        LogEntryView.of(first + 1, view.raft.term, EntryKind.CONFIGURATION, start_ms, json({"voters": servers})),
    ]
    for each in range(1, CLOCKS + 1):
        at_ms = start_ms + each * PERIOD_MS
        data = encode_entry(Clock(at_ms, leader, PERIOD_MS))
        found.append(LogEntryView.of(first + 1 + each, view.raft.term, EntryKind.APPLICATION, at_ms, data))
    return tuple(found)


def flapping(start_ms: int, end_ms: int, failures: int) -> list[Json]:
    """Return spans of a node that fails again and again."""
    step = (end_ms - start_ms) // failures
    found = []
    for each in range(failures):
        begin = start_ms + each * step
        found += [
            span(begin, begin + step - step // 8, "alive"),
            span(begin + step - step // 8, begin + step, "dead", "critical"),
        ]
    return found


def _values(random: Random, usual: float, gap: int, end: int) -> list[float | None]:
    """Return a day of figures with a gap, and one outlier."""
    found: list[float | None] = [round(usual * random.lognormvariate(0, 0.25), 2) for _ in range(STEPS)]
    found[gap:end] = [None] * (end - gap)
    found[1020] = usual * 60
    return found


def sights(now_ms: int, names: Sequence[str], *, silent: Sequence[str] = (), odd: str | None = None) -> Json:
    """Return the farm as each node sees it; `silent` nodes did not reply, and `odd` sees the first node dead."""
    nodes = []
    for place, name in enumerate(names):
        seen = dict.fromkeys(names, "alive")
        if name == odd:
            seen[names[0]] = "dead"
        seen |= dict.fromkeys(silent, "dead")
        common = {"name": name, "nodeId": f"{place + 1:016x}", "answered": name not in silent}
        if name in silent:
            nodes.append({**common, "ageMs": None, "verdict": None, "severity": None, "leader": None, "term": None})
            nodes[-1] |= {"commitIndex": None, "members": {}, "publishers": {}}
            continue
        verdict = ("degraded", "warning") if silent or name == odd else ("healthy", "ok")
        nodes.append({**common, "ageMs": 400, "verdict": verdict[0], "severity": verdict[1], "term": 3 + (name == odd)})
        nodes[-1] |= {"leader": names[1] if name == odd else names[0], "commitIndex": 217 - 30 * (name == odd)}
        nodes[-1] |= {"members": seen, "publishers": {MASTER: names[1 % len(names)]}}
    return {"schema": 1, "takenAtMs": now_ms, "nodes": nodes}
