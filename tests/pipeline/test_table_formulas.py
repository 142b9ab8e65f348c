"""What the tables say of made-up rows, computed by hand: elections, restarts, late reports, clocks that are off."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline import transforms
from pipeline.schemas import DERIVED, EVENTS, HISTORY
from pipeline.tables.rows import Pseudonyms, base_rows
from pipeline.transforms.windows import first_of_each_request
from tests.pipeline.farm_log_server import MadeUpLog, arrow_entries_of, destination

pytestmark = [
    pytest.mark.spark,
    # pyspark's own sockets to the JVM are closed by its finalizers
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PERIOD = timedelta(seconds=30)


def rows_of(session: SparkSession, table: str, rows: list[dict[str, Any]]) -> DataFrame:
    """Rows of a history table; what they do not say is NULL, and the index is their place."""
    schema = HISTORY[table]
    numbered = ({"index": place, **row} for place, row in enumerate(rows, 1))
    return session.createDataFrame([tuple(row.get(name) for name in schema.names) for row in numbered], schema)


def clocks(session: SparkSession, *moments: tuple[float, int]) -> DataFrame:
    """Clock entries: after so many periods, in which term."""
    told = [{"log_time": NOON + PERIOD * at, "term": term, "period_ms": 30_000} for at, term in moments]
    return rows_of(session, "clocks", told)


def report(at: float, *, server: int = 1, offset_s: float = 10.0, **more: Any) -> dict[str, Any]:
    moment = NOON + PERIOD * at
    return {"log_time": moment, "server_id": server, "written_at": moment + timedelta(seconds=offset_s), **more}


def test_availability_counts_periods_and_holds_none_against_a_router_that_an_election_cut_short(
    session: SparkSession,
) -> None:
    # given a leader that fell soon after its clock entry, and a newest period in which no server reported yet
    clock_entries = clocks(session, (0, 1), (1, 1), (2, 1), (2.1, 2), (3.1, 2))
    told = [
        *(report(at, server=1) for at in (0, 0, 2.1)),
        *(report(at, server=2) for at in (0, 1, 2, 2.1)),
        *(report(at, server=3) for at in (0, 1, 2.1)),
    ]
    rows = transforms.router_health(rows_of(session, "reports", told), clock_entries, "1 hour").collect()
    # then a second report in one period does not make up for none in another
    assert {row["server_id"]: row["availability"] for row in rows} == {1: pytest.approx(2 / 3), 2: 1.0, 3: 1.0}


def test_a_restart_is_noticed_behind_reports_that_tell_no_uptime(session: SparkSession) -> None:
    told = [report(at, uptime_ms=uptime_ms) for at, uptime_ms in enumerate((600_000, None, None, 5_000, 35_000))]
    (row,) = transforms.router_health(rows_of(session, "reports", told), clocks(session, (0, 1)), "1 hour").collect()
    assert (row["uptime_resets"], row["restarted"], row["uptime_ms"]) == (1, True, 35_000)


def test_a_destination_that_breaks_between_two_windows_broke_once(session: SparkSession) -> None:
    healthy = (True, True, False, False, True, False)
    told = [{**report(at), "destination": "d-1", "healthy": each} for at, each in enumerate(healthy)]
    told += [{**report(at), "destination": "d-1", "healthy": each} for at, each in ((6, True), (200, False))]
    reports = rows_of(session, "destination_reports", told)
    rows = transforms.destination_health(reports, clocks(session, (0, 1)), "1 minute").orderBy("window_start").collect()
    assert [row["breaks"] for row in rows] == [0, 1, 1, 0, 0], "what comes an hour later did not break just now"


def test_late_reports_and_clocks_that_are_off_are_told_apart_also_where_a_window_holds_two_reports(
    session: SparkSession,
) -> None:
    # given a clock that is five hours ahead, and one report that took a minute more than the others
    ahead_s = 5 * 3600
    told = [report(at, offset_s=ahead_s - (60 if at == 4 else 0)) for at in range(8)]
    # and of another server one just before what the farm takes, one behind it, one of a year that there is not
    told += [report(0, server=2, offset_s=59.0), report(0, server=2, offset_s=61.0)]
    told += [report(0, server=2) | {"written_at": None}]
    period = rows_of(session, "clocks", [{"log_time": NOON, "period_ms": 30_000}])
    found = transforms.data_quality(rows_of(session, "reports", told), period, rows_of(session, "quarantine", []))
    rows = found.orderBy("server_id", "window_start").collect()
    assert [(row["server_id"], row["late"], row["clock_off"]) for row in rows] == [
        *((1, late, 2) for late in (0, 0, 1, 0)),
        (2, 0, 2),
    ]


def test_a_clock_is_off_by_the_period_that_the_farm_had_then_whatever_else_claims_to_be_a_clock_entry(
    session: SparkSession,
) -> None:
    # given a period of 30 s, of 2 s three hours later, and two entries that only look as if they were a leader's
    periods = [(0, 1, 30_000), (0, 50, 2**52), (360, 100, 2_000), (360, 150, 1)]
    told = [{"index": index, "log_time": NOON + PERIOD * at, "period_ms": each} for at, index, each in periods]
    # when reports are 59 s and 61 s ahead, then 31 s and 33 s, and others lag 44 s and 46 s, then 2 s and 4 s
    early = [report(0, offset_s=each) | {"index": 60} for each in (59.0, 61.0)]
    late = [report(360, offset_s=each) | {"index": 160} for each in (31.0, 33.0)]
    slow = [report(0, server=2, offset_s=each) | {"index": 61} for each in (9.0, 9.0, 9.0, -35.0, -37.0)]
    slower = [report(360, server=2, offset_s=each) | {"index": 161} for each in (9.0, 9.0, 9.0, 7.0, 5.0)]
    reports = rows_of(session, "reports", early + late + slow + slower)
    found = transforms.data_quality(reports, rows_of(session, "clocks", told), rows_of(session, "quarantine", []))
    rows = found.orderBy("server_id", "window_start").collect()
    # then of each pair one is within a period and 30 s, and one is more than one and a half periods behind the others
    assert [(row["server_id"], row["reports"], row["late"], row["clock_off"]) for row in rows] == [
        (1, 2, 0, 1),
        (1, 2, 0, 1),
        (2, 5, 1, 2),
        (2, 5, 1, 0),
    ]


def test_only_a_request_that_names_a_submission_makes_a_second_copy_a_repetition(session: SparkSession) -> None:
    told = [
        report(at, request=request) for at, request in enumerate(("a-b-1-2", "a-b-1-2", "once", "once", "x-1-0", None))
    ]
    kept = first_of_each_request(rows_of(session, "reports", told)).collect()
    assert sorted(row["index"] for row in kept) == [1, 3, 4, 5, 6]


def test_several_masters_are_read_and_hostile_json_gives_reasons_and_no_exception() -> None:
    log = MadeUpLog()
    part = {
        "destination": destination("one"),
        "publishConfig": "auto",
        "publishing": False,
        "canSignUntil": 2_000_000_000,
    }
    other = {
        "destination": destination("two"),
        "publishConfig": "off",
        "publishing": True,
        "lastPublishedTime": 1_767_225_600_000,
    }
    head = {"cluster": "farm", "date": log.log_time_ms, "id": 1, "router": {"uptime": 7}}
    for meta in (part, [part], [part, other], [], [{**part, "canSignUntil": 2**62}], "text"):
        log.add(value=json.dumps({**head, "meta": meta}))
    for text in (
        '{"router": {"uptime": ' + "1" * 2_000 + '}, "id": 1, "date": 2}',
        '{"' + "k" * 60_000 + '": 1}',
        '{"meta": [[[[]]]], "router": {}, "id": 1, "date": 2}',
        '{"router": {}, "id": 1, "date": 2, "request": "' + "9" * 6_000 + '", "destinations": [null]}',
        '{"router": {"jobLag": NaN}, "id": 1, "date": 2}',
        "[" * 30_000,
    ):
        log.add(value=text)
    found = base_rows(arrow_entries_of(log), Pseudonyms("salt"))
    rows = found["reports"].to_pylist()
    said = [(row["masters"], row["publishing"], row["publish_config"]) for row in rows]
    assert said[:3] == [(1, False, "auto"), (1, False, "auto"), (2, True, "auto,off")]
    assert len(said) == 3, "a report of which a part cannot be read is none"
    assert (rows[2]["can_sign_until"].year, rows[2]["last_published_at"].year, rows[2]["uptime_ms"]) == (2033, 2026, 7)
    refused = found["quarantine"].to_pylist()
    assert len(refused) == 9
    assert {row["kind"] for row in refused} == {"report", None}


def test_moments_of_a_detection_lie_as_far_apart_as_by_the_observers_own_clock(session: SparkSession) -> None:
    def event(second: float, kind: str, log_time: datetime | None, **data: object) -> tuple[object, ...]:
        own_ms = int((NOON + timedelta(hours=-3, seconds=second)).timestamp() * 1000)
        return ("aa", "a", int(second), own_ms, log_time, None, kind, json.dumps(data))

    # given a node whose clock is three hours behind, which was measured badly for its second batch of events
    told = [
        event(10, "server-admitted", NOON, name="c", server=3),
        event(12, "member-suspect", NOON + timedelta(seconds=12), member="c"),
        event(17, "member-dead", NOON - timedelta(hours=1), member="c"),
        event(99, "member-alive", NOON - timedelta(hours=1), member="c"),
        # and, in a file, one without log time
        event(200, "member-suspect", None, member="d"),
    ]
    last = rows_of(session, "reports", [{"log_time": NOON, "server_id": 3}])
    rows = transforms.detections(session.createDataFrame(told, EVENTS), last).orderBy("member").collect()
    of_c, of_d = rows
    assert (of_c["contact_to_suspect_ms"], of_c["contact_to_dead_ms"]) == (12_000, 17_000)
    assert (of_c["suspect_to_dead_ms"], of_c["dead_to_back_ms"], of_c["outcome"]) == (5_000, 82_000, "came-back")
    assert of_c["dead_at"].replace(tzinfo=UTC) == NOON + timedelta(seconds=17)
    assert of_d["suspect_at"].replace(tzinfo=UTC) == NOON + timedelta(hours=-3, seconds=200)


def test_derived_tables_have_the_columns_that_their_schemas_tell(session: SparkSession) -> None:
    def none(table: str) -> DataFrame:
        return rows_of(session, table, [])

    events = session.createDataFrame([], EVENTS)
    made = {
        "router_health": transforms.router_health(none("reports"), none("clocks")),
        "destination_health": transforms.destination_health(none("destination_reports"), none("clocks")),
        "data_quality": transforms.data_quality(none("reports"), none("clocks"), none("quarantine")),
        "leaderships": transforms.leaderships(none("clocks")),
        "publishers": transforms.publishers(none("publications")),
        "detections": transforms.detections(events, none("reports")),
        "convergence": transforms.convergence(events),
    }
    for name, rows in made.items():
        told = [(field.name, field.dataType) for field in rows.schema]
        assert told == [(field.name, field.dataType) for field in DERIVED[name]], name
