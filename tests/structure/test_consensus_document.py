"""`docs/reference/raft-rules.md` is true and complete."""

import re

import pytest

from tests.structure import raft_rules
from tests.structure.raft_rules import Cell, lookup

QUOTED = re.compile(r"\"([^\"]+)\"")
SAME_WORDS = 4
"""So many words in a row make a quotation; a rule that has fewer must be quoted whole."""
SCENARIOS = [*(str(number) for number in range(1, 31)), "26a"]
TABLES = {table.heading: table for table in raft_rules.tables()}
RULES = [row for table in TABLES.values() if table.columns == ["rule", "code", "tests"] for row in table.rows]


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower().replace("_", " "))


def quotes(text: str, rule: str) -> bool:
    """Whether the text shares a run of words with one of the rule's parts (an ellipsis divides them)."""
    said = " ".join(["", *words(text), ""])
    for part in map(words, rule.split("…")):
        length = min(SAME_WORDS, len(part))
        runs = [" ".join(part[start : start + length]) for start in range(len(part) - length + 1)]
        if length and any(f" {run} " in said for run in runs):
            return True
    return False


def named_tests(cell: Cell) -> list[str]:
    """The tests and stories that a cell names."""
    return (
        [name for name in cell if name.startswith("test_") or name.endswith(".txt")] if isinstance(cell, list) else []
    )


def identify(row: list[Cell]) -> str:
    return str(row[0])[:60]


def test_figure_2_and_the_sections_are_all_there() -> None:
    assert len([row for row in RULES if QUOTED.search(str(row[0]))]) >= 90


@pytest.mark.parametrize("row", [row for row in RULES if QUOTED.search(str(row[0]))], ids=identify)
def test_a_rule_of_the_paper_has_its_code_and_a_test_that_quotes_it(row: list[Cell]) -> None:
    rule, code, tests = row
    assert isinstance(code, list), f"no code is named for {rule}"
    assert code, f"no code is named for {rule}"
    quotation = " … ".join(QUOTED.findall(str(rule)))
    found = [lookup(name) for name in named_tests(tests)]
    assert any(quotes(f"{each.name} {each.docstring}", quotation) for each in found), f"no test quotes {rule}"


def test_every_scenario_has_its_test_or_story() -> None:
    table = {
        str(row[0]).split(".")[0]: row for row in TABLES["The scenarios that any careful implementation passes"].rows
    }
    assert [number for number in SCENARIOS if number not in table] == []
    for number in SCENARIOS:
        appended, fetched = table[number][1:]
        assert named_tests(appended), f"scenario {number} has no test where the leader appends"
        assert fetched, f"scenario {number} does not say how it is where followers fetch"


@pytest.mark.parametrize("row", TABLES["What was decided beyond the paper"].rows, ids=identify)
def test_a_decision_has_its_test(row: list[Cell]) -> None:
    assert named_tests(row[1])


def test_every_story_is_named_in_the_document() -> None:
    told = {path.name for path in raft_rules.STORIES.glob("*.txt")}
    named = {name for table in TABLES.values() for row in table.rows for cell in row for name in named_tests(cell)}
    assert told - named == set()
