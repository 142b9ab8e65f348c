"""The scripts that the benchmark compares with `backfill` find the same reports, also among malformed entries."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.pipeline_contenders import export
from benchmarks.pipeline_scripts import with_duckdb, with_polars
from pipeline.generate import generate
from pipeline.load_model import _HOSTILE, LoadModel
from tests.effort import each_case


@each_case("script", [with_duckdb, with_polars])
def test_script_reads_all_reports_among_hostile_entries(script: Callable[[Path, Path], None], tmp_path: Path) -> None:
    model, entries, output = LoadModel(3, 0.01), tmp_path / "entries", tmp_path / "output"
    generate(tmp_path / "log", model)
    export(tmp_path / "log", entries)
    rows = pq.read_table(entries)
    hostile = rows.slice(rows.num_rows - 1).take(pa.array([0] * len(_HOSTILE)))
    column = rows.schema.get_field_index("body")
    pq.write_table(hostile.set_column(column, "body", pa.array(_HOSTILE, pa.binary())), entries / "hostile.parquet")
    output.mkdir()
    script(entries, output)
    assert pq.read_table(output / "reports.parquet").num_rows == model.reports
