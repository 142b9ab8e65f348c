"""Class names are unique within `consensus` and `gossip`, within `bridge`, and within `pipeline`.

Two classes with one name are two concepts under one term: a search finds both, and an import from the wrong module may
pass the type check. A package of another layer may reuse the name, since its package qualifies it.

The name of a test begins with its unit and has at most `TEST_NAME_LENGTH` characters.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.structure.sources import ROOT, modules_in, nodes_of, problem

TEST_NAME_LENGTH = 60
UNITLESS = re.compile(r"test_(?:an?|the|all|any|each|every|one|only|two)_")
QUOTING = "tests/spec/test_raft_figure_2"
"""Tests whose names quote the rules of the paper."""
SCOPES = (("consensus", "gossip"), ("bridge",), ("pipeline",))
_PORT = "both cores have the port `step(event, now)`, so their events and effects share the words"
_DOCUMENT = "a message of that name is in the documents of Garlic Farm and of ØMQ Raft"
SHARED: Mapping[str, str] = {
    "AppendEntriesResponse": _DOCUMENT,
    "Configuration": "a value of that name is in the document of Garlic Farm; the core has the term of Raft's paper",
    "DeadlineReached": _PORT,
    "InstallSnapshotResponse": _DOCUMENT,
    "Received": _PORT,
    "RequestVoteResponse": _DOCUMENT,
    "Send": _PORT,
}
"""The reason of each name that has more than one class."""


def repeated(modules: Mapping[Path, Iterable[ast.AST]]) -> Iterator[tuple[Path, ast.ClassDef, Path]]:
    """Yield the file and the definition of each class with a name from an earlier file, and that file."""
    homes: dict[str, Path] = {}
    for path, nodes in modules.items():
        for node in nodes:
            if isinstance(node, ast.ClassDef) and (first := homes.setdefault(node.name, path)) != path:
                yield path, node, first


def wrong_tests(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the tests of a file whose names are too long or begin without a unit."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            if len(node.name) > TEST_NAME_LENGTH:
                yield problem(path, node.lineno, f"{node.name} has more than {TEST_NAME_LENGTH} characters")
            if UNITLESS.match(node.name):
                yield problem(path, node.lineno, f"{node.name} does not begin with its unit")


def check() -> Iterator[str]:
    """Yield the second definition of each name, unused exceptions, and wrong names of tests."""
    for path in modules_in("tests"):
        if not str(path.relative_to(ROOT)).startswith(QUOTING):
            yield from wrong_tests(path, nodes_of(path))
    shared = set()
    for packages in SCOPES:
        for path, node, first in repeated({path: nodes_of(path) for path in modules_in(*packages)}):
            shared.add(node.name)
            if node.name not in SHARED:
                yield problem(path, node.lineno, f"{first.relative_to(ROOT)} has a class {node.name} already")
    for name in sorted(SHARED.keys() - shared):
        yield f"tests/structure/class_names.py:1: one class has the name {name}: remove it from SHARED"
