"""`docs/consensus.md` is true: what it links exists, each rule has a test that quotes it, no scenario is missing.

A link `file.py#name` names a function, a class or a method, not a line, so that it survives an edit above it.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENT = DOCS / "consensus.md"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(?:#([^)\s]+))?\)")
QUOTED = re.compile(r"\"([^\"]+)\"")
SAME_WORDS = 4
"""So many words in a row make a quotation; a rule that has fewer must be quoted whole."""
SCENARIOS = [*(str(number) for number in range(1, 31)), "26a"]


@cache
def texts_of(path: Path) -> dict[str, str]:
    """What is defined in a Python file: dotted name → its name and docstring, in words."""
    found: dict[str, str] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{child.name}"
                found[name] = f"{child.name} {ast.get_docstring(child) or ''}"
                walk(child, f"{name}.")

    walk(ast.parse(path.read_text(encoding="utf-8")), "")
    return found


def rows(heading: str) -> list[list[str]]:
    """The cells of the rows of every table below a heading, up to the next of its rank."""
    rank = heading.split(" ", maxsplit=1)[0]
    text = DOCUMENT.read_text(encoding="utf-8")
    chapter = re.split(rf"^#{{1,{len(rank)}}} ", text.split(f"\n{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in chapter.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


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


def linked_tests(cell: str) -> list[tuple[Path, str | None]]:
    return [
        ((DOCS / target).resolve(), name or None) for _, target, name in LINK.findall(cell) if "../tests/" in target
    ]


def rules() -> list[list[str]]:
    return [row for row in rows("## The paper's rules") if QUOTED.search(row[0])]


def identify(row: list[str]) -> str:
    return row[0][:60]


@pytest.mark.parametrize("document", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_every_file_function_and_test_that_is_linked_exists(document: Path) -> None:
    missing = []
    for _, target, name in LINK.findall(document.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path = (document.parent / target).resolve()
        if not path.exists() or (name and path.suffix == ".py" and name not in texts_of(path)):
            missing.append(f"{target}#{name}")
    assert missing == []


def test_figure_2_and_the_sections_are_all_there() -> None:
    assert len(rules()) >= 90


@pytest.mark.parametrize("row", rules(), ids=identify)
def test_a_rule_of_the_paper_has_its_code_and_a_test_that_quotes_it(row: list[str]) -> None:
    rule, code, tests = row
    assert LINK.search(code), f"no code is named for {rule}"
    linked = [(path, name) for path, name in linked_tests(tests) if name is not None]
    quotation = " … ".join(QUOTED.findall(rule))
    assert any(quotes(texts_of(path)[name], quotation) for path, name in linked), f"no linked test quotes {rule}"


def test_every_scenario_has_its_test_or_story() -> None:
    table = {row[0].split(".")[0]: row for row in rows("## The scenarios that any careful implementation passes")}
    assert [number for number in SCENARIOS if number not in table] == []
    for number in SCENARIOS:
        pushed, fetched = table[number][1:]
        assert linked_tests(pushed), f"scenario {number} has no test where entries are pushed"
        assert linked_tests(fetched) or fetched, f"scenario {number} does not say how it is where entries are fetched"


@pytest.mark.parametrize("row", rows("## What was decided beyond the paper"), ids=identify)
def test_a_decision_has_its_test(row: list[str]) -> None:
    assert row[0] == "decision" or linked_tests(row[1])


def test_every_story_is_named_in_the_document() -> None:
    told = {path.name for path in (DOCS.parent / "tests" / "scenarios" / "raft").glob("*.txt")}
    named = set(re.findall(r"scenarios/raft/([a-z0-9_]+\.txt)", DOCUMENT.read_text(encoding="utf-8")))
    assert told - named == set()
