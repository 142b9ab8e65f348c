"""Each named query returns the same rows in the same order on Spark and on DuckDB."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from pipeline.gold.answers import ANSWERS, answer_sql
from pipeline.gold.tables import Gold
from pipeline.serve.query import TABLES, documents, of_one_version
from pipeline.tables.delta import stored_rows
from tests.effort import few_of
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog
from tests.pipeline.generated_log import generated_log
from tests.pipeline.made_tables import tables_of, write_batch, write_current_state, write_derived
from tests.pipeline.test_trace_tables import event
from tests.pipeline.test_warnings import DAY_SLOTS, health_rows, rising_from, season
from tests.spark import JVM_SOCKETS

pytestmark = JVM_SOCKETS
HALF_HOUR_MS = 1_800_000
HOUR = timedelta(hours=1)
QUICK = ("churn", "farms", "lag", "leaders", "reliability")
"""The queries that Spark answers in a second or two. It only resolves the others; `make soak` compares their rows."""
OUTAGE_START_MS, OUTAGE_END_MS = EPOCH_MS + 2 * HALF_HOUR_MS, EPOCH_MS + 4 * HALF_HOUR_MS


def eventful_log() -> MadeUpLog:
    """Return a log of seven hours: four routers with failures, one without reports for an hour, changed servers."""
    log = generated_log(4, 0.3, 11)
    missing = (each for each in log.entries if OUTAGE_START_MS <= (each["logTimeMs"] or 0) < OUTAGE_END_MS)
    for entry in missing:
        if '"id":2' in str(entry.get("value")):
            entry["value"] = '{"unheard": "of"}'
    log.add("configuration", value='{"voters": [{"id": 1}, {"id": 2}], "learners": [{"id": 3}]}')
    return log


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables with rows for all queries."""
    made, log = tmp_path_factory.mktemp("tables"), eventful_log()
    gold = Gold(made, HALF_HOUR_MS)
    tables_of(log, made, gold=gold, watch=True)
    random, noon_s = Random(11), -12 * 3_600
    kinds = ("member-suspect", "member-dead", "member-alive")
    events = [
        event(node, cursor, noon_s + cursor * 600 + random.random(), kinds[cursor % 3], member="c", id="cc")
        | {"farm": log.cluster_id}
        for node in "ab"
        for cursor in range(3, 30)
    ]
    write_batch(made, "events", 0, events)
    gold.refresh(0)
    weeks_of_load(made, random)
    # A third farm: one router deviates from its last four days, another from its last six hours.
    days = health_rows(4 * DAY_SLOTS, rising_from(4 * DAY_SLOTS - 9, season), rising_from(3 * DAY_SLOTS, season, 0.3))
    hours = [row | {"server_id": 5} for row in health_rows(50, rising_from(44))]
    write_derived(made, "router_health", [row | {"farm": "0b" * 16} for row in days + hours], batch=2)
    return made


def weeks_of_load(made: Path, random: Random) -> None:
    """Add another farm with a month of load: two routers that serve one destination, one of them with gaps."""
    windows = [
        {"farm": "0a" * 16, "server_id": server, "window_start": start, "window_end": start + 6 * HOUR}
        for server in (1, 2)
        for start in (datetime(2026, 1, 1, tzinfo=UTC) + hour * HOUR for hour in range(0, 30 * 24, 6))
        if server == 1 or random.random() < 0.7
    ]
    routers = [
        {
            **window,
            "cpu_percent": random.choice((None, 150.0, 30 + random.random() * place / 17)),
            "memory_percent": 40 + place / 33,
            "job_lag_p95_ms": random.lognormvariate(3, 2),
            "bandwidth_bytes_per_s": 1e5 * random.random() + place * 2_331,
        }
        for place, window in enumerate(windows)
    ]
    destinations = [
        {**window, "destination": "d-shared", "connections": random.random() * place, "bandwidth_bytes_per_s": 1e4 / 3}
        for place, window in enumerate(windows)
    ]
    write_derived(made, "router_health", routers, batch=1)
    write_derived(made, "destination_health", destinations, batch=1)
    limits = {"farm": "0a" * 16, "index": 1, "configured_bandwidth_bytes_per_s": 1_234_567}
    routers_known = [{**limits, "server_id": server} for server in (1, 2)]
    reported = [{**each, "destination": "d-shared", "configured_connections": 333} for each in routers_known]
    write_current_state(made, 1, {"routers": routers_known, "destinations": reported})


@pytest.fixture(scope="module")
def views(session: SparkSession, output: Path) -> Iterator[SparkSession]:
    found = {name: stored_rows(output / name, schema) for name, schema in TABLES.items()}
    for name, rows in found.items():
        session.createDataFrame(rows).createOrReplaceTempView(name)
    yield session
    for name in found:
        session.catalog.dropTempView(name)


@pytest.mark.parametrize("name", few_of({each: each for each in sorted(ANSWERS)}, *QUICK))
def test_answer_has_same_rows_on_spark_and_duckdb(name: str, views: SparkSession, output: Path) -> None:
    sql = answer_sql(name)
    expected = documents(output, sql)
    assert expected, "an answer without rows is not a test: add events to the log above"

    def plain(value: object) -> object:
        return value.replace(tzinfo=None) - (value.utcoffset() or timedelta()) if isinstance(value, datetime) else value

    def rows(found: list[dict[str, object]]) -> list[dict[str, object]]:
        return [{column: plain(value) for column, value in row.items()} for row in found]

    assert rows(views.sql(sql).toArrow().to_pylist()) == rows(expected)


def test_spark_resolves_each_answer(views: SparkSession, output: Path) -> None:
    queries = {name: answer_sql(name) for name in sorted(ANSWERS.keys() - {*QUICK})}
    expected = of_one_version(output, lambda query: {name: [*query(sql)[0]] for name, sql in queries.items()})
    assert {name: views.sql(sql).columns for name, sql in queries.items()} == expected
