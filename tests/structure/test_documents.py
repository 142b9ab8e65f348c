"""What documents, code and tests name exists: documents, their sections, linked files and functions.

A link `file.py#name` names a function, a class or a method, not a line, so that it survives an edit above it. Code and
tests name a document by its path from the root, and a section of it in quotation marks behind the path. Documents name
a section by a link with the anchor that GitHub and mkdocs make of its heading.
"""

import ast
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from bridge.node.settings.configuration import SETTINGS
from tests.reference import site
from tests.structure.raft_rules import ROOT, definitions_in

DOCS = ROOT / "docs"
DOCUMENTS = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md"))])
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.md")
SECTION = re.compile(rf"({NAMED.pattern})`?,? (?:says )?(?:under )?['\"]([^'\"]+)['\"]")
PACKAGE = "(?:gossip|consensus|bridge|pipeline|benchmarks|tests)"
MENTIONED = re.compile(r"`([\w/.-]+\.md)`")
MENTIONED_TEST = re.compile(r"`(?:tests/)?(\w+/(?:\w+/)*test_\w+\.py)`")
READ = {".py", ".toml", ".md", ".txt", ".go", ".java", ".json", ""}


@cache
def definitions(path: Path) -> frozenset[str]:
    return frozenset(definition.name for definition in definitions_in(path))


@cache
def headings(path: Path) -> tuple[str, ...]:
    return tuple(re.findall(r"^#+ (.+)$", FENCED.sub("", path.read_text(encoding="utf-8")), re.MULTILINE))


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def exists(path: Path, part: str) -> bool:
    """Whether there is such a file and, in a document or a module, such a part."""
    if not path.exists():
        return False
    match path.suffix:
        case ".md":
            return not part or part in map(anchor, headings(path))
        case ".py":
            return not part or part in definitions(path)
        case _:
            return True


def tracked() -> Iterator[Path]:
    """The files of the repository that may name a document."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607
    names = listed.stdout.splitlines() if listed.returncode == 0 else []
    for path in map(ROOT.joinpath, names):
        if path.suffix in READ and path.is_file() and "vectors" not in path.parts:
            yield path


def texts(path: Path) -> list[str]:
    """What a file says: of a module each whole string, since long ones are written in parts."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return [source]
    nodes = list(ast.walk(ast.parse(source)))
    joined = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
    ]
    return joined + [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_links_exists(document: Path) -> None:
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    missing = [
        f"{target}#{part}"
        for _, target, part in LINK.findall(text)
        if "://" not in target and not exists((document.parent / target).resolve() if target else document, part)
    ]
    missing += [name for name in MENTIONED.findall(text) if not any((base / name).exists() for base in bases(document))]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_test_that_a_document_names_exists(document: Path) -> None:
    named = MENTIONED_TEST.findall(document.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


def bases(document: Path) -> tuple[Path, ...]:
    """Where a document that is named without a link may stand."""
    return document.parent, ROOT


def test_every_document_and_section_that_is_named_anywhere_exists() -> None:
    missing = set()
    for path in tracked():
        missing |= {
            f"{path.relative_to(ROOT)}: {name}"
            for name in NAMED.findall(path.read_text(encoding="utf-8"))
            if not (ROOT / name).exists()
        }
        missing |= {
            f"{path.relative_to(ROOT)}: {name}, '{section}'"
            for text in texts(path)
            for name, section in SECTION.findall(text)
            if (ROOT / name).exists() and " ".join(section.split()) not in headings(ROOT / name)
        }
    assert missing == set()


def test_the_index_links_every_document_once() -> None:
    index = DOCS / "README.md"
    linked = [str((DOCS / target).resolve()) for _, target, _ in LINK.findall(index.read_text(encoding="utf-8"))]
    there = [str(path) for path in sorted(DOCS.rglob("*.md")) if path != index]
    assert sorted(target for target in linked if target.startswith(str(DOCS))) == there


def test_a_page_of_the_site_links_pages_of_the_site_alone() -> None:
    places = {site.place_of(path): site.page_of(path) for path in sorted(DOCS.rglob("*.md"))}
    linked = {
        (place, os.path.normpath(place.parent / target))
        for place, text in places.items()
        for _, target, _ in LINK.findall(FENCED.sub("", text))
        if target and "://" not in target
    }
    assert {f"{place}: {target}" for place, target in linked if Path(target) not in places} == set()


def test_the_site_shows_every_page_once() -> None:
    shown = re.findall(r"'([\w/-]+\.md)'", repr(site.navigation()))
    assert sorted(map(Path, shown)) == sorted(site.place_of(path) for path in DOCS.rglob("*.md"))


def test_the_site_has_a_gallery_where_pictures_were_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (("BUILD", ""), ("PAGES", "docs"), ("GALLERY", "gallery")):
        monkeypatch.setattr(site, name, tmp_path / place)
    site.lay_out()
    assert "gallery" not in (tmp_path / "zensical.toml").read_text(encoding="utf-8")
    (tmp_path / "gallery").mkdir()
    (tmp_path / "gallery" / site.GALLERY_PAGE).write_text("# Gallery\n\n![The farm](gallery/farm.svg)\n")
    (tmp_path / "gallery" / "farm.svg").write_text("<svg/>")
    site.lay_out()
    assert '{"Gallery" = "gallery.md"}' in (tmp_path / "zensical.toml").read_text(encoding="utf-8")
    assert (tmp_path / "docs" / "gallery" / "farm.svg").exists()
    assert (tmp_path / "docs" / site.GALLERY_PAGE).exists()


def test_the_glossary_defines_each_word_once_and_in_order() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert words == sorted(set(words), key=str.lower)
    assert len(words) > 80


def test_each_class_of_the_glossary_is_defined_once() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert named == sorted(set(named))
    defined = Counter(
        definition.name
        for package in ("gossip", "consensus", "bridge")
        for path in (ROOT / package).rglob("*.py")
        for definition in definitions_in(path)
    )
    assert {name: defined[name] for name in named if defined[name] != 1} == {}


def named_modules(text: str) -> set[str]:
    """The files and dotted names of this project that a text names in backquotes; a setting looks like one."""
    return set(re.findall(rf"`({PACKAGE}/[\w/]+\.py)\b", text)) | set(re.findall(rf"`({PACKAGE}(?:\.\w+)+)[`(]", text))


def resolves(name: str) -> bool:
    """Whether a file exists, or a dotted name is a package, a module, or a name in one."""
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
            return not rest or rest.split(".")[0] in face.read_text(encoding="utf-8")
    return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_modules_that_a_document_names_exist(document: Path) -> None:
    named = named_modules(document.read_text(encoding="utf-8"))
    assert sorted(name for name in named - SETTINGS.keys() if not resolves(name)) == []
