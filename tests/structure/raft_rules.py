"""The rules of Raft, with the code that obeys each and the tests that quote it: makes `docs/reference/raft-rules.md`.

`raft_rules.toml` holds tables of rules. A cell is a text, or a list of names: of code in `consensus` (`Log.append`;
with its module before it where two have the name: `quorum.tally`), of tests, or of stories (`figure_7.txt`). The names
are looked up in the tree, so the document follows when a function moves, and making it fails when a name is gone or
has become ambiguous. `python -m tests.reference` writes the document; a test compares it.
"""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("raft_rules.toml")
DOCUMENT = ROOT / "docs" / "reference" / "raft-rules.md"
STORIES = ROOT / "tests" / "scenarios" / "raft"
HEAD = """# The rules of Raft, and where they are kept

This file is generated from `tests/structure/raft_rules.toml` (`python -m tests.reference`); change that,
not this. What the rules come to is told in [consensus.md](../explanation/consensus.md).
"""

Cell = str | list[str]


class UnknownNameError(Exception):
    """A name of the data is defined nowhere, or more than once."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Where something is defined, what it is called there, and its docstring."""

    path: Path
    name: str
    docstring: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the document: `text` stands between heading and table."""

    heading: str
    text: str
    columns: list[str]
    rows: list[list[Cell]]


def definitions_in(path: Path) -> Iterator[Definition]:
    """Every class, function and method of a file, by dotted name."""

    def walk(node: ast.AST, prefix: str) -> Iterator[Definition]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{child.name}"
                yield Definition(path, name, ast.get_docstring(child) or "")
                yield from walk(child, f"{name}.")

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), "")


@cache
def _defined() -> dict[str, list[Definition]]:
    """By name, and by name with the module before it."""
    found: dict[str, list[Definition]] = {}
    for folder in ("consensus", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for definition in definitions_in(path):
                if folder == "consensus" or definition.name.startswith("test_") or "simulation" in path.parts:
                    for name in (definition.name, f"{path.stem}.{definition.name}"):
                        found.setdefault(name, []).append(definition)
    return found


def lookup(name: str) -> Definition:
    """The one place where a name of the data is defined; raises `UnknownNameError`."""
    if name.endswith(".txt"):
        if not (STORIES / name).exists():
            raise UnknownNameError(f"no story {name} in {STORIES.relative_to(ROOT)}")
        return Definition(STORIES / name, f"story: {Path(name).stem.replace('_', ' ')}", "")
    found = _defined().get(name, [])
    if len(found) != 1:
        places = ", ".join(str(each.path.relative_to(ROOT)) for each in found) or "nowhere"
        raise UnknownNameError(f"{name} is defined in {places}; write module.{name} where several have the name")
    return found[0]


def tables() -> list[Table]:
    """The data as it stands in the file."""
    with DATA.open("rb") as file:
        return [Table(**table) for table in tomllib.load(file)["tables"]]


def render() -> str:
    """The document."""
    return HEAD + "".join(_rendered(table) for table in tables())


def _rendered(table: Table) -> str:
    lines = ["", f"## {table.heading}", ""]
    if table.text:
        lines += [table.text.strip(), ""]
    lines += [_row(table.columns), "|---" * len(table.columns) + "|"]
    lines += [_row([_cell(cell) for cell in row]) for row in table.rows]
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    return cell if isinstance(cell, str) else "<br>".join(_link(lookup(name)) for name in cell)


def _link(definition: Definition) -> str:
    path = definition.path.relative_to(ROOT)
    if path.suffix == ".txt":
        return f"[{definition.name}](../../{path})"
    short = definition.name.rsplit(".", 1)[-1]
    text = short.removeprefix("test_").replace("_", " ") if short.startswith("test_") else f"`{definition.name}`"
    return f"[{text}](../../{path})" if definition.name == path.stem else f"[{text}](../../{path}#{definition.name})"
