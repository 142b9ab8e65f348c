"""The texts for the checks: each file is read once and parsed once.

A check yields problems as `path:line: text`, so an editor can open the place. `python -m tests.structure` runs all.
"""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("consensus", "gossip", "bridge", "pipeline")


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def modules_in(*folders: str) -> list[Path]:
    """Return the modules below folders of the root, in order."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def tracked() -> tuple[Path, ...]:
    """Return the existing files of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S607
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def definitions_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the docstring of every class, function and method of a file."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{child.name}"
                yield name, ast.get_docstring(child) or ""
                yield from walk(child, f"{name}.")

    yield from walk(tree_of(path), "")


def problem(path: Path, line: int, text: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {text}"


def line_of(path: Path, part: str) -> int:
    """Return the number of the first line that contains a text, or 1."""
    before, found, _ = text_of(path).partition(part)
    return before.count("\n") + 1 if found else 1
