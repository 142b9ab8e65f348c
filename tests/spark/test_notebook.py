"""examples/farm.ipynb runs from its first cell to its last in a fresh kernel, and shows figures.

Jupyter's kernel runs the committed notebook. The test makes the farm's tables from the same log, without a second JVM.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from pipeline.generate import generate
from pipeline.gold.tables import Gold
from pipeline.load_model import LoadModel
from pipeline.schemas import ENTRIES
from pipeline.source.farm import FarmDataSource
from tests.pipeline.made_tables import tables_of_entries
from tests.pipeline.test_notebook import NOTEBOOK, code
from tests.spark import QUICK_JVM
from tests.structure.sources import ROOT

MINUTE_MS = 60_000
BOUND_S = 600


def test_notebook_shows_figures_of_generated_farm(tmp_path: Path) -> None:
    # Given the log of a farm, and its tables
    log, tables, done = tmp_path / "log", tmp_path / "tables", tmp_path / "done.ipynb"
    generate(log, LoadModel(5, 0.1, 1))
    reader = FarmDataSource({"directory": str(log)}).reader(ENTRIES)
    entries = [batch for each in reader.partitions() for batch in reader.read(each)]
    gold = Gold(tables, MINUTE_MS)
    tables_of_entries(pa.Table.from_batches(entries), tables, gold=gold, watch=True)
    gold.refresh(0)
    # When Jupyter runs the notebook
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": QUICK_JVM,
        "FARM_LOG": str(log),
        "FARM_TABLES": str(tables),
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
    # Then no cell failed, and each cell except the last, which stops Spark, shows a result
    assert answer.returncode == 0, answer.stderr
    ran = code(json.loads(done.read_text(encoding="utf-8"))["cells"])
    shown = [[each["data"] for each in cell["outputs"] if each["output_type"] == "execute_result"] for cell in ran]
    assert [len(each) for each in shown] == [1] * (len(ran) - 1) + [0]
    tables_shown = [data["text/html"] for (data,) in shown[:-1] if "text/html" in data]
    for page in map("".join, tables_shown):
        assert page.count("<tr") > 1, page
    (chart,) = (data["image/svg+xml"] for (data,) in shown[:-1] if "image/svg+xml" in data)
    assert "".join(chart).count("<path") > len(tables_shown)
