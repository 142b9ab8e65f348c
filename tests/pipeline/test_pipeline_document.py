"""docs/reference/pipeline-tables.md lists exactly the columns of each table with their types.

Of the `current_` tables, it lists the names, and the columns of `current_farm` without types.
"""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.serve.query import TABLES as ALL_TABLES
from pipeline.tables.current import SCHEMAS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "pipeline-tables.md").read_text(encoding="utf-8")
_NAMES = re.compile(r"`([a-z0-9_]+)`")
TABLES = {name: schema for name, schema in ALL_TABLES.items() if not name.startswith("current_")}
COMMON = {"farm": "string", "day": "date"}
"""Columns of many tables, described once."""
_TYPE_NAMES = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def type_name(kind: pa.DataType) -> str:
    return f"{_TYPE_NAMES[kind.value_type]}[]" if pa.types.is_list(kind) else _TYPE_NAMES[kind]


def documented_columns(table: str) -> dict[str, str]:
    begin = DOCUMENT.index(f"\n**`{table}`**: ")
    lines = DOCUMENT[begin:].split("\n| column | type |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {name: kind for names, kind, *_ in cells for name in _NAMES.findall(names)}


@pytest.mark.parametrize("table", sorted(TABLES))
def test_document_lists_columns_of_table(table: str) -> None:
    columns = {field.name: type_name(field.type) for field in TABLES[table]}
    implied = {name: columns[name] for name in COMMON if name in columns}
    assert {**implied, **documented_columns(table)} == columns
    assert {name: COMMON[name] for name in implied} == implied


def test_document_describes_common_columns() -> None:
    for name, kind in COMMON.items():
        assert f"has the column `{name}` ({kind})" in re.sub(r"\s+", " ", DOCUMENT)
    assert [table for table, schema in TABLES.items() if "farm" not in schema.names] == ["closest_floodfills"]


def test_document_lists_current_state_tables() -> None:
    part = DOCUMENT[DOCUMENT.index("## Current state") : DOCUMENT.index("## Merging and retention")]
    assert set(re.findall(r"^\| `([a-z]+)` \|", part, re.MULTILINE)) == set(SCHEMAS)
    (of_farm,) = (line for line in part.splitlines() if line.startswith("| `farm`"))
    assert set(_NAMES.findall(of_farm)) == {*SCHEMAS["farm"].names, "farm"}
