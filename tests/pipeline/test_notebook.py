"""examples/farm.ipynb runs from its first cell to its last in a fresh kernel, and shows what it found.

The kernel is Jupyter's, with the notebook as it is committed. The farm's tables are made here of the same log, without
a second JVM.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.generate import generate
from pipeline.gold.tables import Gold
from pipeline.load_model import LoadModel
from pipeline.schemas import ENTRIES
from pipeline.source.farm import FarmDataSource
from tests.pipeline.made_tables import tables_of_entries
from tests.structure.sources import ROOT

NOTEBOOK = ROOT / "examples" / "farm.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
MINUTE_MS = 60_000
BOUND_S = 600


def code(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_is_committed_without_outputs() -> None:
    for cell in code(CELLS):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        assert not cell["metadata"]


def test_each_part_of_the_notebook_says_in_words_what_comes() -> None:
    kinds = [cell["cell_type"] for cell in CELLS]
    assert kinds[0] == "markdown"
    headings = [line for cell in CELLS if cell["cell_type"] == "markdown" for line in cell["source"] if line[0] == "#"]
    assert headings[0].startswith("# ")
    assert len(code(CELLS)) >= len(headings)


@pytest.mark.spark
def test_the_notebook_runs_over_a_generated_farm_and_shows_its_figures(tmp_path: Path) -> None:
    # given the log of a farm, and its tables
    log, tables, done = tmp_path / "log", tmp_path / "tables", tmp_path / "done.ipynb"
    generate(log, LoadModel(5, 0.1, 1))
    reader = FarmDataSource({"directory": str(log)}).reader(ENTRIES)
    entries = [batch for each in reader.partitions() for batch in reader.read(each)]
    gold = Gold(tables, MINUTE_MS)
    tables_of_entries(pa.Table.from_batches(entries), tables, gold=gold, watch=True)
    gold.refresh(0)
    # when Jupyter runs the notebook
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
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
    # then no cell failed, and each but the last, which ends Spark, shows something
    assert answer.returncode == 0, answer.stderr
    ran = code(json.loads(done.read_text(encoding="utf-8"))["cells"])
    shown = [[each["data"] for each in cell["outputs"] if each["output_type"] == "execute_result"] for cell in ran]
    assert [len(each) for each in shown] == [1] * (len(ran) - 1) + [0]
    tables_shown = [data["text/html"] for (data,) in shown[:-1] if "text/html" in data]
    for page in map("".join, tables_shown):
        assert page.count("<tr") > 1, page
    (chart,) = (data["image/svg+xml"] for (data,) in shown[:-1] if "image/svg+xml" in data)
    assert "".join(chart).count("<path") > len(tables_shown)
