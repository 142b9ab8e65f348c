"""The rules of Raft, with the code that implements each and the tests that quote it (`docs/reference/raft-rules.md`).

`raft_rules.toml` contains tables of rules. A cell is a text, or a list of names: of code in `consensus` (`Log.append`;
after its module if two have the name: `quorum.tally`), of tests, or of stories (`figure_7.txt`). The names are looked
up in the tree. So the document follows when a function moves, and its generation fails if a name is missing or
ambiguous. `python -m tests.reference` writes the document; `make check` compares it.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from tests.structure.sources import ROOT, definitions_in, line_of, modules_in, problem, text_of

DATA = Path(__file__).with_name("raft_rules.toml")
DOCUMENT = ROOT / "docs" / "reference" / "raft-rules.md"
STORIES = ROOT / "tests" / "scenarios" / "raft"
HEAD = """# The rules of Raft, with their code and tests

This page is generated from `tests/structure/raft_rules.toml` (`python -m tests.reference`).
[consensus.md](../explanation/consensus.md) explains the design.
"""

STORIES_HEAD = """
## The stories

Each story is a text file with every command and the exact effects of every server (`tests/scenarios/raft_story.py` runs
it). Its first lines describe it:

| story | content |
|---|---|
"""
QUOTED = re.compile(r"\"([^\"]+)\"")
QUOTED_RULES_MIN = 90
SAME_WORDS = 4
"""The number of consecutive words of a quotation; a shorter rule must be quoted completely."""
SCENARIOS = [*(str(number) for number in range(1, 31)), "26a"]
DEFINED = re.compile(r"(?:def|class) (\w+)")
SCENARIO_TABLE = "The scenarios that any careful implementation passes"
DECISION_TABLE = "What was decided beyond the paper"

Cell = str | list[str]


class UnknownNameError(Exception):
    """A name in the data is undefined, or defined more than once."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The place of a definition, its name there, and its docstring."""

    path: Path
    name: str
    docstring: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the document, with `text` between heading and table."""

    heading: str
    text: str
    columns: list[str]
    rows: list[list[Cell]]


@cache
def _defined() -> dict[str, list[Definition]]:
    """Return the definitions by name, and by name after the module."""
    found: dict[str, list[Definition]] = {}
    cells = [cell for table in tables() for row in table.rows for cell in row if isinstance(cell, list)]
    names = {name.rpartition(".")[2] for cell in cells for name in cell}
    for folder in ("consensus", "tests"):
        for path in modules_in(folder):
            if names.isdisjoint(DEFINED.findall(text_of(path))):
                continue
            for definition in (Definition(path, *each) for each in definitions_in(path)):
                if folder == "consensus" or definition.name.startswith("test_") or "simulation" in path.parts:
                    for name in (definition.name, f"{path.stem}.{definition.name}"):
                        found.setdefault(name, []).append(definition)
    return found


def lookup(name: str) -> Definition:
    """Return the only definition of a name in the data. Raise `UnknownNameError`."""
    if name.endswith(".txt"):
        if not (STORIES / name).exists():
            raise UnknownNameError(f"no story {name} in {STORIES.relative_to(ROOT)}")
        return Definition(STORIES / name, name, "")
    found = _defined().get(name, [])
    if len(found) != 1:
        places = ", ".join(str(each.path.relative_to(ROOT)) for each in found) or "nowhere"
        raise UnknownNameError(f"{name} is defined in {places}; write module.{name} where several have the name")
    return found[0]


def tables() -> list[Table]:
    with DATA.open("rb") as file:
        return [Table(**table) for table in tomllib.load(file)["tables"]]


def render() -> str:
    return HEAD + "".join(_rendered(table) for table in tables()) + STORIES_HEAD + "".join(_stories())


def _stories() -> Iterator[str]:
    """Yield a row for each story, with the first sentence of its file."""
    for path in sorted(STORIES.glob("*.txt")):
        lines = takewhile(lambda line: line.startswith("#"), text_of(path).splitlines())
        sentence, *_ = re.split(r"(?<=[.]) (?=[A-Z])", " ".join(line.lstrip("# ") for line in lines))
        yield _row([_link(Definition(path, path.name, "")), sentence]) + "\n"


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
    return f"[`{definition.name}`](../../{path}{'' if path.suffix == '.txt' else f'#{definition.name}'})"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower().replace("_", " "))


def quotes(text: str, rule: str) -> bool:
    """Return True if the text shares a run of words with one of the rule's parts (an ellipsis divides them)."""
    text_words = " ".join(["", *words(text), ""])
    for part in map(words, rule.split("…")):
        length = min(SAME_WORDS, len(part))
        runs = [" ".join(part[start : start + length]) for start in range(len(part) - length + 1)]
        if length and any(f" {run} " in text_words for run in runs):
            return True
    return False


def named_tests(cell: Cell) -> list[str]:
    return (
        [name for name in cell if name.startswith("test_") or name.endswith(".txt")] if isinstance(cell, list) else []
    )


def check() -> Iterator[str]:
    """Yield rules without code or a test that quotes them, scenarios and decisions without a test, and an old page."""
    if text_of(DOCUMENT) != render():
        yield problem(DOCUMENT, 1, "it differs from its data: python -m tests.reference")
    found = {table.heading: table for table in tables()}
    rules = [row for table in found.values() if table.columns == ["rule", "code", "tests"] for row in table.rows]
    quoted = [row for row in rules if QUOTED.search(str(row[0]))]
    if len(quoted) < QUOTED_RULES_MIN:
        yield problem(DATA, 1, f"{len(quoted)} rules quote the paper, fewer than {QUOTED_RULES_MIN}")
    for rule, code, tests in quoted:
        quotation = " … ".join(QUOTED.findall(str(rule)))
        if not code or isinstance(code, str):
            yield _problem(rule, "the rule does not name code")
        if not any(quotes(f"{each.name} {each.docstring}", quotation) for each in map(lookup, named_tests(tests))):
            yield _problem(rule, "the rule is not quoted by a test")
    yield from _untested(found)


def _untested(found: dict[str, Table]) -> Iterator[str]:
    scenarios = {str(row[0]).split(".")[0]: row for row in found[SCENARIO_TABLE].rows}
    for number in SCENARIOS:
        _, appended, fetched = scenarios.get(number, ["", [], []])
        if not named_tests(appended):
            yield problem(DATA, 1, f"scenario {number} lacks a test for a leader that appends")
        if not fetched:
            yield problem(DATA, 1, f"scenario {number} lacks an entry for followers that fetch")
    for row in found[DECISION_TABLE].rows:
        if not named_tests(row[1]):
            yield _problem(row[0], "the decision lacks a test")


def _problem(rule: Cell, text: str) -> str:
    start = QUOTED.findall(str(rule))[:1] or [str(rule)]
    return problem(DATA, line_of(DATA, start[0][:40]), f"{str(rule)[:60]}: {text}")
