"""Every command that the product advises, by the place that advises it.

    sources      strings and f-strings of the packages, docstrings apart: commands between back quotes. The remedies of
                 alarms are among them (`bridge.api.alarms`)
    guides       docs/how-to: commands between back quotes, and the lines of code blocks

A placeholder (`FILE`, `{path}`) stands for a value. `…` ends a command: what follows is up to the reader. A command
without any argument is a mention of it (*as `garlicfarm keys offline` writes it*).
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
    """A command as it is advised, and where."""

    command: str
    place: str

    @property
    def words(self) -> tuple[str, ...]:
        """The words behind `garlicfarm`, up to `…`; none if it is another program's."""
        text = re.sub(r"^sudo (-u \S+ )?", "", self.command)
        # Of alternatives (`FILE|DIR`) the first one stands for all.
        text = re.sub(r"(?<=\w)\|[^ ]+", "", text)
        try:
            words = shlex.split(text.partition("…")[0])
        except ValueError:
            words = text.partition("…")[0].split()
        return tuple(words[1:]) if words and words[0] == "garlicfarm" else ()

    @property
    def is_open(self) -> bool:
        """Whether the reader is to complete it."""
        return "…" in self.command


def in_text(text: str, place: str) -> Iterator[Remedy]:
    """The commands between back quotes."""
    for found in _QUOTED.findall(text):
        yield Remedy(" ".join(found.split()), place)


def in_sources(root: Path = ROOT) -> Iterator[Remedy]:
    """Those of the packages."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield from in_module(path.read_text(encoding="utf-8"), str(path.relative_to(root)))


def in_module(source: str, place: str) -> Iterator[Remedy]:
    """Those of one module. Most modules advise no command and are not parsed."""
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
    """Those of the guides."""
    for path in sorted((ROOT / "docs" / "how-to").glob("*.md")):
        yield from in_guide(path.read_text(encoding="utf-8"), path.name)


def in_guide(text: str, name: str) -> Iterator[Remedy]:
    """Those of one guide: a long line of a code block may go on in the next one behind a backslash."""
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
