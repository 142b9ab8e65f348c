"""The input of `make docs` in build/: the documents, and a configuration of Zensical with their order.

The documents differ from the repository in three ways. Links out of docs/, to modules and tests, become plain text,
since the site does not have these pages. docs/README.md becomes the first page. Numbered items are indented as
Python-Markdown requires. The order of the pages is that of docs/README.md, so it is declared once. Pictures of the live
view are on a separate page, if `make gallery` has taken some.

Reason for Zensical: MkDocs has had no maintainer since 2024, and Material for MkDocs has been in maintenance since
November 2025. Its authors name their Zensical as the successor.
"""

import json
import os
import re
import shutil
from pathlib import Path

from tests.structure.sources import ROOT

DOCS = ROOT / "docs"
BUILD = ROOT / "build"
PAGES = BUILD / "docs"
GALLERY = BUILD / "gallery"
"""The directory of the pictures and their page, written by `make gallery`."""
GALLERY_PAGE = "gallery.md"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]+)?\)")
NUMBERED = re.compile(r"\d+\. ")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
Entry = dict[str, "str | list[Entry]"]
CONFIGURATION = """\
[project]
site_name = "Garlic Farm"
site_description = "High-availability groups of I2P routers"
docs_dir = "docs"
site_dir = "site"
use_directory_urls = false
nav = {nav}

[project.theme]
features = ["navigation.sections", "navigation.top", "search.highlight", "content.code.copy"]
font = false

[project.markdown_extensions.tables]

[project.markdown_extensions.toc]
permalink = true

[project.markdown_extensions.pymdownx.highlight]

[project.markdown_extensions.pymdownx.superfences]

[project.plugins.search]

[project.plugins.offline]
"""


def lay_out() -> None:
    """Write build/docs and build/zensical.toml."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in sorted(DOCS.rglob("*.md")):
        place = PAGES / place_of(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(page_of(path), encoding="utf-8")
    pages = navigation()
    if (GALLERY / GALLERY_PAGE).exists():
        shutil.copytree(GALLERY, PAGES / "gallery", ignore=shutil.ignore_patterns(GALLERY_PAGE))
        shutil.copy(GALLERY / GALLERY_PAGE, PAGES)
        pages.append({"Gallery": GALLERY_PAGE})
    (BUILD / "zensical.toml").write_text(CONFIGURATION.format(nav=_toml(pages)), encoding="utf-8")


def place_of(path: Path) -> Path:
    place = path.relative_to(DOCS)
    return place.with_name("index.md") if place == Path("README.md") else place


def page_of(path: Path) -> str:
    """Return the text of a document in the site."""

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if "://" in target:
            return found[0]
        linked = (path.parent / target).resolve()
        if not linked.is_relative_to(DOCS):
            return text
        return f"[{text}]({os.path.relpath(place_of(linked), place_of(path).parent)}{anchor})"

    parts = FENCE.split(path.read_text(encoding="utf-8"))
    return "".join(part if part.startswith("```") else _indented(LINK.sub(link, part)) for part in parts)


def _indented(text: str) -> str:
    """Return the text with numbered items indented by four columns instead of three, as Python-Markdown requires."""
    lines, within = [], False
    for line in text.split("\n"):
        if line and not line.startswith(" "):
            within = NUMBERED.match(line) is not None
        lines.append(f" {line}" if within and line.startswith("   ") else line)
    return "\n".join(lines)


def navigation() -> list[Entry]:
    """Return the sections of docs/README.md with their linked pages."""
    found: list[Entry] = [{"Garlic Farm": "index.md"}]
    parts = re.split(r"^## (.+)$", (DOCS / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found += [{_title(DOCS / target): target} for target in _linked(parts[0])]
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        found.append({heading: [{_title(DOCS / target): target} for target in _linked(text)]})
    return found


def _toml(value: "Entry | list[Entry] | str") -> str:
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{_toml(key)} = {_toml(each)}' for key, each in value.items())}}}"


def _linked(text: str) -> list[str]:
    return [target for _, target, _ in LINK.findall(text) if not target.startswith("..")]


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ").replace("`", "")


if __name__ == "__main__":
    lay_out()
