"""A Struct does not have a clock or a random source as a default.

Simulated farms replace clocks and random sources in all loaded modules. They can replace defaults of a dataclass, but
not of a Struct. So a simulation with such a Struct fails, but only if an earlier test has loaded the Struct's module.
"""

import ast
import re
from collections.abc import Iterator

from tests.structure.sources import ROOT, problem, tree_of

PACKAGES = ("bridge", "consensus", "gossip")
REPLACED = re.compile(r"\btime\.\w+|\burandom\b|\brandom\.Random\b")


def replaced_defaults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each field of a Struct with such a default."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or "Struct" not in map(ast.unparse, node.bases):
            continue
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or field.value is None:
                continue
            # A lambda finds the clock when it is called.
            has_lambda = any(isinstance(each, ast.Lambda) for each in ast.walk(field.value))
            if not has_lambda and REPLACED.search(ast.unparse(field.value)):
                yield field.lineno, ast.unparse(field.target)


def check() -> Iterator[str]:
    for path in (each for package in PACKAGES for each in sorted((ROOT / package).rglob("*.py"))):
        for line, name in replaced_defaults(tree_of(path)):
            yield problem(path, line, f"the default of {name} cannot be replaced in a Struct: use a dataclass")
