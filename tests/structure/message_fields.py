"""Messages with more than three fields are constructed by keyword.

Numbers in positional arguments are easily exchanged: a term instead of an index passes every type check. So each
dataclass in a module of messages with more than `POSITIONAL_MAX` fields is `kw_only`; mypy then rejects positional
construction.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.structure.sources import ROOT, line_of, problem, tree_of

POSITIONAL_MAX = 3
MODULES = (
    "consensus/core/messages.py",
    "consensus/core/events.py",
    "consensus/core/effects.py",
    "consensus/protocols/*/wire/messages*.py",
)
TABLE_ROWS = ("MessageKind",)
"""Rows of a table of messages, which are not messages."""


def positional_fields(tree: ast.Module) -> Iterator[tuple[int, str, int]]:
    """Yield line, name and number of fields of each dataclass or Struct with too many positional fields."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name in TABLE_ROWS:
            continue
        options = [each for each in node.decorator_list if isinstance(each, ast.Call)]
        keywords = [keyword for each in options for keyword in each.keywords] + node.keywords
        if any(keyword.arg == "kw_only" and ast.unparse(keyword.value) == "True" for keyword in keywords):
            continue
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each)]
        if len(fields) > POSITIONAL_MAX and any(_is_record(each) for each in [*node.decorator_list, *node.bases]):
            yield node.lineno, node.name, len(fields)


def _is_record(node: ast.expr) -> bool:
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    return name.split(".")[-1] in {"dataclass", "Struct", "ComparedInPart"}


def check(patterns: tuple[str, ...] = MODULES) -> Iterator[str]:
    """Yield a problem for each message with positional construction, and for each pattern without a module."""
    for pattern in patterns:
        paths = sorted(ROOT.glob(pattern))
        if not paths:
            here = Path(__file__)
            yield problem(here, line_of(here, pattern), f"{pattern} does not match a file: correct it")
        for path in paths:
            for line, name, count in positional_fields(tree_of(path)):
                yield problem(path, line, f"{name} has {count} positional fields: add kw_only=True")
