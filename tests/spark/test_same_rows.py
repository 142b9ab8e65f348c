"""Spark and DuckDB return the same rows for the same SQL."""

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from pipeline.gold import refreshing
from pipeline.gold.tables import FOLDED
from pipeline.gold.traces import TRACED
from pipeline.schemas import DERIVED
from pipeline.tables.delta import stored_rows
from pipeline.tables.specs import BASE_SPECS, EVENTS_SPEC
from tests.pipeline.generated_log import generated_log
from tests.pipeline.made_tables import FARM
from tests.pipeline.test_gold import HALF_HOUR_MS, derive_in_parts
from tests.pipeline.test_trace_tables import Run, derive_in_one_batch, steps, tables
from tests.spark import JVM_SOCKETS

pytestmark = JVM_SOCKETS


@pytest.mark.soak
def test_gold_tables_have_equal_rows(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = generated_log(3, 0.15, 5)
    ends = [log.commit_index // 2]
    expected = derive_in_parts(tmp_path / "duckdb", log, ends, HALF_HOUR_MS)
    # Given a limit of zero rows per portion, so that even a short portion is distributed
    monkeypatch.setattr(refreshing, "PORTION_ROWS", 0)
    assert derive_in_parts(tmp_path / "spark", log, ends, HALF_HOUR_MS, session) == expected
    for name, folded in FOLDED.items():
        rows = stored_rows(tmp_path / "spark" / folded.source, BASE_SPECS[folded.source].schema)
        session.createDataFrame(rows).createOrReplaceTempView(folded.source)
        session.createDataFrame([], DERIVED[name]).createOrReplaceTempView("known")
        found = session.sql(folded.sql).toArrow().select(folded.spec.schema.names).cast(folded.spec.schema)
        assert found.sort_by([(each, "ascending") for each in folded.spec.sorted_by]).to_pylist() == expected[name]


def test_trace_tables_have_equal_rows(session: SparkSession, tmp_path: Path) -> None:
    # Given the tables of the first half of the events, and the second half
    taken = [*steps(Random(3), hours=10)]
    half = len(taken) // 2
    derive_in_one_batch(tmp_path, taken[:half])
    known = {name: stored_rows(tmp_path / name, traced.spec.schema) for name, traced in TRACED.items()}
    run = Run(tmp_path)
    run.batches = {"events": 0, "reports": 0}
    for name in run.batches:
        run.write(name, [row for table, rows in taken[half:] for row in rows if table == name])
    run.refresh()
    expected = tables(tmp_path)
    # When Spark runs the SQL with the views that DuckDB used
    session.createDataFrame([(FARM,)], "farm STRING").createOrReplaceTempView("current_farm")
    sources = {"events": EVENTS_SPEC, "reports": BASE_SPECS["reports"], "members": TRACED["members"].spec}
    for source, spec in sources.items():
        session.createDataFrame(stored_rows(tmp_path / source, spec.schema)).createOrReplaceTempView(source)
    for name, traced in TRACED.items():
        if known[name].num_rows:
            session.createDataFrame(known[name]).createOrReplaceTempView("known")
        views, sql = traced.of_batches(0, 1)
        for view, text in views.items():
            session.sql(text).createOrReplaceTempView(view)
        found = session.sql(sql).toArrow().select(traced.spec.schema.names).cast(traced.spec.schema)
        # Then the rows are the same
        rows = found.sort_by([(each, "ascending") for each in traced.spec.sorted_by]).to_pylist()
        assert rows == expected[name], name
