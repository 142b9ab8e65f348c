"""Tables of a log: health by window, quarantine, snapshots, and one row per kind of entry."""

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bridge.core.log.fields import BOX_BYTES
from bridge.core.log.records import (
    Admission,
    Approval,
    ClientKey,
    Correction,
    CostFactor,
    Eviction,
    Exclusion,
    Factors,
    Force,
    Level,
    Publication,
    Removal,
    Scope,
)
from bridge.wire.log.entries import encode
from bridge.wire.log.handover_entries import Handover, handover_entry
from pipeline.gold.tables import Gold
from pipeline.schemas import DERIVED, HISTORY, arrow_schema
from pipeline.tables.current import read
from pipeline.tables.delta import stored_files, stored_rows
from pipeline.tables.names import read_names
from pipeline.tables.specs import BASE_SPECS
from tests.pipeline.farm_log_server import MadeUpLog, three_servers
from tests.pipeline.made_tables import gold_rows, tables_of


def history(output: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a base table in log order."""
    rows = stored_rows(output / table, BASE_SPECS[table].schema).sort_by("index")
    return list(rows.to_pylist())


def health_of(log: MadeUpLog, output: Path) -> list[dict[str, Any]]:
    """Write one batch with all entries of the log, and return the derived table `router_health`."""
    tables_of(log, output)
    Gold(output, 60_000).refresh(0)
    return gold_rows(output, "router_health")


def test_router_health_has_availability_and_restarts_per_window(tmp_path: Path) -> None:
    rows = health_of(three_servers(minutes=3), tmp_path / "tables")
    by_key = {(row["window_start"].minute, row["server_id"]): row for row in rows}
    assert by_key[0, 1]["availability"] == 1.0
    assert (1, 3) not in by_key, "a window without reports does not have a row"
    assert by_key[2, 3]["availability"] == 1.0
    assert by_key[2, 3]["uptime_ms"] == 50_000
    assert by_key[0, 1]["window_start"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert by_key[0, 2]["job_lag_p50_ms"] == 2.0
    assert by_key[0, 2]["healthy_share"] == 0.5
    assert by_key[0, 1]["healthy_share"] == 1.0


def test_hostile_entries_are_quarantined_with_reason(tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    log.add(value='{"admission": {"node": "0123456789abcdef", "name": "node-4"}}')
    log.add(value="not json at all")
    log.add(base64="//79")
    log.add(value='{"router": {"uptime": "a string"}, "id": 1, "date": 2}')
    log.add(value='{"unheard": "of"}')
    log.add(value='{"router": {"uptime": 5}}')
    log.add(value='{"id": 1, "date": 99999999999999999999999999, "router": {}}')
    log.add(value='{"padding": "' + "x" * 70_000 + '"}')
    log.add(value="{'admission': {'node': '0123456789abcdef'}}")
    log.add(value='{"admission": {"node": "0123456789abcdef"}} and more')
    for leaf, factor in (("a" * 52, "1e999"), ("a" * 52, "null"), ("a", "1")):
        log.add(value=f'{{"factors": {{"throughIndex": 1, "formula": "f", "factors": {{"{leaf}": {factor}}}}}}}')
    log.add(value='{"clock": {"time": 1767225600000}}')
    log.add(value='{"cost": {"hash": "a"}}')
    health = health_of(log, tmp_path / "tables")
    reasons = [row["reason"] for row in history(tmp_path / "tables", "quarantine")]
    assert len(reasons) == 15
    assert reasons[0] == "Object missing required field `server` - at `$.admission`"
    assert reasons[1] == reasons[2] == "JSON is malformed: invalid character"
    assert "the limit is 65536" in reasons[7]
    assert reasons[-1] == "Expected `str` matching regex … - at `$.cost.hash`"
    assert [row["reports"] for row in health] == [6, 6, 6]


def test_entry_without_log_time_is_stored_outside_windows(tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    for entry in log.entries[:5]:
        entry["logTimeMs"] = None
    health = health_of(log, tmp_path / "tables")
    assert len(history(tmp_path / "tables", "reports")) == 6 * 3
    assert [row["reports"] for row in health] == [5, 5, 5]


def test_snapshot_entries_update_only_current_state(tmp_path: Path) -> None:
    log, output = three_servers(minutes=1), tmp_path / "tables"
    reports = [entry["value"] for entry in log.entries[2:4]]
    log.entries.clear()
    log.add("configuration", value="{}")
    for report in reports:
        log.add("snapshot", value=report)
    assert health_of(log, output) == [], "entries of a snapshot do not have a time"
    assert [row["server_id"] for row in read(output, "routers")] == [1, 2]
    assert len(read(output, "destinations")) == 4
    assert not stored_files(output / "quarantine")


def test_entry_kinds_have_tables_with_pseudonyms(tmp_path: Path) -> None:
    # given one report, its repetition, and one entry of each other kind
    log = MadeUpLog()
    log.add("configuration", value='{"voters": [{"id": 2, "endpoint": "a"}, {"id": 1}], "learners": [{"id": 3}]}')
    log.tick(0)
    destination = "A" * 512 + "BQAEAAcAAA=="
    report = {
        "cluster": "farm",
        "date": log.log_time_ms - 40_000,
        "id": 1,
        "request": "node-1-1",
        "router": {"uptime": 5000, "currentBandwidth": 50, "configuredBandwidth": 100},
        "destinations": [{"destination": destination, "healthy": True}],
    }
    log.add(value=json.dumps(report))
    log.add(value=json.dumps(report))
    address, node_id = expected_address(destination), bytes.fromhex("0123456789abcdef")
    key = ClientKey(bytes(8), "pipeline", bytes(32), (Scope.WEIGHTS,), admitted=True)
    for record in (
        Publication(destination, 1, 1767225600, "ab"),
        Exclusion(address, excluded=True),
        CostFactor(address, 1.5),
        Force(destination),
        Factors(9, "f1", {address: 1.25}),
        Eviction(node_id, 2, ((node_id, bytes(BOX_BYTES)),)),
        Admission(node_id, "node-4", server_id=4),
        Approval(node_id, "node-4", bytes(8), server_id=4),
        Level(2, "0.2"),
        Removal(3, removed=True),
        key,
        Correction(1767225600000),
    ):
        log.add(value=encode(record).decode())
    log.add(value=handover_entry(Handover(7, 2)).decode())
    log.add(value=json.dumps({"router": {}, "clock": {"time": 5}}))
    log.add(value=json.dumps({"router": {}, "id": 1, "date": 2**62}))
    log.tick(10_000, leader=2)
    # when one batch with all entries is derived, in a directory with special characters
    output = tmp_path / "the [old] {tables}?"
    health_of(log, output)

    # then each kind has its rows, and the destination has one pseudonym in all tables
    def rows(table: str) -> list[dict[str, Any]]:
        schema = {**HISTORY, **DERIVED}[table]
        return list(stored_rows(output / table, arrow_schema(schema)).to_pylist())

    (name,) = read_names(output)
    assert read_names(output) == {name: address}
    assert [row["voters"] for row in rows("configurations")] == [[1, 2]]
    assert [(row["destination"], row["healthy"]) for row in rows("destination_reports")] == [(name, True)] * 2
    assert [row["master"] for row in rows("publications")] == [name]
    assert [(row["destination"], row["factor"]) for row in rows("factors")] == [(name, 1.25)]
    actions = {row["action"]: (row["subject"], json.loads(row["detail"])) for row in rows("operator_actions")}
    assert actions == {
        "exclusion": (name, {"excluded": True}),
        "cost": (name, {"factor": 1.5}),
        "force": (name, {}),
        "eviction": (None, {"node": "0123456789abcdef"}),
        "admission": (None, {"server": 4, "node": "0123456789abcdef", "name": "node-4"}),
        "approval": (None, {"server": 4, "node": "0123456789abcdef", "name": "node-4", "replaces": "0" * 16}),
        "level": (None, {"number": 2, "version": "0.2"}),
        "removal": (None, {"server": 3, "removed": True}),
        "client": (None, {"name": "pipeline", "key": "A" * 43 + "=", "scopes": ["weights"], "admitted": True}),
        "correction": (None, {"clock": 1767225600000}),
        "handover": (None, {"term": 7, "to": 2}),
    }
    assert [row["reason"] for row in rows("quarantine")] == [
        "of more than one kind: router, clock",
        "Expected `int` <= 9007199254740991 - at `$.date`",
    ]
    (health,) = rows("router_health")
    assert (health["reports"], health["bandwidth_use"]) == (1, 0.5), "a repeated submission counts once"
    assert [(row["destination"], row["healthy_share"]) for row in rows("destination_health")] == [(name, 1.0)]
    quality = {row["server_id"]: row for row in rows("data_quality")}
    assert (quality[1]["duplicates"], quality[1]["clock_off"], quality[1]["clock_offset_ms"]) == (1, 1, -40_000)
    assert quality[None]["refused"] == 2
    assert [(row["leader_id"], row["leader_changed"]) for row in rows("leaderships")] == [(1, False), (2, True)]
    assert [(row["server_id"], row["publications"]) for row in rows("publishers")] == [(1, 1)]
    assert [row["index"] for row in read(output, "farm")] == [log.commit_index]


def test_reporting_period_ignores_invalid_values(tmp_path: Path) -> None:
    log = MadeUpLog()
    for leader, period in enumerate(({"period": 2_000}, {}, {"period": 10**12}, {"period": 5}), 1):
        log.add(value=json.dumps({"clock": {"time": log.log_time_ms, "id": leader, **period}}))
    tables_of(log, tmp_path)
    (farm,) = read(tmp_path, "farm")
    assert (farm["period_ms"], farm["leader_id"]) == (2_000, 4)


def expected_address(destination: str) -> str:
    """Return the b32 address, computed without the pipeline."""
    octets = base64.b64decode(destination.replace("-", "+").replace("~", "/"))
    return base64.b32encode(hashlib.sha256(octets).digest()).decode().lower().rstrip("=")
