"""The stored form of examples/farm.ipynb. `tests/spark/test_notebook.py` runs it."""

import json
from typing import Any

from tests.structure.sources import ROOT

NOTEBOOK = ROOT / "examples" / "farm.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def code(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_notebook_is_stored_without_outputs() -> None:
    for cell in code(CELLS):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        assert not cell["metadata"]


def test_notebook_part_starts_with_text() -> None:
    kinds = [cell["cell_type"] for cell in CELLS]
    assert kinds[0] == "markdown"
    headings = [line for cell in CELLS if cell["cell_type"] == "markdown" for line in cell["source"] if line[0] == "#"]
    assert headings[0].startswith("# ")
    assert len(code(CELLS)) >= len(headings)
