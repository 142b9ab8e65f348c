"""examples/farm.ipynb runs from its first cell to its last and shows figures.

The cells run in the shared session, where `make test` does not start jobs of Spark. `make soak` also starts them, and
runs the cells in a fresh kernel of Jupyter, with a second JVM. The farm's tables are made from the same log, without
Spark.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from IPython.display import SVG
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.generate import generate
from pipeline.gold.tables import Gold
from pipeline.load_model import LoadModel
from pipeline.schemas import ENTRIES
from pipeline.source.farm import FarmDataSource
from tests.effort import few_of
from tests.pipeline.made_tables import tables_of_entries
from tests.pipeline.test_notebook import CELLS, NOTEBOOK, code
from tests.spark import JVM_SOCKETS, QUICK_JVM
from tests.structure.sources import ROOT

pytestmark = JVM_SOCKETS
MINUTE_MS = 60_000
BOUND_S = 600


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the places of the log of a farm, and of its tables."""
    directory = tmp_path_factory.mktemp("farm")
    log, tables = directory / "log", directory / "tables"
    generate(log, LoadModel(5, 0.1, 1))
    reader = FarmDataSource({"directory": str(log)}).reader(ENTRIES)
    entries = [batch for each in reader.partitions() for batch in reader.read(each)]
    gold = Gold(tables, MINUTE_MS)
    tables_of_entries(pa.Table.from_batches(entries), tables, gold=gold, watch=True)
    gold.refresh(0)
    return {"FARM_LOG": str(log), "FARM_TABLES": str(tables)}


def result_of(cell: dict[str, Any], names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last expression."""
    *others, last = ast.parse("".join(cell["source"])).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(others, []), str(NOTEBOOK), "exec"), names)  # noqa: S102 - the notebook's own code
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)  # noqa: S307 - the same


@pytest.mark.parametrize("runs", few_of({"resolved": False, "run": True}, "resolved"))
@pytest.mark.filterwarnings("ignore")
def test_cells_show_figures_of_generated_farm(
    session: SparkSession, places: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, runs: bool
) -> None:
    """`runs`: Spark also runs the queries; otherwise it resolves their names, and returns no rows."""
    if not runs:
        frame = type(session.range(1))
        monkeypatch.setattr(frame, "toArrow", lambda made: to_arrow_schema(made.schema, timezone="UTC").empty_table())
        monkeypatch.setattr(frame, "toPandas", lambda made: made.toArrow().to_pandas())
    for name, place in places.items():
        monkeypatch.setenv(name, place)
    partitions, names = session.conf.get("spark.sql.shuffle.partitions"), dict[str, Any]()
    *cells, last = code(CELLS)
    try:
        shown = [result_of(each, names) for each in cells]
    finally:
        session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    assert "".join(last["source"]) == "spark.stop()"
    frames = [each for each in shown if isinstance(each, pd.DataFrame)]
    (chart,) = (each.data for each in shown if isinstance(each, SVG))
    assert not runs or min(map(len, frames)) > 0
    assert chart.count("<path") > len(frames) > 4


@pytest.mark.soak
def test_kernel_shows_result_of_each_cell(places: dict[str, str], tmp_path: Path) -> None:
    done = tmp_path / "done.ipynb"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": QUICK_JVM,
        **places,
        "JUPYTER_CONFIG_DIR": str(tmp_path),
        "JUPYTER_DATA_DIR": str(tmp_path),
        "IPYTHONDIR": str(tmp_path),
    }
    answer = subprocess.run(
        [sys.executable, "-c", "from nbclient.cli import main; main()", str(NOTEBOOK), "--output", str(done)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
    )
    # No cell failed, and each cell except the last, which stops Spark, shows a result
    assert answer.returncode == 0, answer.stderr
    ran = code(json.loads(done.read_text(encoding="utf-8"))["cells"])
    shown = [[each["data"] for each in cell["outputs"] if each["output_type"] == "execute_result"] for cell in ran]
    assert [len(each) for each in shown] == [1] * (len(ran) - 1) + [0]
