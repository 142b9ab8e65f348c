"""Alerts: outages of servers, their messages, and the deliveries. A repeated message has the same id.

The first part tests the SQL of outages on tables of a made-up farm. The second part tests the messages of an outage,
without tables. The third part runs `Alerting` with receivers, restarts and failures.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from shutil import copytree
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pipeline.alerts import alerting as module
from pipeline.alerts.alerting import NEAR_S, SHRINKS_S, TURN_S, Alerting, AlertStore, Backlog, note_run_without_alerts
from pipeline.alerts.delivery import DeliveryError, Receiver
from pipeline.alerts.outages import Alert, FailedServer, message, message_id, server_of, updated_alerts
from pipeline.alerts.silences import SILENCES_FILE, Silences
from pipeline.cli.alerts import silence
from pipeline.gold.answers import Around, answer_sql
from pipeline.lake import Lake
from pipeline.output.buckets import OvertakenError
from pipeline.serve import alert_history as alert_history_module
from pipeline.serve.alert_history import AlertSetting, alert_history
from pipeline.serve.metrics import RunMetrics
from pipeline.serve.query import documents
from pipeline.tables.delta import Table, TableSpec, stored_rows
from pipeline.tables.files import DataFile
from pipeline.tables.specs import ALERTS_SPEC, BASE_SPECS, EVENTS, STATES_SPEC
from pipeline.watch import machine
from pipeline.watch.machine import Transition
from pipeline.watch.watching import FarmsWatch
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog, address, arrow_entries_of, destination
from tests.pipeline.made_tables import lake_at, write_batch, write_current_state, write_entries

PERIOD_MS = 30_000
KEEP_MS = 600_000
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Farm:
    """A farm. Its log is written into tables in batches."""

    def __init__(self, output: Path, silent: "Farm | None" = None) -> None:
        self.output, self.silent = output, silent
        self.log = MadeUpLog()
        self.log.add("configuration", value='{"servers":[]}')
        self.name: str | None = None
        self.read = self.before = 0
        self.batch = -1
        self.lake: Lake | None = None

    def start_with_silent_server(self) -> None:
        """Copy the tables of a farm whose server 2 has stopped reporting."""
        assert self.silent is not None
        copytree(self.silent.output, self.output)
        self.log = deepcopy(self.silent.log)
        self.read, self.before, self.batch = self.silent.read, self.silent.before, self.silent.batch

    def report(self, *servers: int, periods: int = 1, attached: bool = True) -> None:
        """Add reports of `servers` for some periods; all other servers send nothing."""
        for _ in range(periods):
            self.log.tick(PERIOD_MS)
            for server in servers:
                body = {
                    "cluster": "farm",
                    "date": self.log.log_time_ms,
                    "id": server,
                    "router": {"attached": attached or server == 1, "uptime": self.log.log_time_ms - EPOCH_MS},
                    "destinations": [{"destination": destination(f"leaf {server}"), "healthy": True}],
                }
                self.log.add(value=json.dumps(body))

    def add_entry(self, **members: object) -> None:
        """Add an entry of an operator or of the leader."""
        self.log.add(value=json.dumps(members))

    def write(self, *, again: bool = False) -> None:
        """Write new entries as one batch. `again`: repeat the last batch, like a run after a crash."""
        first = self.read if not again else self.before
        self.before, self.read = first, len(self.log.entries)
        self.batch += not again
        if self.lake is None or again:
            self.lake = lake_at(self.output, watch=True)
        write_entries(self.lake, arrow_entries_of(self.log, self.name).slice(first), self.batch)

    def servers(self, keep_ms: int = KEEP_MS) -> dict[int, FailedServer]:
        sql = module._LOOK_SQL.replace("$keep_ms", str(keep_ms))
        return {row["server_id"]: server_of(row) for row in documents(self.output, sql)}


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Farm:
    made = Farm(tmp_path_factory.mktemp("silent") / "tables")
    made.report(1, 2, periods=3)
    made.report(1, periods=5)
    made.write()
    return made


@pytest.fixture
def farm(tmp_path: Path, silent: Farm) -> Farm:
    return Farm(tmp_path / "tables", silent)


@dataclass
class Inbox:
    """A receiver that accepts messages, or fails."""

    name: str = "webhook"
    shown: str = "webhook https://example.invalid"
    fails: int = 0
    accepted: list[dict[str, Any]] = field(default_factory=list)

    def deliver(self, message: bytes, message_id: str) -> None:
        """Accept the message, or fail."""
        if self.fails:
            self.fails -= 1
            raise DeliveryError("status 503")
        self.accepted.append(json.loads(message))
        assert self.accepted[-1]["id"] == message_id

    @property
    def received(self) -> list[tuple[str, str]]:
        """Return the server and the kind of each accepted message."""
        return [(each["alerts"][0]["labels"]["server"], each["id"].rpartition("-")[2]) for each in self.accepted]


@contextmanager
def alerting(
    farm: Farm, *channels: Any, log_lines: list[str] | None = None, metrics: RunMetrics | None = None
) -> Iterator[Alerting]:
    log: Callable[[str], None] = (lambda _: None) if log_lines is None else log_lines.append
    with Alerting(farm.output, channels, KEEP_MS, log, metrics).running() as made:
        yield made


def run_once(farm: Farm, *channels: Any, log_lines: list[str] | None = None) -> None:
    """Start a run, deliver all alerts, and stop."""
    with alerting(farm, *channels, log_lines=log_lines) as made:
        made.finish()


def became(condition: Callable[[], bool]) -> bool:
    """Return True if the condition is true within 60 s."""
    end_s = time.monotonic() + 60.0
    pause = threading.Event()
    while not condition() and time.monotonic() < end_s:
        pause.wait(0.02)
    return condition()


# -- outages -----------------------------------------------------------------------------------------------------------


def test_outage_without_reports_begins_at_end_of_timeout(farm: Farm) -> None:
    farm.start_with_silent_server()
    assert farm.servers() == {
        2: FailedServer(
            farm=farm.log.cluster_id,
            server_id=2,
            name=None,
            state="silent",
            began_at=datetime.fromtimestamp((EPOCH_MS + 6 * PERIOD_MS) / 1000, UTC),
            failures=1,
            was_silent=True,
            reason="no report for 90000 ms",
            ended_at=None,
            gone=None,
            healthy_before=datetime.fromtimestamp((EPOCH_MS + PERIOD_MS) / 1000, UTC),
        )
    }


@pytest.mark.parametrize("is_earlier_version", [False, True])
def test_server_flapping_is_one_outage_until_stable(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, *, is_earlier_version: bool
) -> None:
    if is_earlier_version:
        monkeypatch.setattr(machine, "Transition", lambda *values: Transition(*values[:-1]))
    for _ in range(3):
        farm.report(1, 2, periods=3)
        farm.report(1, periods=4)
    farm.report(1, 2, periods=3)
    farm.write()
    first = farm.servers()[2]
    assert (first.state, first.failures, first.ended_at) == ("healthy", 3, None)
    assert first.began_at == datetime.fromtimestamp((EPOCH_MS + 6 * PERIOD_MS) / 1000, UTC)
    # When the server stays healthy:
    farm.report(1, 2, periods=KEEP_MS // PERIOD_MS)
    farm.write()
    over = farm.servers()[2]
    assert over.ended_at == datetime.fromtimestamp((EPOCH_MS + 22 * PERIOD_MS) / 1000, UTC)
    # A later failure is another outage.
    farm.report(1, 2, periods=3, attached=False)
    farm.write()
    second = farm.servers()[2]
    assert (second.state, second.failures, second.was_silent, second.reason) == (
        "unhealthy",
        1,
        False,
        "no router attached",
    )
    assert second.began_at > over.ended_at


@pytest.mark.parametrize("keep_ms", [KEEP_MS, 1])
@pytest.mark.parametrize("hour", [12, 24])
def test_outages_around_time_correction_have_order_of_log(farm: Farm, keep_ms: int, hour: int) -> None:
    farm.log.log_time_ms += hour * 3_600_000
    farm.report(1, 2, periods=3)
    farm.report(1, periods=4)
    farm.report(1, 2, periods=3)
    farm.log.log_time_ms -= 7_200_000
    farm.report(1, 2, periods=3)
    farm.report(1, periods=4)
    farm.write()
    back = farm.servers(keep_ms)[2]
    began_at = NOON + timedelta(hours=hour - 14, milliseconds=16 * PERIOD_MS)
    assert (back.state, back.began_at, back.failures, back.ended_at) == ("silent", began_at, 1, None)
    (setting,) = alert_history(farm.output, [AlertSetting(keep_firing_ms=keep_ms)], days=2.0)
    assert [(each.server_id, each.failures) for each in setting] == [(2, 1), (2, 1)]
    (reliability,) = (row for row in documents(farm.output, answer_sql("reliability")) if row["server_id"] == 2)
    assert (reliability["state"], reliability["failures"], reliability["repairs"]) == ("silent", 2, 1)
    # The time between the return and the correction is unknown.
    assert (reliability["healthy_ms"], reliability["down_ms"]) == (10 * PERIOD_MS, 3 * PERIOD_MS)
    farm.log.log_time_ms -= 7_200_000
    farm.report(1, 2)
    farm.log.log_time_ms -= 7_200_000
    farm.report(1, 2)
    farm.write()
    changes = answer_sql("changes", around=Around(minutes=1_440))
    over = farm.servers(keep_ms)[2]
    assert (over.state, over.began_at, over.ended_at is None) == ("healthy", began_at, False)
    # All outages before the last correction are now in the future, except the first one.
    moments = {row["log_time"] - timedelta(milliseconds=row["after_ms"]) for row in documents(farm.output, changes)}
    assert max(moments) <= datetime.fromtimestamp(farm.log.log_time_ms / 1000, UTC)


def test_pieces_of_alert_history_are_bounded(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A correction of many days must not cause a read of all later entries at the same time."""
    year_ms = 365 * 86_400_000
    farm.log.log_time_ms += year_ms
    farm.report(1, 2, periods=3)
    farm.log.log_time_ms -= year_ms
    for _ in range(3):
        farm.report(1, 2, periods=3)
        farm.report(1, periods=4)
        farm.log.log_time_ms += 86_400_000
    farm.write()
    whole = alert_history(farm.output, [AlertSetting(KEEP_MS)], days=5.0)
    assert sum(each.failures for each in whole[0]) > 3
    sizes: list[int] = []
    changes = FarmsWatch.changes

    def counted(watch: FarmsWatch, seen: pa.Table) -> Iterator[tuple[str, int, Transition]]:
        sizes.append(seen.num_rows)
        return changes(watch, seen)

    monkeypatch.setattr(FarmsWatch, "changes", counted)
    monkeypatch.setattr(alert_history_module, "PIECE_ENTRIES", 8)
    assert alert_history(farm.output, [AlertSetting(KEEP_MS)], days=5.0) == whole
    assert len(sizes) > 3
    assert max(sizes) <= 8


def test_outage_row_without_indexes_precedes_return(tmp_path: Path) -> None:
    """The first row lacks `index`, because missing reports caused the outage.

    It also lacks `after_index`, like rows of early versions. `--keep-days` has deleted the rows before it.
    """
    rows = [
        {"server_id": 2, "at": NOON, "state": "silent", "reason": "no report", "previous": "healthy"},
        {"server_id": 2, "at": NOON + timedelta(hours=1), "state": "healthy", "index": 9, "previous": "silent"},
    ]
    write_batch(tmp_path, "transitions", 0, rows)
    farm = {"index": 20, "log_time": NOON + timedelta(hours=5)}
    write_current_state(tmp_path, 0, {"farm": [farm], "watched": rows[1:]})
    (server,) = documents(tmp_path, module._LOOK_SQL.replace("$keep_ms", str(KEEP_MS)))
    assert (server["began_at"], server["ended_at"], server["healthy_before"]) == (NOON, rows[1]["at"], None)
    (reliability,) = documents(tmp_path, answer_sql("reliability"))
    assert (reliability["state"], reliability["healthy_ms"], reliability["down_ms"]) == (
        "healthy",
        4 * 3_600_000,
        3_600_000,
    )


def removal(server: int, *, removed: bool) -> dict[str, object]:
    return {"removal": {"server": server, "removed": removed}}


def exclusion(server: int, *, excluded: bool) -> dict[str, object]:
    return {"exclusion": {"hash": address(f"leaf {server}"), "excluded": excluded}}


def test_server_taken_out_is_gone_until_readmitted(farm: Farm) -> None:
    cases: dict[int, tuple[list[dict[str, object]], str | None]] = {
        2: ([removal(2, removed=True)], "removed by an operator"),
        3: ([removal(3, removed=True), removal(3, removed=False)], None),
        4: (
            [
                {"admission": {"server": 4, "node": "04" * 8, "name": "node-4"}},
                {"eviction": {"node": "04" * 8, "era": 1, "boxes": {}}},
            ],
            "evicted by an operator",
        ),
        5: ([exclusion(5, excluded=True)], "all of its leaves are excluded by an operator"),
        6: ([exclusion(6, excluded=True), exclusion(6, excluded=False)], None),
        # Only other servers are removed, evicted and excluded.
        7: ([], None),
    }
    farm.report(1, *cases, periods=3)
    for entries, _ in cases.values():
        for each in entries:
            farm.add_entry(**each)
    farm.report(1, periods=5)
    farm.write()
    found = farm.servers()
    assert {server: found[server].gone for server in cases} == {server: why for server, (_, why) in cases.items()}


def add_admission(farm: Farm, server: int, node: str, name: str) -> None:
    farm.add_entry(admission={"server": server, "node": node, "name": name})


def event_of(node: str, cursor: int, at: datetime, kind: str, ahead_ms: int = 0, **data: object) -> dict[str, Any]:
    """Return an event at a log time, from a node whose clock is `ahead_ms` ahead."""
    own_ms = int(at.timestamp() * 1000) + ahead_ms
    times = {"time_ms": own_ms, "log_time": at, "clock_offset_ms": ahead_ms}
    return {"farm": None, "node": node, "cursor": cursor, "kind": kind, "data": json.dumps(data), **times}


def write_trace(farm: Farm, *events: tuple[str, dict[str, Any]], at: datetime = NOON) -> None:
    """Write a trace of one node. The log times of its events follow `at`, a second apart."""
    rows = [
        event_of("node-1", place, at + timedelta(seconds=place), kind, **data)
        for place, (kind, data) in enumerate(events, 1)
    ]
    write_batch(farm.output, EVENTS, 0, rows)


def test_unknown_server_in_command_causes_warning(farm: Farm) -> None:
    add_admission(farm, 2, "02" * 8, "node-2")
    farm.report(1, 2)
    farm.write()
    write_trace(
        farm,
        ("server-admitted", {"server": 3, "name": "node-3", "id": "03" * 8}),
        # Alerts do not have the names of other members.
        ("member-alive", {"member": "observer", "id": "04" * 8}),
    )
    command = ["--for", "2h", "--output", str(farm.output)]
    for each in ("1", "2", "node-2", "node-3"):
        known = CliRunner().invoke(silence, ["--server", each, *command])
        assert (known.exit_code, known.stderr) == (0, "")
    others = ["--server", "node-2", "--server", "node-33", "--server", "observer", "--farm", "other"]
    unknown = CliRunner().invoke(silence, [*others, *command])
    assert unknown.stderr.splitlines() == [
        f"The tables do not contain a {each}: check the name, or end it with --end N."
        for each in ("server node-33", "server observer", "farm other")
    ]
    of_farm = CliRunner().invoke(silence, ["--server", "1", "--farm", farm.log.cluster_id, *command])
    assert (of_farm.exit_code, of_farm.stderr) == (0, "")
    assert len(Silences(farm.output).active(0)) == 8


def test_server_is_suppressed_despite_unreadable_tables(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    farm.output.mkdir()
    monkeypatch.setattr("pipeline.serve.query.documents", Mock(side_effect=PermissionError(13, "Permission denied")))
    found = CliRunner().invoke(silence, ["--server", "a", "--for", "2h", "--output", str(farm.output)])
    assert (found.exit_code, found.stderr) == (0, "")
    assert [each.server for each in Silences(farm.output).active(0)] == ["a"]


def test_departed_server_is_gone_unlike_dead_server(farm: Farm) -> None:
    add_admission(farm, 2, "02" * 8, "node-2")
    farm.report(1, 2, 3, periods=3)
    farm.report(1, periods=5)
    farm.write()
    write_trace(
        farm,
        ("server-admitted", {"server": 3, "name": "node-3", "id": "03" * 8}),
        ("member-left", {"member": "node-2", "id": "02" * 8}),
        ("member-left", {"member": "node-3", "id": "03" * 8}),
        ("member-alive", {"member": "node-3", "id": "03" * 8}),
        ("member-dead", {"member": "node-3", "id": "03" * 8}),
    )
    found = farm.servers()
    assert (found[2].gone, found[2].name) == ("left in order", "node-2")
    assert (found[3].gone, found[3].name) == (None, "node-3")


def test_server_dead_after_return_is_not_gone(farm: Farm) -> None:
    """The node that reported the departure has a fast or slow clock, so time order may differ from log order."""
    ahead_ms = {2: 0, 3: 1_800_000, 4: 7_200_000, 5: -7_200_000}
    for server in ahead_ms:
        add_admission(farm, server, f"0{server}" * 8, f"node-{server}")
    farm.report(1, *ahead_ms, periods=3)
    farm.report(1, periods=5)
    farm.write()
    write_batch(
        farm.output,
        EVENTS,
        0,
        [
            event_of(node, server, NOON + timedelta(minutes=minute), kind, offset_ms, **member) | changed
            for server in ahead_ms
            for member in ({"member": f"node-{server}", "id": f"0{server}" * 8},)
            for node, minute, offset_ms, kind, changed in (
                (f"witness-{server}", 1, ahead_ms[server], "member-left", {}),
                ("node-1", 10, 0, "member-alive", {"log_time": None}),
                ("node-1", 20, 0, "member-dead", {}),
            )
        ],
    )
    found = farm.servers()
    assert [found[server].gone for server in ahead_ms] == [None] * 4


def test_undated_copy_of_departure_does_not_hold_back_alert(farm: Farm) -> None:
    """The clock of node-1 is 30 minutes ahead. A copy of its trace from a file lacks the correction of this clock."""
    add_admission(farm, 2, "02" * 8, "node-2")
    farm.report(1, 2, periods=3)
    farm.report(1, periods=5)
    farm.write()

    def row(node: str, minute: int, kind: str, ahead_minutes: int = 0) -> dict[str, Any]:
        at, member = NOON + timedelta(minutes=minute), {"member": "node-2", "id": "02" * 8}
        return event_of(node, 1, at, kind, ahead_minutes * 60_000, **member)

    left = row("node-1", 1, "member-left", 30)
    undated = {**left, "log_time": None, "clock_offset_ms": None}
    write_batch(farm.output, EVENTS, 0, [left, row("node-3", 20, "member-dead"), undated])
    assert farm.servers()[2].gone is None


def test_hostile_entries_and_traces_do_not_stop_alerting(farm: Farm) -> None:
    farm.start_with_silent_server()
    farm.add_entry(removal={"server": 3, "removed": True})
    farm.write()
    name = "\u202e\x1b[31m'; DROP TABLE\n"
    hostile = (
        ("admission", json.dumps({"server": 2, "node": "02", "name": name})),
        ("removal", "{not json"),
        ("removal", '{"server": "two", "removed": true}'),
        ("eviction", "[]"),
        ("admission", '"x"'),
    )
    spec = BASE_SPECS["operator_actions"]
    (known,) = stored_rows(farm.output / spec.name, spec.schema).to_pylist()
    rows = [{**known, "action": action, "detail": detail, "index": 1_000} for action, detail in hostile]
    Table(farm.output, spec).append("hostile", 0, pa.Table.from_pylist(rows, schema=spec.schema))
    write_trace(
        farm, ("member-left", {"member": None}), ("member-left", {"id": ["02"]}), ("server-admitted", {"server": "x"})
    )
    found = farm.servers()[2]
    assert (found.state, found.gone, found.name) == ("silent", None, name)


# -- messages ----------------------------------------------------------------------------------------------------------

DOWN = FailedServer(
    farm="f" * 32,
    server_id=2,
    name="node-2",
    state="unhealthy",
    began_at=NOON,
    failures=1,
    was_silent=False,
    reason="no router attached",
    ended_at=None,
    gone=None,
)
LATER = NOON + timedelta(hours=1)


def deliver_due(alerts: list[Alert], receiver: str = "webhook") -> tuple[list[Alert], list[str]]:
    """Deliver all due messages; return the alerts afterwards and the ids of the messages."""
    words = [(each, each.due(receiver)) for each in alerts]
    after = [each if kind is None else each.with_delivered(receiver, kind) for each, kind in words]
    return after, [message_id(each, kind) for each, kind in words if kind is not None]


def test_outage_sends_one_message_per_change() -> None:
    words: list[str] = []
    alerts: list[Alert] = []
    steps = (
        DOWN,
        DOWN,
        replace(DOWN, state="silent", was_silent=True),
        replace(DOWN, state="unhealthy", was_silent=True, failures=2),
        replace(DOWN, state="healthy", was_silent=True, failures=3),
        replace(DOWN, state="healthy", was_silent=True, failures=3, ended_at=LATER),
        replace(DOWN, state="healthy", was_silent=True, failures=3, ended_at=LATER),
    )
    for server in steps:
        alerts, due = deliver_due(updated_alerts(alerts, [server], {}, LATER))
        words += [each.rpartition("-")[2] for each in due]
    assert words == ["unhealthy", "silent", "resolved"]
    (alert,) = alerts
    assert (alert.status, alert.failures, alert.ended_at) == ("resolved", 3, LATER)


def test_outage_over_before_first_message_sends_nothing() -> None:
    alerts = updated_alerts([], [DOWN], {}, LATER)
    over = updated_alerts(alerts, [replace(DOWN, state="healthy", ended_at=LATER)], {}, LATER)
    assert deliver_due(over)[1] == []
    # An outage that ended before the first check does not become an alert.
    assert updated_alerts([], [replace(DOWN, state="healthy", ended_at=LATER)], {}, LATER) == []


def test_receiver_gets_only_messages_new_to_it() -> None:
    alerts, _ = deliver_due(updated_alerts([], [DOWN], {}, LATER), "webhook")
    assert deliver_due(alerts, "webhook")[1] == []
    assert len(deliver_due(alerts, "command")[1]) == 1


def test_outage_id_is_equal_in_every_run() -> None:
    (one,), (other,) = updated_alerts([], [DOWN], {}, NOON), updated_alerts([], [replace(DOWN, failures=9)], {}, LATER)
    assert one.id == other.id
    ids = {
        updated_alerts([], [each], {}, NOON)[0].id
        for each in (DOWN, replace(DOWN, server_id=3), replace(DOWN, farm="e"))
    }
    assert len(ids) == 3


def test_alert_of_silenced_server_is_sent_later() -> None:
    held, due = deliver_due(updated_alerts([], [DOWN], {(DOWN.farm, 2): "silenced until then"}, LATER))
    assert (due, held[0].held_back) == ([], "silenced until then")
    assert len(deliver_due(updated_alerts(held, [DOWN], {}, LATER))[1]) == 1


def test_server_taken_out_resolves_alert() -> None:
    alerts, _ = deliver_due(updated_alerts([], [DOWN], {}, LATER))
    removed = replace(DOWN, gone="removed by an operator")
    alerts, (ended,) = deliver_due(updated_alerts(alerts, [removed], {}, LATER))
    assert ended.endswith("-resolved")
    for _ in range(2):
        alerts, due = deliver_due(updated_alerts(alerts, [removed], {}, LATER))
        assert due == []
    alerts, (again,) = deliver_due(updated_alerts(alerts, [DOWN], {}, LATER))
    assert again.rpartition("-")[0] != ended.rpartition("-")[0]


def test_outage_after_unseen_recovery_is_new_alert() -> None:
    (alert,) = updated_alerts([], [DOWN], {}, NOON)
    alert = alert.with_delivered("webhook", "unhealthy")
    recovered, again = NOON + timedelta(minutes=5), NOON + timedelta(hours=1)
    later = replace(DOWN, began_at=again, healthy_before=recovered)
    first, second = updated_alerts([alert], [later], {}, LATER)
    assert (first.id, first.ended_at, first.due("webhook")) == (alert.id, recovered, "resolved")
    assert (second.began_at, second.due("webhook")) == (again, "unhealthy")
    # The same outage, with the same history, stays one alert.
    assert updated_alerts([first, second], [later], {}, LATER) == [first, second]


def test_recovered_server_stays_held_back() -> None:
    healthy = replace(DOWN, state="healthy")
    silenced = {(DOWN.farm, DOWN.server_id): "silenced"}
    (held,) = updated_alerts([], [DOWN], silenced, NOON)
    (after,) = updated_alerts([held], [healthy], {}, NOON)
    assert (after.held_back, after.due("webhook")) == ("silenced", None)
    (down_again,) = updated_alerts([after], [DOWN], {}, NOON)
    assert down_again.due("webhook") == "unhealthy"


def test_planned_stop_does_not_alert_after_return(farm: Farm) -> None:
    # given a removed server 2, and a server 3 that leaves in order
    add_admission(farm, 3, "03" * 8, "node-3")
    farm.report(1, 2, 3, periods=3)
    left_at = datetime.fromtimestamp(farm.log.log_time_ms / 1000, UTC)
    farm.add_entry(**removal(2, removed=True))
    farm.report(1, periods=5)
    farm.add_entry(**removal(2, removed=False))
    farm.report(1, 2, 3, periods=3)
    farm.write()
    write_trace(farm, *((f"member-{each}", {"id": "03" * 8}) for each in ("left", "alive")), at=left_at)
    found = farm.servers()
    for server, reason in ((2, "removed by an operator"), (3, "left in order")):
        planned = found[server]
        assert (planned.state, planned.ended_at, planned.was_silent) == ("healthy", None, True)
        assert planned.gone == reason
    # A crash after the return is not planned.
    farm.report(1, 2, 3, periods=KEEP_MS // PERIOD_MS)
    farm.report(1, periods=5)
    farm.write()
    found = farm.servers()
    assert [(found[server].state, found[server].gone) for server in (2, 3)] == [("silent", None)] * 2


def test_alert_without_history_ends_when_server_is_healthy() -> None:
    alerts, _ = deliver_due(updated_alerts([], [DOWN], {}, LATER))
    over, due = deliver_due(updated_alerts(alerts, [], {}, LATER))
    assert [each.rpartition("-")[2] for each in due] == ["resolved"]
    assert over[0].ended_at == LATER


def test_alert_limit_keeps_firing_and_newest_alerts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.alerts.outages.KEPT_MAX", 3)
    alerts: list[Alert] = updated_alerts([], [replace(DOWN, server_id=9)], {}, LATER)
    for hour in count(1):
        if hour == 6:
            break
        moment = NOON + timedelta(hours=hour)
        firing = replace(DOWN, began_at=moment)
        alerts = updated_alerts(alerts, [replace(DOWN, server_id=9), firing], {}, moment)
        alerts = updated_alerts(alerts, [replace(DOWN, server_id=9), replace(firing, ended_at=moment)], {}, moment)
    assert [(each.server_id, each.began_at.hour) for each in alerts] == [(9, 12), (2, 16), (2, 17)]


def test_message_escapes_hostile_names() -> None:
    hostile = "\x1b[31m\u202e\"}]'; rm -rf /\n"
    (alert,) = updated_alerts([], [replace(DOWN, name=hostile, farm=hostile)], {}, LATER)
    text = message(alert, "unhealthy")
    assert text.isascii()
    assert not any(byte < 0x20 for byte in text)
    body = json.loads(text)
    assert (body["version"], body["status"], body["id"]) == ("4", "firing", f"{alert.id}-unhealthy")
    (one,) = body["alerts"]
    assert one["labels"] == {"alertname": "GarlicFarmServer", "farm": hostile, "cluster": hostile, "server": "2"}
    assert one["annotations"]["summary"] == f"server 2 ({hostile}) is unhealthy"
    assert (one["startsAt"], one["endsAt"]) == ("2026-01-01T12:00:00.000Z", "0001-01-01T00:00:00Z")
    ended = json.loads(message(replace(alert, status="resolved", state="healthy", ended_at=LATER), "resolved"))
    assert (ended["status"], ended["alerts"][0]["endsAt"]) == ("resolved", "2026-01-01T13:00:00.000Z")
    assert ended["alerts"][0]["annotations"]["summary"].endswith(" is healthy again")
    # The members that identify an alert do not change.
    for name in ("labels", "fingerprint", "startsAt"):
        assert ended["alerts"][0][name] == one[name]


def test_message_keeps_farm_name_of_outage_start() -> None:
    named = replace(DOWN, farm_name="paris")
    alerts = updated_alerts([], [named], {}, LATER)
    # Receivers identify the alert by its first name, even if the file of farms renames the farm.
    (renamed,) = updated_alerts(alerts, [replace(named, farm_name="lyon", state="silent")], {}, LATER)
    bodies = [json.loads(message(each, "silent")) for each in (*alerts, renamed)]
    assert bodies[0]["groupKey"] == bodies[1]["groupKey"]
    assert bodies[1]["groupLabels"] == {
        "alertname": "GarlicFarmServer",
        "farm": "paris",
        "cluster": DOWN.farm,
        "server": "2",
    }
    assert bodies[1]["commonAnnotations"]["summary"] == "server 2 (node-2) of paris is silent"
    # The id derives from the cluster id, so a name does not change it.
    assert renamed.id == updated_alerts([], [DOWN], {}, LATER)[0].id


def test_message_describes_current_server_state() -> None:
    def summary(kind: str, **now: Any) -> tuple[str, str]:
        (alert,) = updated_alerts([], [replace(DOWN, **now)], {}, LATER)
        annotations = json.loads(message(alert, kind))["commonAnnotations"]
        return annotations["summary"], annotations["description"]

    assert summary("unhealthy") == ("server 2 (node-2) is unhealthy", "no router attached")
    flapping = {"state": "healthy", "failures": 3, "was_silent": True}
    assert summary("silent", **flapping) == (
        "server 2 (node-2) was silent",
        "no router attached; 3 failures since 2026-01-01T12:00:00.000Z",
    )
    assert (
        summary("resolved", state="silent", reason="left in order", name=None)[0]
        == "server 2 is silent and left in order"
    )


# -- a run -------------------------------------------------------------------------------------------------------------


def test_run_reports_outage_and_return_once(farm: Farm) -> None:
    inbox = Inbox()
    farm.start_with_silent_server()
    run_once(farm, inbox)
    run_once(farm, inbox)
    assert inbox.received == [("2", "silent")]
    farm.report(1, 2, periods=3 + KEEP_MS // PERIOD_MS)
    farm.write()
    run_once(farm, inbox)
    assert inbox.received == [("2", "silent"), ("2", "resolved")]
    (row,) = documents(farm.output, "SELECT server_id, status, failures, delivered FROM alerts")
    assert row == {
        "server_id": 2,
        "status": "resolved",
        "failures": 1,
        "delivered": ["webhook silent", "webhook resolved"],
    }


def test_run_of_several_farms_keeps_older_alerts_table(farm: Farm) -> None:
    farm.name = "paris"
    # given alerts of a version without farm names
    older = TableSpec(ALERTS_SPEC.name, pa.schema([*ALERTS_SPEC.schema][:-1]), ALERTS_SPEC.sorted_by)
    (alert,) = updated_alerts([], [replace(DOWN, server_id=9)], {}, NOON)
    row = {**asdict(alert), "delivered": ["webhook unhealthy"]}
    Table(farm.output, older).replace("alerts", 0, pa.Table.from_pylist([row], schema=older.schema))
    farm.report(1, 2, periods=3)
    farm.report(1, periods=5)
    farm.write()
    inbox = Inbox()
    run_once(farm, inbox)
    labels = {each["groupLabels"]["server"]: each["groupLabels"] for each in inbox.accepted}
    assert (labels["2"]["farm"], labels["2"]["cluster"]) == ("paris", farm.log.cluster_id)
    assert labels["9"]["farm"] == DOWN.farm
    rows = documents(farm.output, "SELECT server_id, farm_name FROM alerts ORDER BY ALL")
    assert rows == [{"server_id": 2, "farm_name": "paris"}, {"server_id": 9, "farm_name": None}]


def test_repeated_batch_does_not_repeat_message(farm: Farm) -> None:
    inbox = Inbox()
    farm.report(1, 2, periods=3)
    farm.write()
    farm.report(1, periods=5)
    farm.write()
    run_once(farm, inbox)
    farm.write(again=True)
    run_once(farm, inbox)
    assert inbox.received == [("2", "silent")]


def test_run_killed_before_record_repeats_message_with_same_id(farm: Farm) -> None:
    inbox = Inbox()
    farm.start_with_silent_server()
    run_once(farm, inbox)
    # given the table without the record of the delivery
    store = AlertStore(farm.output)
    store.keep([replace(each, delivered=()) for each in store.alerts])
    store.flush()
    run_once(farm, inbox)
    assert len(inbox.accepted) == 2
    assert len({each["id"] for each in inbox.accepted}) == 1


def test_receiver_failure_is_logged_once_until_recovery(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.alerts.delivery.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("pipeline.alerts.delivery.ATTEMPTS", 2)
    inbox, other, log_lines, metrics = Inbox(fails=4), Inbox("command"), list[str](), RunMetrics()
    farm.report(1, 2, 3, periods=3)
    farm.report(1, periods=5)
    farm.write()
    with alerting(farm, inbox, other, log_lines=log_lines, metrics=metrics) as made:
        made.finish()
    assert sorted(inbox.received) == sorted(other.received) == [("2", "silent"), ("3", "silent")]
    assert log_lines == [
        "an alert was not delivered and will be retried: webhook https://example.invalid: status 503",
        "alerts are delivered again: webhook https://example.invalid",
    ]
    shown = metrics.exposition().decode()
    assert "garlicfarm_pipeline_alerts 2.0" in shown
    assert "garlicfarm_pipeline_alert_messages_delivered_total 4.0" in shown
    # Two attempts for the first message, then one per message until the receiver accepts one.
    assert "garlicfarm_pipeline_alert_messages_failed_total 3.0" in shown


def test_backlog_holds_back_alerts_until_first_partial_batch(farm: Farm) -> None:
    inbox, long_ago = Inbox(), datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
    farm.start_with_silent_server()
    with alerting(farm, inbox) as made:
        made.batch_done({farm.log.cluster_id: long_ago}, is_full=True)
        # The server recovered long ago, as later entries show.
        farm.report(1, 2, periods=3 + KEEP_MS // PERIOD_MS)
        farm.write()
        made.batch_done({}, is_full=False)
        made.finish()
    assert inbox.accepted == []
    assert documents(farm.output, "SELECT * FROM alerts") == []


def test_full_batch_with_recent_entries_sends_alert(farm: Farm) -> None:
    inbox = Inbox()
    farm.start_with_silent_server()
    with alerting(farm, inbox) as made:
        made.batch_done({farm.log.cluster_id: datetime.now(UTC)}, is_full=True)
        assert became(lambda: inbox.received == [("2", "silent")])


def test_held_back_farm_is_reported_and_counted(farm: Farm) -> None:
    log_lines, metrics, long_ago = list[str](), RunMetrics(), datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
    farm.report(1, 2, periods=3)
    farm.write()
    with alerting(farm, log_lines=log_lines, metrics=metrics) as made:
        made.batch_done({farm.log.cluster_id: long_ago}, is_full=True)
        assert became(lambda: b"garlicfarm_pipeline_alerts_held_back_farms 1.0" in metrics.exposition())
    assert log_lines == [
        f"alerts of farm {farm.log.cluster_id} are held back: its batches are full and contain old entries"
    ]


def test_alerting_query_shows_each_state_and_its_start(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.alerts.delivery.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("pipeline.alerts.delivery.ATTEMPTS", 1)
    long_ago = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)

    def states() -> list[tuple[str, str | None]]:
        return [(row["state"], row["reason"]) for row in documents(farm.output, answer_sql("alerting"))]

    def stored() -> set[str]:
        return {*stored_rows(farm.output / STATES_SPEC.name, STATES_SPEC.schema).column("subject").to_pylist()}

    farm.start_with_silent_server()
    # Write a batch now: two minutes after the last batch the state is `blind`, and the copied tables may be older.
    farm.report(1)
    farm.write()
    assert states() == [("off", "no run sends alerts")]
    before = datetime.now(UTC)
    with alerting(farm, Inbox(fails=9)) as made:
        made.finish()
        assert became(lambda: stored() == {"run", "webhook"})
        assert states() == [("undelivered", "webhook: status 503")]
        made.batch_done({farm.log.cluster_id: long_ago}, is_full=True)
        assert became(lambda: stored() == {"run", "webhook", "backlog"})
        assert ("paused", "backlog: batches are full and contain old entries") in states()
    with alerting(farm, Inbox()) as made:
        made.finish()
        assert became(lambda: stored() == {"run"})
        (row,) = documents(farm.output, answer_sql("alerting"))
        assert (row["state"], before < row["since"] < datetime.now(UTC)) == ("on", True)
    # after a kill: the run could not write its end, and has not written a batch for long
    late = answer_sql("alerting").replace("current_timestamp", "current_timestamp + INTERVAL 1 HOUR")
    store = AlertStore(farm.output)
    store.begin_run(before, sends=True)
    store.flush()
    (row,) = documents(farm.output, late)
    assert (row["state"], row["since"], row["reason"]) == ("blind", row["stored_at"], "no entries since then")
    note_run_without_alerts(farm.output)
    first = documents(farm.output, "SELECT since FROM alerting_states")
    note_run_without_alerts(farm.output)
    assert (states(), documents(farm.output, "SELECT since FROM alerting_states")) == (
        [("off", "no run sends alerts")],
        first,
    )


def test_backlog_of_one_farm_does_not_hold_back_others() -> None:
    now = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
    backlog = Backlog(now.timestamp)
    backlog.take({"old": now - timedelta(days=1), "young": now - timedelta(seconds=NEAR_S)}, is_full=True)
    assert backlog.farms == {"old"}


def test_farm_without_entries_in_full_batch_is_not_held_back() -> None:
    now = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
    backlog = Backlog(now.timestamp)
    backlog.take({"stopped": now - timedelta(days=1)}, is_full=True)
    backlog.take({"other": now - timedelta(days=1)}, is_full=True)
    assert backlog.farms == {"other"}


def test_farm_that_waits_for_its_turn_is_held_back() -> None:
    now = [EPOCH_MS / 1000]
    day_before = datetime.fromtimestamp(now[0], UTC) - timedelta(days=1)
    backlog = Backlog(lambda: now[0])
    for farm in ("one", "other"):
        backlog.take({farm: day_before}, is_full=True, others_wait=True)
    assert backlog.farms == {"one", "other"}
    now[0] += TURN_S
    backlog.take({"third": day_before}, is_full=True, others_wait=True)
    assert backlog.farms == {"third"}
    backlog.take({}, is_full=False, others_wait=True)
    assert not backlog.farms


@pytest.mark.parametrize(("read_s", "is_held"), [(0, False), (SHRINKS_S, False), (SHRINKS_S + 60, True)])
def test_backlog_holds_back_alerts_only_while_shrinking(read_s: float, *, is_held: bool) -> None:
    # given a farm whose lag grows, stays equal or shrinks
    begin = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
    now = [begin.timestamp()]
    backlog = Backlog(lambda: now[0])
    newest = begin - timedelta(days=1)
    backlog.take({"late": newest}, is_full=True)
    assert backlog.farms == {"late"}
    now[0] += SHRINKS_S
    backlog.take({"late": newest + timedelta(seconds=read_s)}, is_full=True)
    assert bool(backlog.farms) is is_held


def test_alert_of_silenced_server_is_held_back_and_table_has_end(farm: Farm) -> None:
    inbox = Inbox()
    add_admission(farm, 2, "02" * 8, "node-2")
    farm.report(1, 2, periods=3)
    farm.report(1, periods=5)
    farm.write()
    farthest_ms = 4_102_444_800_000
    Silences(farm.output).add(("node-2",), farthest_ms, "a new disk", "", 0)
    run_once(farm, inbox)
    assert inbox.accepted == []
    held = [row["held_back"] for row in documents(farm.output, "SELECT held_back FROM alerts")]
    assert held == ["silenced until 2100-01-01T00:00:00Z: a new disk"]
    Silences(farm.output).end((1,), 0)
    run_once(farm, inbox)
    assert inbox.received == [("2", "silent")]


def test_message_delivered_during_shutdown_is_recorded(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    started, released = threading.Event(), threading.Event()

    class Slow(Inbox):
        def deliver(self, message: bytes, message_id: str) -> None:
            started.set()
            assert released.wait(60)
            super().deliver(message, message_id)

    inbox, stop = Slow(), Receiver.stop
    farm.start_with_silent_server()
    with alerting(farm, inbox) as made:

        def stopped(receiver: Receiver, seconds: float) -> None:
            # Set both under the lock, so that the thread observes them together.
            with made._changed:
                made._is_stopped = True
                released.set()
            stop(receiver, seconds)

        monkeypatch.setattr(Receiver, "stop", stopped)
        made.batch_done({}, is_full=False)
        assert started.wait(60)
    assert inbox.received == [("2", "silent")]
    run_once(farm, inbox)
    assert inbox.received == [("2", "silent")]


def test_silences_damaged_file_is_reported_and_last_content_used(farm: Farm) -> None:
    inbox, log_lines = Inbox(), list[str]()
    farm.report(1, 2, 3, periods=3)
    farm.report(1, 3, periods=5)
    farm.write()
    Silences(farm.output).add(("3",), 4_102_444_800_000, "", "", 0)
    with alerting(farm, inbox, log_lines=log_lines) as made:
        made.finish()
        assert inbox.received == [("2", "silent")]
        # given a file damaged while the run continues
        (farm.output / SILENCES_FILE).write_text("[")
        farm.report(1, periods=5)
        farm.write()
        for _ in range(2):
            made.finish()
        # then the last valid content applies
        assert inbox.received == [("2", "silent")]
    run_once(farm, inbox)
    assert inbox.received == [("2", "silent"), ("3", "silent")]
    assert len(log_lines) == 1
    assert "silences.json cannot be read" in log_lines[0]


def test_alerts_table_sweeps_unused_files_during_run(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[str] = []
    monkeypatch.setattr("pipeline.tables.upkeep.SWEEP_SECONDS", 0)
    monkeypatch.setattr(Table, "sweep", lambda table, *, full: swept.append(f"{table.spec.name} {full}"))
    store = AlertStore(farm.output)
    for failures in range(2):
        store.keep(updated_alerts(store.alerts, [replace(DOWN, failures=failures)], {}, LATER))
        store.flush()
    assert swept == [f"{name} {full}" for full in (True, False) for name in ("alerts", "alerting_states")]


def test_changed_state_without_alert_sweeps_tables(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[str] = []
    monkeypatch.setattr(Table, "sweep", lambda table, *, full: swept.append(f"{table.spec.name} {full}"))
    store = AlertStore(farm.output)
    store.begin_run(LATER, sends=True)
    store.flush()
    assert swept == ["alerts True", "alerting_states True"]


def test_refused_write_of_alerts_is_refused_again(farm: Farm) -> None:
    """The rows of another process stay, and the refused rows never count as stored."""
    store, other = AlertStore(farm.output), AlertStore(farm.output)
    other.begin_run(LATER, sends=True)
    other.keep(updated_alerts([], [DOWN], {}, LATER))
    other.flush()
    store.keep(updated_alerts([], [replace(DOWN, server_id=9)], {}, LATER))
    for attempt in range(3):
        if attempt == 2:
            store.begin_run(LATER, sends=False)
        with pytest.raises(OvertakenError):
            store.flush()
    assert AlertStore(farm.output).alerts == other.alerts
    assert [each["state"] for each in documents(farm.output, "SELECT state FROM alerting_states")] == ["on"]


def test_alerts_flush_fails_after_commit_of_another_run(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = AlertStore(farm.output), AlertStore(farm.output)
    other.keep(updated_alerts([], [DOWN], {}, LATER))
    store.keep(updated_alerts([], [replace(DOWN, server_id=9)], {}, LATER))

    def overtaken(table: Table, rows: pa.Table) -> list[DataFile]:
        monkeypatch.undo()
        other.flush()
        return table.written(rows)

    monkeypatch.setattr(Table, "written", overtaken)
    for _ in range(3):
        with pytest.raises(OvertakenError):
            store.flush()
    assert AlertStore(farm.output).alerts == other.alerts


def test_alerts_flush_after_failed_sync_stores_changes(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AlertStore(farm.output)
    store.keep(updated_alerts([], [DOWN], {}, LATER))
    with monkeypatch.context() as failing:
        failing.setattr(Table, "_sync_after", Mock(side_effect=OSError("the disk is full")))
        with pytest.raises(OSError, match="full"):
            store.flush()
    store.keep(updated_alerts(store.alerts, [replace(DOWN, failures=7)], {}, LATER))
    store.flush()
    assert AlertStore(farm.output).alerts == store.alerts


def test_alerts_table_write_failure_does_not_repeat_message(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox, log_lines = Inbox(), list[str]()
    farm.start_with_silent_server()
    with alerting(farm, inbox, log_lines=log_lines) as made:

        def full(*_: object) -> bool:
            raise OSError("no space left")

        with monkeypatch.context() as patched:
            patched.setattr(Table, "exchange", full)
            made.finish()
            made.finish()
        assert inbox.received == [("2", "silent")]
        assert log_lines[:1] == ["alerts: no space left"]
        made.finish()
    (row,) = stored_rows(farm.output / "alerts", ALERTS_SPEC.schema).to_pylist()
    assert row["delivered"] == ["webhook silent"]
