"""References in documents, code and tests point to existing documents, sections, files and functions.

A link `file.py#name` names a function, a class or a method instead of a line, so it stays valid when lines move. Code
and tests name a document by its path from the root, and a section in quotation marks after the path. Documents link a
section by the anchor that GitHub and mkdocs derive from its heading.
"""

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from bridge.node.settings.configuration import SETTINGS
from tests.reference import site
from tests.structure.sources import ROOT, definitions_in, line_of, modules_in, nodes_of, problem, text_of, tracked

DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.md")
QUOTED = r"""(?:"[^"]+"|'[^']+')"""
SECTIONS = re.compile(rf"({NAMED.pattern})`?,?\s\(?(?:says )?(?:under )?({QUOTED}(?:,\s{QUOTED})*)")
PACKAGE = "(?:gossip|consensus|bridge|pipeline|benchmarks|tests)"
MENTIONED = re.compile(r"`([\w/.-]+\.md)`")
MENTIONED_TEST = re.compile(r"`(?:tests/)?(\w+/(?:\w+/)*test_\w+\.py)`")
READ = {".py", ".toml", ".md", ".txt", ".go", ".java", ".json", ""}
QUOTED_COMMAND = re.compile(r"`make ([a-z][\w-]*)")
FENCED_COMMAND = re.compile(r"^make ([a-z][\w-]*)", re.MULTILINE)
TARGET = re.compile(r"^([a-z][\w-]*):(?!=)", re.MULTILINE)
GLOSSARY = DOCS / "glossary.md"
GLOSSARY_WORDS_MIN = 80


@cache
def documents() -> list[Path]:
    return sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md"))])


@cache
def definitions(path: Path) -> frozenset[str]:
    return frozenset(name for name, _ in definitions_in(path))


@cache
def headings(path: Path) -> tuple[str, ...]:
    return tuple(re.findall(r"^#+ (.+)$", FENCED.sub("", text_of(path)), re.MULTILINE))


@cache
def leads(path: Path) -> tuple[str, ...]:
    return tuple(re.findall(r"^\*\*([^*]+)\.\*\* ", FENCED.sub("", text_of(path)), re.MULTILINE))


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def exists(path: Path, part: str) -> bool:
    """Return True if the file exists and, in a document or a module, the part."""
    if not path.exists():
        return False
    match path.suffix:
        case ".md":
            return not part or part in map(anchor, headings(path))
        case ".py":
            return not part or part in definitions(path)
        case _:
            return True


def resolves(name: str) -> bool:
    """Return True if a file exists, or a dotted name is a package, a module, or a name in one."""
    if "/" in name:
        return (ROOT / name).exists()
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        place, rest = ROOT.joinpath(*parts[:length]), ".".join(parts[length:])
        if place.with_suffix(".py").exists():
            return not rest or rest in definitions(place.with_suffix(".py"))
        if place.is_dir():
            stub = place / "__init__.pyi"
            face = stub if stub.is_file() else place / "__init__.py"
            return not rest or rest.split(".")[0] in text_of(face)
    return False


def check() -> Iterator[str]:
    """Yield missing targets of references, and pages that are missing from an index."""
    for document in documents():
        yield from wrong_names(document, text_of(document))
    for path in tracked():
        if path.suffix in READ and "vectors" not in path.parts and "docs/" in text_of(path):
            yield from wrong_sections(path, _strings(path))
        if path.suffix in {".md", ".py", ".toml"}:
            yield from wrong_targets(path, text_of(path))
        if path.suffix == ".md":
            yield from torn_rows(path, text_of(path))
    yield from _index()
    yield from _site()
    yield from _glossary()


def wrong_names(document: Path, content: str) -> Iterator[str]:
    """Yield missing links, documents, tests and modules of a document."""

    def missing(what: str, name: str) -> str:
        return problem(document, line_of(document, name), f"no such {what}: {name}")

    text = FENCED.sub("", content)
    for _, target, part in LINK.findall(text):
        if "://" not in target and not exists((document.parent / target).resolve() if target else document, part):
            yield missing("place", f"{target}#{part}" if part else target)
    for name in MENTIONED.findall(text):
        if not any((base / name).exists() for base in (document.parent, ROOT)):
            yield missing("document", name)
    for name in MENTIONED_TEST.findall(content):
        if not (ROOT / "tests" / name).exists():
            yield missing("test", name)
    # A setting looks like a dotted name of a module.
    modules = {*re.findall(rf"`({PACKAGE}/[\w/]+\.py)\b", content)}
    modules |= {*re.findall(rf"`({PACKAGE}(?:\.\w+)+)[`(]", content)} - SETTINGS.keys()
    for name in sorted(modules):
        if not resolves(name):
            yield missing("module", name)


def torn_rows(path: Path, text: str) -> Iterator[str]:
    """Yield table rows that continue on the next line: a renderer ends the row, and the table, at the line's end."""
    # A block keeps its lines, so that the numbers of the lines after it stay correct.
    outside = FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(outside.split("\n"), start=1):
        if line.lstrip().startswith("|") and not line.rstrip().endswith("|"):
            yield problem(path, number, "the table row has no | at the end of its line: put the row on one line")


def wrong_targets(path: Path, text: str) -> Iterator[str]:
    """Yield missing targets of `make` that a text names as code."""
    blocks = "\n".join(FENCED.findall(text)) if path.suffix == ".md" else ""
    named = {*QUOTED_COMMAND.findall(text), *FENCED_COMMAND.findall(blocks)}
    for name in sorted(named - {*TARGET.findall(text_of(ROOT / "Makefile"))}):
        yield problem(path, line_of(path, f"make {name}"), f"the Makefile does not have the target {name}")


def _strings(path: Path) -> list[str]:
    """Return the texts of a file. For a module, parts of a long string are joined."""
    if path.suffix != ".py":
        return [text_of(path)]
    joined = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        for node in nodes_of(path)
        if isinstance(node, ast.JoinedStr)
    ]
    strings = [node.value for node in nodes_of(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return joined + strings


def wrong_sections(path: Path, strings: list[str]) -> Iterator[str]:
    """Yield missing documents and sections to which a file refers."""
    for name in sorted(set(NAMED.findall(text_of(path)))):
        if not (ROOT / name).exists():
            yield problem(path, line_of(path, name), f"no such document: {name}")
    for text in strings:
        for name, quoted in SECTIONS.findall(text):
            for section in (" ".join(words[1:-1].split()) for words in re.findall(QUOTED, quoted)):
                if (ROOT / name).exists() and section not in headings(ROOT / name) + leads(ROOT / name):
                    yield problem(path, line_of(path, name), f"{name} does not have a section '{section}'")


def _index() -> Iterator[str]:
    index = DOCS / "README.md"
    linked = Counter((DOCS / target).resolve() for _, target, _ in LINK.findall(text_of(index)))
    for path in DOCS.rglob("*.md"):
        if path != index and linked[path] != 1:
            yield problem(index, 1, f"it has {linked[path]} links to {path.relative_to(DOCS)}, not one")


def _site() -> Iterator[str]:
    """Yield links of the site to missing pages, and pages that the site does not list exactly once."""
    pages = {site.place_of(path): path for path in DOCS.rglob("*.md")}
    for place, path in pages.items():
        for _, target, _ in LINK.findall(FENCED.sub("", site.page_of(path))):
            if target and "://" not in target and Path(os.path.normpath(place.parent / target)) not in pages:
                yield problem(path, line_of(path, target), f"the page {target} is missing from the site")
    shown = Counter(map(Path, re.findall(r"'([\w/-]+\.md)'", repr(site.navigation()))))
    for place in sorted(pages.keys() | shown.keys()):
        if place not in pages or shown[place] != 1:
            yield problem(DOCS / "README.md", 1, f"the site lists {place} {shown[place]} times, not once")


def _glossary() -> Iterator[str]:
    tables = [re.findall(r"^\| (\*\*.+?\*\*|`\w+`) \|", part, re.MULTILINE) for part in text_of(GLOSSARY).split("\n\n")]
    names = [name for column in tables for name in column]
    wrong = [
        name
        for column in tables
        for name, next_ in pairwise(column)
        if name.strip("*").lower() > next_.strip("*").lower()
    ]
    for name in [*wrong, *(name for name, number in Counter(names).items() if number > 1)]:
        yield problem(GLOSSARY, line_of(GLOSSARY, f"| {name} |"), f"{name} is out of order or a duplicate")
    classes = [name.strip("`") for name in names if name.startswith("`")]
    words = [name for name in names if name.startswith("*")]
    if len(words) <= GLOSSARY_WORDS_MIN:
        yield problem(GLOSSARY, 1, f"only {len(words)} words were found")
    defined = Counter(name for path in modules_in("gossip", "consensus", "bridge") for name in definitions(path))
    for name in classes:
        if defined[name] != 1:
            yield problem(GLOSSARY, line_of(GLOSSARY, f"`{name}`"), f"{name} is defined {defined[name]} times")
