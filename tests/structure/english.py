"""A ratchet for plain English: changes cannot add sentences of hard-to-read kinds.

    prose of the tracked files ─▶ lines of each pattern, by area and kind ─▶ not above english_baseline.toml

`english.toml` has the patterns, each with its plain form; *long* counts sentences above 25 words. A count may fall, but
not rise: then the check fails, and prints the offending lines that differ from the last commit of the baseline. `python
-m tests.structure.english` records lower counts in the baseline. It never records a higher count.

Quotations are exempt: code in backticks or fences, text in double quotes inside prose, and lines of a document that
begin with `>`. The vectors and the rules quoted from the Raft paper are exempt, too.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.structure.sources import PACKAGES, ROOT, nodes_of, text_of, tracked

PATTERNS = Path(__file__).with_name("english.toml")
BASELINE = Path(__file__).with_name("english_baseline.toml")
EXEMPT = ("tests/vectors/", "tests/structure/", "tests/spec/test_raft_figure_2", "tests/reference/")
DOCUMENTS = ("README.md", "SECURITY.md", "docs/")
OPENING = "opening"
"""The pattern that counts only in the first line of a docstring."""
LONG = "long"
"""The pattern that counts only in whole sentences."""
SHOWN_LINES = 20
"""Lines that the check prints for one count above its baseline."""

_CODE = re.compile(r"`[^`]*`|\"[^\"]*\"")
_TARGET = re.compile(r"\]\([^)]*\)")
_SENTENCE_END = re.compile(r"(?<=[.!?])[*)]*\s+(?=\S)")
_NO_PROSE = re.compile(r"^\s*(?:[#|]|[-*] |\d+\. )|[─│▶◀├└┌]|\S {3,}\S")
"""A line that begins a paragraph: a heading, a row or an item; or a line of a diagram."""
_COMMENT = re.compile(r"(?:^\s*|\s\s)#\s+(?!noqa|type:|pragma|fmt:|--)(.*)$")


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """A line of prose; `kind` is openings (of docstrings), docstrings, strings, documents, names or sentences."""

    path: str
    number: int
    area: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kind of sentence with its plain form; one match makes a line an offending one."""

    name: str
    plain: str
    expression: re.Pattern[str]


@cache
def patterns() -> tuple[Pattern, ...]:
    listed = tomllib.loads(text_of(PATTERNS))
    return tuple(Pattern(name, each["plain"], re.compile(each["find"], re.IGNORECASE)) for name, each in listed.items())


def prose_of(path: Path) -> Iterator[Line]:
    name = str(path.relative_to(ROOT))
    if name.startswith(EXEMPT):
        return
    if path.suffix == ".md" and name.startswith(DOCUMENTS):
        lines = list(_document_lines(text_of(path)))
        yield from (Line(name, number, "documents", "documents", _CODE.sub("", text)) for number, text in lines)
        yield from (Line(name, number, "documents", "sentences", text) for number, text in sentences(lines))
    elif path.suffix == ".py":
        first = name.partition("/")[0]
        area = first if first in (*PACKAGES, "tests") else "other"
        found = list(source_lines(text_of(path), nodes_of(path), tests=area == "tests"))
        yield from (Line(name, number, area, kind, _CODE.sub("", text)) for number, kind, text in found)
        prose = sorted((number, text) for number, kind, text in found if kind == "docstrings")
        yield from (Line(name, number, area, "sentences", text) for number, text in sentences(prose))


def sentences(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the sentences of numbered lines, each with the first number of its paragraph; code counts as one word."""
    paragraph: list[str] = []
    first, last = 0, -1
    for number, line in [*lines, (-1, "")]:
        text = line.replace(" | ", ". ") if line.startswith("|") else line
        if number != last + 1 or not text.strip() or _NO_PROSE.search(text):
            prose = _TARGET.sub("", _CODE.sub("X", " ".join(paragraph)))
            yield from ((first, sentence) for sentence in _SENTENCE_END.split(prose) if sentence)
            paragraph = []
        if text.strip():
            first = first if paragraph else number
            paragraph.append(text.strip())
        last = number


def _document_lines(text: str) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith((">", "    ")):
            yield number, line


def source_lines(text: str, nodes: Iterable[ast.AST], *, tests: bool) -> Iterator[tuple[int, str, str]]:
    """Yield number, kind and text: docstrings and comments, texts of the program, names of tests."""
    docstrings: set[int] = set()
    strings: list[tuple[ast.Constant, str]] = []
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str(content)) as constant):
                docstrings.add(id(constant))
                lines = content.splitlines()
                yield from ((node.lineno + offset, "docstrings", line) for offset, line in enumerate(lines))
                yield from ((node.lineno, "openings", line) for line in lines[:1])
            case ast.Constant(value=str(content)):
                strings.append((node, content))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if tests and name.startswith("test_"):
                yield node.lineno, "names", name.removeprefix("test_").replace("_", " ")
            case _:
                pass
    spanned = {n for each, _ in strings for n in range(each.lineno + 1, (each.end_lineno or each.lineno) + 1)}
    for constant, content in strings:
        if not tests and id(constant) not in docstrings and " " in content:
            yield from ((constant.lineno, "strings", line) for line in content.splitlines())
    for number, line in enumerate(text.splitlines(), 1):
        if "#" in line and number not in spanned and (comment := _COMMENT.search(line)):
            yield number, "docstrings", comment[1]


def offending(lines: Iterable[Line]) -> Iterator[tuple[str, Line]]:
    special = {"openings": OPENING, "sentences": LONG}
    by_kind = {kind: [pattern for pattern in patterns() if pattern.name == name] for kind, name in special.items()}
    others = [pattern for pattern in patterns() if pattern.name not in special.values()]
    for line in lines:
        for pattern in by_kind.get(line.kind, others):
            if pattern.expression.search(line.text):
                yield pattern.name, line


def counted(found: Iterable[tuple[str, Line]]) -> Counter[tuple[str, str, str]]:
    return Counter((line.area, line.kind, pattern) for pattern, line in found)


def baseline() -> Counter[tuple[str, str, str]]:
    """Return the recorded counts; a missing count is 0."""
    recorded: Counter[tuple[str, str, str]] = Counter()
    for area, kinds in tomllib.loads(BASELINE.read_text(encoding="utf-8")).items():
        for kind, counts in kinds.items():
            recorded.update({(area, kind, pattern): count for pattern, count in counts.items()})
    return recorded


@cache
def _changed() -> frozenset[tuple[str, str]]:
    """Return path and text of each line that differs from the commit of the baseline."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    commit = git("log", "-1", "--format=%H", "--", str(BASELINE)).strip()
    added, path = set(), ""
    for line in git("diff", "-U0", commit or "HEAD").splitlines():
        if line.startswith("+++ "):
            path = line[4:].removeprefix("b/")
        elif line.startswith("+"):
            added.add((path, line[1:].strip()))
    return frozenset(added)


def above(found: list[tuple[str, Line]], recorded: Counter[tuple[str, str, str]]) -> Iterator[tuple[str, list[Line]]]:
    plain = {pattern.name: pattern.plain for pattern in patterns()}
    for key, count in sorted(counted(found).items()):
        if count > recorded[key]:
            area, kind, pattern = key
            message = f"{area}, {kind}: {count} lines of {pattern!r}, at most {recorded[key]}; plain: {plain[pattern]}"
            yield message, [line for name, line in found if (line.area, line.kind, name) == key]


def check() -> Iterator[str]:
    """Yield the counts above the baseline, each with the offending lines of the change."""
    found = list(offending(line for path in tracked() for line in prose_of(path)))
    rising = list(above(found, baseline()))
    if not rising:
        return
    changed = {path for path, _ in _changed()}
    for message, lines in rising:
        yield f"{BASELINE.relative_to(ROOT)}: {message}"
        mine = [line for line in lines if line.path in changed and _is_new(line)]
        yield from (f"{line.path}:{line.number}: {line.text.strip()}" for line in mine[:SHOWN_LINES])


def _is_new(line: Line) -> bool:
    source = text_of(ROOT / line.path).splitlines()[line.number - 1].strip()
    return line.kind in {"strings", "sentences"} or (line.path, source) in _changed()


def main() -> int:
    """Record lower counts in the baseline; return 1 if a count is above it."""
    now = counted(offending(line for path in tracked() for line in prose_of(path)))
    recorded = baseline() if BASELINE.exists() else now
    kept = {key: min(count, recorded[key]) for key, count in now.items() if recorded[key]}
    lines = ["# Offending lines by area, kind and pattern: `python -m tests.structure.english` lowers them."]
    for area, kind in sorted({key[:2] for key in kept}):
        lines.append(f"\n[{area}.{kind}]")
        lines += [
            f"{name} = {kept[area, kind, name]}" for name in sorted(n for a, k, n in kept if (a, k) == (area, kind))
        ]
    BASELINE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(any(count > recorded[key] for key, count in now.items()))


if __name__ == "__main__":
    sys.exit(main())
