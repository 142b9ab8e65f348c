"""All commands that the product advises, with the place of the advice.

    sources      strings and f-strings of the packages, without docstrings: commands in backticks, for example in the
                 remedies of alarms (`bridge.api.alarms`). An f-string may contain a constant of its module
    guides       docs/how-to: commands in backticks, and the lines of code blocks

A placeholder (`FILE`, `{path}`) represents a value. `…` ends a command, and the reader completes it. A command without
arguments is only a mention (*as `garlicfarm keys offline` writes it*).
"""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("bridge", "gossip", "consensus", "pipeline")
_QUOTED = re.compile(r"`((?:sudo (?:-u \S+ )?)?(?:garlicfarm|systemctl|chown|chmod|mv) [^`]+)`")
_PROGRAM = re.compile(r"\b(?:garlicfarm|systemctl|chown|chmod|mv)\b")
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
    """Yield the remedies of one module. Modules without the name of a program are not parsed."""
    if _PROGRAM.search(source) is None:
        return
    tree = ast.parse(source)
    nodes = [*ast.walk(tree)]
    documents = {id(each.value) for each in nodes if isinstance(each, ast.Expr)}
    constants = dict(_constants(tree))
    inner = {id(part) for each in nodes if isinstance(each, ast.JoinedStr) for part in each.values}
    for node in nodes:
        if id(node) in documents or id(node) in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from in_text(node.value, f"{place}:{node.lineno}")
        elif isinstance(node, ast.JoinedStr):
            text = "".join(_part(each, constants) for each in node.values)
            yield from in_text(text, f"{place}:{node.lineno}")


def _constants(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the string constants of a module."""
    for node in module.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text)))
            ):
                yield name, text
            case _:
                pass


def _part(value: ast.expr, constants: Mapping[str, str]) -> str:
    match value:
        case ast.Constant():
            return str(value.value)
        case ast.FormattedValue(value=ast.Name(id=name)):
            return constants.get(name, "VALUE")
        case _:
            return "VALUE"


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
