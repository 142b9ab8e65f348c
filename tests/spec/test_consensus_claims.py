"""Each claim of the documents names an existing test. The last tests check three claims about the code itself."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CONSENSUS = TESTS.parent / "consensus"
EXPLANATION = TESTS.parent / "docs" / "explanation"
SIMULATION = TESTS.parent / "docs" / "reference" / "simulation.md"
NAMED = re.compile(r"`([a-z_0-9/]+/test_\w+\.py)::(test_\w+)`")
FILE_ALONE = re.compile(r"`[a-z_0-9/]+/test_\w+\.py`")
"""A reference to a file without a test's name: it does not show which test proves the claim."""


def sections(page: str, *titles: str) -> list[str]:
    found = {each.partition("\n")[0]: each for each in (EXPLANATION / page).read_text().split("\n## ")}
    return [found[title] for title in titles]


def rows_of(section: str) -> list[str]:
    """Return the rows of the tables, without their heads."""
    lines = section.splitlines()
    ends = [number for number, line in enumerate(lines) if line.startswith("|---")]
    return [line for number, line in enumerate(lines) if line.startswith("|") and not {number, number + 1} & set(ends)]


def test_claims_name_existing_tests() -> None:
    for page, least in ((EXPLANATION / "consensus.md", 50), (EXPLANATION / "security.md", 100), (SIMULATION, 25)):
        named = NAMED.findall(page.read_text())
        assert len(named) > least
        assert [
            (path, name)
            for path, name in named
            if f"def {name}(" not in (TESTS / path.removeprefix("tests/")).read_text()
        ] == []


def test_planted_fault_of_report_exists() -> None:
    planted = (TESTS / "simulation" / "farm" / "planted.py").read_text()
    named = re.findall(r"planted: ([^|]+)", SIMULATION.read_text().partition("## Reported faults")[2])
    names = [name for each in named for name in re.findall(r"\*([^*]+)\*", each)]
    assert len(names) > 5
    assert [each for each in names if f'    "{each}": Planted(' not in planted] == []


def test_row_about_security_names_its_tests() -> None:
    rows = [row for each in sections("security.md", "Trust", "Attackers", "Bounds") for row in rows_of(each)]
    assert len(rows) > 35
    assert [row[:60] for row in rows if not NAMED.search(row.split("|")[-2])] == [
        "| Ed25519, SHA-256, TLS 1.3, AES-GCM and HKDF as implemented by `cry"[:60]
    ]


def test_undefended_point_names_test_or_reason() -> None:
    [section] = sections("security.md", "Undefended")
    points = section.split("\n- ")[1:]
    assert len(points) > 10
    assert [
        each[:60] for each in points if not NAMED.search(each) and "Not tested: " not in " ".join(each.split())
    ] == []


def test_claim_about_consensus_names_its_tests() -> None:
    [section] = sections("consensus.md", "The test of each claim")
    rows = rows_of(section)
    assert len(rows) > 45
    assert [row[:60] for row in rows if not NAMED.search(row)] == [
        "| every rule of the paper | [raft-rules.md](../reference/raft-rules.md) names"[:60],
        "| a lower layer never imports from a higher one | `make check` checks it"[:60],
    ]


def test_claims_do_not_name_files_alone() -> None:
    pages = [(EXPLANATION / "security.md").read_text(), *sections("consensus.md", "The test of each claim")]
    found = [each for page in pages for each in FILE_ALONE.findall(page)]
    assert found == ["`spec/test_consensus_claims.py`", "`structure/test_checks.py`"]


def _modules_that(pattern: str) -> set[str]:
    """Return the modules of the core whose code, without docstrings and comments, matches."""
    core = CONSENSUS / "core"
    return {path.name for path in core.rglob("*.py") if re.search(pattern, ast.unparse(ast.parse(path.read_text())))}


def test_role_and_commitment_change_only_in_named_modules() -> None:
    assert _modules_that(r"\.current = |\._become\(") == {"roles.py"}
    assert _modules_that(r"_may_commit\(|quorum\.value_of_majorities") == {"progress.py"}


def test_transports_number_requests_from_one_counter() -> None:
    calls = [
        call
        for path in (CONSENSUS / "protocols").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"request_from_wire", "sync_from_wire"}
    ]
    assert len(calls) == 4
    assert [ast.unparse(each) for each in calls if "next_call()" not in map(ast.unparse, each.args)] == []
