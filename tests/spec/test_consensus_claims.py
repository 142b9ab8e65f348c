"""The tests that `docs/explanation/consensus.md` names for its claims exist, and two claims about the code itself."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CORE = TESTS.parent / "consensus" / "core"
DOCUMENT = TESTS.parent / "docs" / "explanation" / "consensus.md"


def test_each_named_test_of_a_claim_exists() -> None:
    named = re.findall(r"`([a-z_]+/test_\w+\.py)::(test_\w+)`", DOCUMENT.read_text())
    assert len(named) > 30
    assert [(path, name) for path, name in named if f"def {name}(" not in (TESTS / path).read_text()] == []


def _modules_that(pattern: str) -> set[str]:
    """Return the modules of the core whose code, without docstrings and comments, matches."""
    return {path.name for path in CORE.rglob("*.py") if re.search(pattern, ast.unparse(ast.parse(path.read_text())))}


def test_only_named_modules_change_role_and_decide_commitment() -> None:
    assert _modules_that(r"\.current = |\._become\(") == {"roles.py"}
    assert _modules_that(r"_may_commit\(|quorum\.value_of_majorities") == {"progress.py"}
