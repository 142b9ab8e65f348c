"""All commands that the product advises, with the place of the advice.

    sources      strings and f-strings of the packages, without docstrings: commands in backticks, for example in the
                 remedies of alarms (`bridge.api.alarms`)
    guides       docs/how-to: commands in backticks, and the lines of code blocks

A placeholder (`FILE`, `{path}`) represents a value. `…` ends a command, and the reader completes it. A command without
arguments is only a mention (*as `garlicfarm keys offline` writes it*).
"""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("bridge", "gossip", "consensus", "pipeline")
_QUOTED = re.compile(r"`((?:sudo (?:-u \S+ )?)?(?:garlicfarm|systemctl|chown|chmod|mv) [^`]+)`")
_OPENED = re.compile(r"`(?:sudo|garlicfarm|systemctl|chown|chmod|mv)\b")
_LINE = re.compile(r"^ {4,}(?:\$ )?((?:sudo (?:-u \S+ )?)?garlicfarm .+)$")
_TEXT = re.compile(r"\s{2,}.*$|\s+#\s.*$")


@dataclass(frozen=True, slots=True)
class Remedy:
    """An advised command, and its place."""

    command: str
    place: str

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words after `garlicfarm`, up to `…`; an empty tuple for other programs."""
        text = re.sub(r"^sudo (-u \S+ )?", "", self.command)
        # The first alternative (`FILE|DIR`) represents all.
        text = re.sub(r"(?<=\w)\|[^ ]+", "", text)
        try:
            words = shlex.split(text.partition("…")[0])
        except ValueError:
            words = text.partition("…")[0].split()
        return tuple(words[1:]) if words and words[0] == "garlicfarm" else ()

    @property
    def is_open(self) -> bool:
        """Return True if the reader must complete the command."""
        return "…" in self.command


def in_text(text: str, place: str) -> Iterator[Remedy]:
    for found in _QUOTED.findall(text):
        yield Remedy(" ".join(found.split()), place)


def in_sources(root: Path = ROOT) -> Iterator[Remedy]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield from in_module(path.read_text(encoding="utf-8"), str(path.relative_to(root)))


def in_module(source: str, place: str) -> Iterator[Remedy]:
    """Yield the remedies of one module. Modules without a command are not parsed."""
    if _OPENED.search(source) is None:
        return
    tree = ast.parse(source)
    documents = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    inner = {id(part) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for part in each.values}
    for node in ast.walk(tree):
        if id(node) in documents or id(node) in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from in_text(node.value, f"{place}:{node.lineno}")
        elif isinstance(node, ast.JoinedStr):
            yield from in_text("".join(map(_part, node.values)), f"{place}:{node.lineno}")


def _part(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else "VALUE"


def in_guides() -> Iterator[Remedy]:
    for path in sorted((ROOT / "docs" / "how-to").glob("*.md")):
        yield from in_guide(path.read_text(encoding="utf-8"), path.name)


def in_guide(text: str, name: str) -> Iterator[Remedy]:
    """Yield the remedies of one guide. A backslash continues a line of a code block."""
    joined = re.sub(r"\\\n\s*", " ", text)
    prose = []
    for number, line in enumerate(joined.splitlines(), start=1):
        block = _LINE.match(line)
        if block is None:
            prose.append(line)
            continue
        command = _TEXT.sub("", block[1]).partition(" | ")[0].partition(" > ")[0].strip()
        yield Remedy(command, f"{name}:{number}")
    yield from in_text("\n".join(prose), name)
