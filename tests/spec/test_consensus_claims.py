"""The tests that `consensus.md` and `security.md` name for their claims exist, and two claims about the code itself."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CORE = TESTS.parent / "consensus" / "core"
EXPLANATION = TESTS.parent / "docs" / "explanation"


def test_each_named_test_of_a_claim_exists() -> None:
    named = re.findall(r"`([a-z_]+/test_\w+\.py)::(test_\w+)`", (EXPLANATION / "consensus.md").read_text())
    assert len(named) > 30
    assert [(path, name) for path, name in named if f"def {name}(" not in (TESTS / path).read_text()] == []


def test_each_attacker_and_each_bound_names_its_tests() -> None:
    sections = (EXPLANATION / "security.md").read_text().split("\n## ")
    rows = [
        line
        for section in sections
        if section.startswith(("Attackers\n", "Bounds\n"))
        for line in section.splitlines()
        if line.startswith("|") and not line.startswith("|---") and not line.endswith("| tests |")
    ]
    tests_of = {row: re.findall(r"`([a-z_]+/test_\w+\.py)`", row.split("|")[-2]) for row in rows}
    assert len(rows) > 30
    assert [row[:60] for row, tests in tests_of.items() if not tests] == []
    assert {test for tests in tests_of.values() for test in tests if not (TESTS / test).is_file()} == set()


def _modules_that(pattern: str) -> set[str]:
    """Return the modules of the core whose code, without docstrings and comments, matches."""
    return {path.name for path in CORE.rglob("*.py") if re.search(pattern, ast.unparse(ast.parse(path.read_text())))}


def test_only_named_modules_change_role_and_decide_commitment() -> None:
    assert _modules_that(r"\.current = |\._become\(") == {"roles.py"}
    assert _modules_that(r"_may_commit\(|quorum\.value_of_majorities") == {"progress.py"}
