"""Tables of the nodes' traces: detections, convergence and members, from made-up events in one or many batches.

Random traces are processed in random batches, with kills between them. The tables must equal the tables of one batch.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pipeline.gold import traces
from pipeline.gold.answers import answer_sql
from pipeline.gold.tables import Gold
from pipeline.gold.traces import TRACED
from pipeline.serve.query import documents
from pipeline.tables.delta import Table
from pipeline.tables.specs import EVENTS_SPEC, LOG
from tests.effort import few_of, over_seeds
from tests.pipeline.made_tables import FARM, derived_rows, gold_rows, rows_of, write_batch, write_current_state

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE_MS = 60_000
HOUR_S = 3_600
OFFSET_MS = -7_000
NODES = ("a", "b", "c")
Rows = list[dict[str, Any]]


def event(node: str, cursor: int, second: float, kind: str, **data: object) -> dict[str, Any]:
    """Return an event at `second` after noon. The clock of the node is 7 s slow."""
    at = NOON + timedelta(seconds=second)
    own_ms = int(at.timestamp() * 1000) + OFFSET_MS
    values = {"node": node, "cursor": cursor, "time_ms": own_ms, "log_time": at, "kind": kind}
    return {**values, "clock_offset_ms": OFFSET_MS, "data": json.dumps(data)}


def report(second: float, server: int) -> dict[str, Any]:
    return {"index": int(second), "log_time": NOON + timedelta(seconds=second), "server_id": server}


def tables(output: Path) -> dict[str, Rows]:
    return {name: gold_rows(output, name) for name in TRACED}


def write_and_derive(output: Path, events: Rows, reports: Rows) -> dict[str, Rows]:
    write_batch(output, "events", 0, events)
    write_batch(output, "reports", 0, reports)
    derived_rows(output, "detections", MINUTE_MS)
    return tables(output)


def test_detection_starts_at_last_report_before_suspicion(tmp_path: Path) -> None:
    events = [
        event("c", 1, 0, "founded", raftId=3),
        event("a", 1, 10, "member-suspect", member="c", id="33"),
        event("a", 2, 14, "member-dead", member="c", id="33"),
        event("b", 1, 15, "member-dead", member="c", id="33"),
        event("a", 3, 40, "member-alive", member="c", id="33"),
        event("a", 4, 50, "member-suspect", member="b", id="22"),
        event("a", 5, 52, "member-alive", member="b", id="22"),
        event("a", 5, 52, "member-alive", member="b", id="22"),
    ]
    # A report from another farm, of a server with the same id, is not a contact.
    made = write_and_derive(tmp_path, events, [report(8, 3), report(20, 3), report(9, 3) | {"farm": "ff" * 16}])
    found = {(row["observer"], row["member"]): row for row in made["detections"]}
    of_c = found["a", "c"]
    assert (of_c["contact_to_suspect_ms"], of_c["contact_to_dead_ms"], of_c["member_id"]) == (2_000, 6_000, "33")
    assert (of_c["outcome"], of_c["dead_to_back_ms"], of_c["is_over"], of_c["farm"]) == (
        "came-back",
        26_000,
        True,
        FARM,
    )
    assert [found["b", "c"][each] for each in ("outcome", "suspect_at", "is_over")] == ["dead", None, False]
    assert [found["a", "b"][each] for each in ("outcome", "server_id")] == ["false-suspicion", None]
    spread = {(row["member"], row["status"]): row for row in made["convergence"]}
    assert (spread["c", "dead"]["seen_by"], spread["c", "dead"]["converged_ms"]) == (["a", "b"], 1_000)
    assert (spread["c", "dead"]["observers"], spread["c", "dead"]["nodes"]) == (2, 3)
    assert [(row["member"], row["server_id"]) for row in made["members"]] == [("a", None), ("b", None), ("c", 3)]


def test_detection_intervals_use_observer_clock(tmp_path: Path) -> None:
    # given a node whose clock is wrongly measured in its second batch of events
    undated = {"farm": None}
    events = [
        event("a", 10, 10, "server-admitted", name="c", server=3),
        event("a", 12, 12, "member-suspect", member="c"),
        event("a", 17, 17, "member-dead", member="c") | {"log_time": NOON - timedelta(hours=1)},
        event("a", 99, 99, "member-alive", member="c") | {"log_time": NOON - timedelta(hours=1)},
        # and, from a file, an event without log time and farm
        event("a", 200, 200, "member-suspect", member="d") | undated | {"log_time": None},
    ]
    write_current_state(tmp_path, 0, {"farm": [{"index": 1}]})
    of_c, of_d = write_and_derive(tmp_path, events, [report(0, 3)])["detections"]
    assert (of_c["contact_to_suspect_ms"], of_c["contact_to_dead_ms"]) == (12_000, 17_000)
    assert (of_c["suspect_to_dead_ms"], of_c["dead_to_back_ms"], of_c["outcome"]) == (5_000, 82_000, "came-back")
    assert of_c["dead_at"] == NOON + timedelta(seconds=17)
    assert of_d["suspect_at"] == NOON + timedelta(seconds=200, milliseconds=OFFSET_MS)
    assert of_d["farm"] == FARM, "there is only one farm"


def test_hostile_events_do_not_stop_derivation(tmp_path: Path) -> None:
    events = [
        event("a", 1, 1, "server-admitted", name="x", server="9" * 40),
        event("a", 2, 2, "server-admitted", name=["x"], server={"a": 1}),
        event("a", 3, 3, "member-suspect", member=None),
        event("a", 4, 4, "member-suspect", member={"a": [1]}),
        event("a", 5, 5, "member-suspect", member="\ud800"),
        event("a", 6, 6, "member-dead", member="b") | {"data": "no JSON"},
        event("a", 7, 7, "member-dead", member="b") | {"time_ms": -1},
        event("a", 8, 8, "member-dead", member="b") | {"time_ms": 2**62},
        event("a", 9, 9, "member-dead", member="b"),
    ]
    made = write_and_derive(tmp_path, events, [])
    assert [row["member"] for row in made["detections"] if row["member"] != '{"a":[1]}'] == ["b"]


def random_trace(random: Random, node: str, seconds: int) -> Iterator[dict[str, Any]]:
    """Yield the trace of a node: status changes of the other nodes, and occasional restarts of itself."""
    cursor, second = 1, random.uniform(0, HOUR_S)
    yield event(node, 1, second, "joined", raftId=1 + NODES.index(node))
    while (second := round(second + random.expovariate(1 / 900), 3)) < seconds:
        cursor += 1
        if random.random() < 0.1:
            cursor = 1
            yield event(node, 1, second, "node-started", pid=1)
        kind = random.choice(["alive", "suspect", "suspect", "dead", "dead", "left"])
        member = random.choice([each for each in NODES if each != node])
        yield event(node, cursor + 1, second, f"member-{kind}", member=member, id=member * 2)
        cursor += 1


def steps(random: Random, hours: int) -> Iterator[tuple[str, Rows]]:
    """Yield batches of events and of reports in random order: neither query waits for the other."""
    seconds = hours * HOUR_S
    traces = [[*random_trace(random, node, seconds)] for node in NODES]
    # A server misses a tenth of its reports.
    reports = [report(at, server) for at in range(0, seconds, 30) for server in (1, 2, 3) if random.random() < 0.9]
    old: Rows = []
    while any(traces) or reports:
        if random.random() < 0.5 and any(traces):
            batch: Rows = []
            for trace in traces:
                count = random.choice((0, 5, 40))
                batch += trace[:count]
                del trace[:count]
            # Some events are repeated, like events from a renamed file.
            yield "events", [*batch, *random.sample(old, min(2, len(old)))]
            old += batch
        else:
            count = random.choice((1_000, 5_000))
            yield "reports", reports[:count]
            del reports[:count]


class Run:
    """A run of the pipeline, which a test can kill."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.gold = Gold(output, MINUTE_MS)
        self.batches = {"events": -1, "reports": -1}

    def write(self, table: str, rows: Rows) -> None:
        """Write a batch, and record the windows that it touches."""
        self.batches[table] += 1
        starts = sorted({each["log_time"].replace(second=0, microsecond=0) for each in rows})
        if table == "reports" and rows:
            windows = pa.table({"farm": [FARM] * len(starts), "window_start": starts})
            self.gold.note(LOG, self.batches[table], windows)
        write_batch(self.output, table, self.batches[table], rows)

    def refresh(self) -> None:
        self.gold.refresh(self.batches["reports"])


def derive_in_one_batch(output: Path, batches: list[tuple[str, Rows]]) -> dict[str, Rows]:
    run = Run(output)
    for table in run.batches:
        run.write(table, [row for name, rows in batches for row in rows if name == table])
    run.refresh()
    return tables(output)


@pytest.mark.soak
@over_seeds(10)
def test_tables_from_many_batches_equal_one_batch(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    batches, run = [*steps(random, hours=24)], Run(tmp_path / "grown")
    for table, rows in batches:
        run.write(table, rows)
        if random.random() < 0.7:
            run.refresh()
        if random.random() < 0.1:
            Table(run.output, EVENTS_SPEC).merge_small(NOON.date(), 2**20)
    run.refresh()
    expected = derive_in_one_batch(tmp_path / "once", batches)
    for name, rows in tables(run.output).items():
        assert rows == expected[name], (seed, name)
    detections = expected["detections"]
    assert {row["outcome"] for row in detections} == {"left", "came-back", "false-suspicion", "dead", "suspect"}
    assert {row["is_over"] for row in detections if row["outcome"] == "dead"} == {True, False}
    assert all(row["last_contact"] for row in detections)


@pytest.mark.soak
def test_killed_run_counts_each_event_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(9)
    batches = [*steps(random, hours=24)]
    expected = derive_in_one_batch(tmp_path / "once", batches)
    run, commit, kills = Run(tmp_path / "killed"), Table._commit, 0

    def killed_around(table: Table, *arguments: Any) -> None:
        # kill the run before or after a commit of a derived table, or not at all
        place = random.choice(("before", "after", "never"))
        if table.spec.name not in TRACED or place == "never":
            commit(table, *arguments)
            return
        if place == "after":
            commit(table, *arguments)
        raise KeyboardInterrupt

    for table, rows in batches:
        run.write(table, rows)
        with monkeypatch.context() as patched:
            patched.setattr(Table, "_commit", killed_around)
            try:
                run.refresh()
            except KeyboardInterrupt:
                kills += 1
                run.gold = Gold(run.output, MINUTE_MS)
    run.refresh()
    assert kills > 2
    assert tables(run.output) == expected


def test_run_killed_after_commit_of_detections_counts_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two batches of events; the first batch ends before each observer's first episode is over
    events = [
        event("c", 1, 0, "joined", raftId=3),
        *(
            event(observer, second, second, f"member-{kind}", member="c", id="33")
            for second, kind in ((10, "suspect"), (12, "dead"), (40, "alive"), (50, "suspect"), (52, "alive"))
            for observer in "ab"
        ),
    ]
    batches = [("reports", [report(8, 3)]), ("events", events[:5]), ("events", events[5:])]
    expected = derive_in_one_batch(tmp_path / "once", batches)
    run, commit = Run(tmp_path / "killed"), Table._commit

    def killed_after(table: Table, *arguments: Any) -> None:
        commit(table, *arguments)
        if table.spec.name == "detections":
            raise KeyboardInterrupt

    # when the run is killed after the first commit of each batch
    for table, rows in batches:
        run.write(table, rows)
        if table == "events":
            with monkeypatch.context() as patched:
                patched.setattr(Table, "_commit", killed_after)
                with pytest.raises(KeyboardInterrupt):
                    run.refresh()
            run.gold = Gold(run.output, MINUTE_MS)
    # then the next run completes the other tables
    run.refresh()
    assert tables(run.output) == expected


def test_restart_after_refresh_without_traces_repeats_no_window(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write("reports", [report(second, 1) for second in range(0, 3_600, 30)])
    assert run.gold.noted_windows == 60
    run.refresh()
    assert Gold(tmp_path, MINUTE_MS).noted_windows == 0


def copies_of(rows: Rows, **changed: object) -> Rows:
    return [row | changed for row in rows]


UNDATED = {"log_time": None, "clock_offset_ms": None}
COPIES = {
    "undated": (UNDATED, 1),
    "undated-two-farms": (UNDATED, 2),
    "another-day": ({"log_time": NOON + timedelta(hours=30), "clock_offset_ms": -40 * HOUR_S * 1_000}, 1),
    "same-date-two-farms": ({}, 2),
}
"""Differences of the copy in a file, and the number of farms."""
ORDERS = {
    f"{name}-{order}": (*copy, order == "file-first")
    for name, copy in COPIES.items()
    for order in ("file-first", "node-first")
}


@pytest.mark.parametrize(
    ("dates", "farms", "is_file_first"), few_of(ORDERS, "undated-two-farms-file-first", "another-day-node-first")
)
def test_event_from_node_and_file_counts_once(
    farms: int, dates: dict[str, object], tmp_path: Path, *, is_file_first: bool
) -> None:
    write_current_state(tmp_path, 0, {"farm": [{"index": 1, "farm": each} for each in (FARM, "ff" * 16)[:farms]]})
    of_node = [
        event("a", 1, 10, "member-suspect", member="c", id="33"),
        event("a", 2, 12, "member-dead", member="c", id="33"),
        event("a", 3, 40, "member-alive", member="c", id="33"),
    ]
    of_file = copies_of(of_node, farm=None, **dates)
    for batch, rows in enumerate((of_file, of_node) if is_file_first else (of_node, of_file)):
        write_batch(tmp_path, "events", batch, rows)
        derived_rows(tmp_path, "detections", MINUTE_MS)
    made = tables(tmp_path)
    assert [row["outcome"] for row in made["detections"]] == ["came-back"]
    # The copy that was read first counts, and the clocks of nodes are not compared.
    is_dated = not is_file_first or dates.get("log_time", NOON) is not None
    counted = [("alive", 1), ("dead", 1), ("suspect", 1)] if is_dated else []
    assert [(row["status"], row["observers"]) for row in made["convergence"]] == counted
    assert [row["is_dated"] for row in made["detections"]] == [is_dated]
    assert [(row["member"], row["first_event_at"] is not None) for row in made["members"]] == [("a", is_dated)]


def test_undated_events_are_not_compared_with_other_nodes(tmp_path: Path) -> None:
    # given a trace of "b" without any log time, whose clock is an hour slow
    of_a = [event("a", 1, 10, "member-suspect", member="c", id="33"), event("a", 2, 14, "member-dead", member="c")]
    of_b = [each | {"node": "b", "time_ms": each["time_ms"] - 3_600_000, "log_time": None} for each in of_a]
    # when the log has reports of all hours, and the events come in two batches
    write_batch(tmp_path, "reports", 0, [report(second, 3) for second in range(-7_200, 60, 30)])
    write_batch(tmp_path, "events", 0, [event("c", 1, 0, "founded", raftId=3), of_a[0], of_b[0]])
    derived_rows(tmp_path, "detections", MINUTE_MS)
    write_batch(tmp_path, "events", 1, [of_a[1], of_b[1]])
    derived_rows(tmp_path, "detections", MINUTE_MS)
    # then only the times of "a" are compared
    made = tables(tmp_path)
    found = {row["observer"]: row for row in made["detections"]}
    assert [(row["is_dated"], row["contact_to_suspect_ms"]) for row in (found["a"], found["b"])] == [
        (True, 10_000),
        (False, None),
    ]
    assert found["b"]["suspect_to_dead_ms"] == 4_000
    assert [(row["status"], row["seen_by"]) for row in made["convergence"]] == [("dead", ["a"]), ("suspect", ["a"])]
    assert {row["nodes"] for row in made["convergence"]} == {2}
    (of_farm,) = (row for row in documents(tmp_path, answer_sql("detection")) if row["kind"] == "farm")
    assert of_farm["suspicions"] == 1


def test_tables_of_an_earlier_text_are_made_again(tmp_path: Path) -> None:
    # given an episode that is over, derived by another text and without the column of this version
    events = [
        event("a", 1, 10, "member-suspect", member="c", id="33"),
        event("a", 2, 40, "member-alive", member="c", id="33"),
    ]
    write_batch(tmp_path, "events", 0, events)
    detections = TRACED["detections"]
    earlier = pa.schema([each for each in detections.spec.schema if each.name != "is_dated"])
    row = {"farm": FARM, "observer": "a", "member": "c", "suspect_at": NOON, "outcome": "false-suspicion"}
    table = Table(tmp_path, replace(detections.spec, schema=earlier))
    table.append("events, text 05790100", 0, rows_of(earlier, [{**row, "noticed_ms": 1, "is_over": True}]))
    # when this version derives it
    derived_rows(tmp_path, "detections", MINUTE_MS)
    assert [(each["suspect_at"], each["is_dated"]) for each in gold_rows(tmp_path, "detections")] == [
        (NOON + timedelta(seconds=10), True)
    ]


def test_copies_in_one_batch_count_once_with_known_date(tmp_path: Path) -> None:
    of_node = [event("a", 1, 10, "member-suspect", member="c", id="33")]
    made = write_and_derive(tmp_path, [*copies_of(of_node, farm=None, log_time=None), *of_node], [])
    assert [row["suspect_at"] for row in made["detections"]] == [NOON + timedelta(seconds=10)]


@pytest.mark.soak
def test_long_trace_is_derived_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [*steps(Random(5), hours=6)]
    events = [rows for table, rows in batches if table == "events"]
    expected = derive_in_one_batch(tmp_path / "once", batches)
    run = Run(tmp_path / "portions")
    for table, rows in batches:
        run.write(table, rows)
    Table(run.output, EVENTS_SPEC).merge_small(NOON.date(), 2**20)
    monkeypatch.setattr(traces, "PORTION_EVENTS", 20)
    sizes: list[int] = []

    def counted(*arguments: Any) -> list[traces._Portion]:
        found = portions(*arguments)
        sizes.extend(last.through - last.made for last in found)
        return found

    portions = traces._portions
    monkeypatch.setattr(traces, "_portions", counted)
    run.refresh()
    assert tables(run.output) == expected
    assert sum(map(len, events)) > 3 * 20
    assert len(sizes) > 3 * len(TRACED), "a portion contains a few batches, not all"
