"""Each question by name has the same rows, in the same order, whether Spark or DuckDB is asked."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from pipeline.gold.answers import ANSWERS, answer_sql
from pipeline.gold.tables import Gold
from pipeline.serve.query import TABLES, documents
from pipeline.tables.delta import stored_rows
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog
from tests.pipeline.generated_log import generated_log
from tests.pipeline.made_tables import tables_of, wrote
from tests.pipeline.test_trace_tables import event

pytestmark = [
    pytest.mark.spark,
    # pyspark's own sockets to the JVM are closed by its finalizers
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
HALF_HOUR_MS = 1_800_000
SILENT_FROM_MS, SILENT_TO_MS = EPOCH_MS + 2 * HALF_HOUR_MS, EPOCH_MS + 4 * HALF_HOUR_MS


def eventful() -> MadeUpLog:
    """Seven hours of four routers with failures, of which one says nothing for an hour, and a change of the servers."""
    log = generated_log(4, 0.3, 11)
    silent = (each for each in log.entries if SILENT_FROM_MS <= (each["logTimeMs"] or 0) < SILENT_TO_MS)
    for entry in silent:
        if '"id":2' in str(entry.get("value")):
            entry["value"] = '{"unheard": "of"}'
    log.add("configuration", value='{"voters": [{"id": 1}, {"id": 2}], "learners": [{"id": 3}]}')
    return log


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables with rows of everything that a question may be about."""
    made, log = tmp_path_factory.mktemp("tables"), eventful()
    gold = Gold(made, HALF_HOUR_MS)
    tables_of(log, made, gold=gold, watch=True)
    random, noon_s = Random(11), -12 * 3_600
    kinds = ("member-suspect", "member-dead", "member-alive")
    told = [
        event(node, cursor, noon_s + cursor * 600 + random.random(), kinds[cursor % 3], member="c", id="cc")
        | {"farm": log.cluster_id}
        for node in "ab"
        for cursor in range(3, 30)
    ]
    wrote(made, "events", 0, told)
    gold.refresh(0)
    return made


@pytest.fixture(scope="module")
def views(session: SparkSession, output: Path) -> Iterator[SparkSession]:
    """Spark with a view of each table."""
    found = {name: stored_rows(output / name, schema) for name, schema in TABLES.items()}
    for name, rows in found.items():
        session.createDataFrame(rows).createOrReplaceTempView(name)
    yield session
    for name in found:
        session.catalog.dropTempView(name)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_answer_has_the_same_rows_on_spark_as_on_duckdb(name: str, views: SparkSession, output: Path) -> None:
    sql = answer_sql(name)
    expected = documents(output, sql)
    assert expected, "an answer without rows shows nothing: make the log above more eventful"

    def plain(value: object) -> object:
        return value.replace(tzinfo=None) - (value.utcoffset() or timedelta()) if isinstance(value, datetime) else value

    def rows(told: list[dict[str, object]]) -> list[dict[str, object]]:
        return [{column: plain(value) for column, value in row.items()} for row in told]

    assert rows(views.sql(sql).toArrow().to_pylist()) == rows(expected)
