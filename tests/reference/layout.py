"""docs/reference/layout.md: each folder of the packages with the first paragraph of its docstring.

Folders of `deploy` contain files of other kinds instead of modules; the page has the first paragraph of their
README.md.
"""

import ast
from pathlib import Path

from tests.structure.sources import ROOT

PACKAGES = ("gossip", "consensus", "bridge", "pipeline", "pyspark_garlicfarm", "pyspark_garlicfarm_events", "deploy")
HEAD = """# Layout

The folders of each package with their content. Import contracts (`pyproject.toml`) and tests enforce the direction of
imports between folders; [Architecture](../explanation/architecture.md) gives the reasons.
"""


def page() -> str:
    return HEAD + "".join(_package(ROOT / name) for name in PACKAGES)


def _package(package: Path) -> str:
    named = [*package.rglob("__init__.py"), *package.rglob("README.md")]
    folders = sorted(path.parent for path in named if _sentence(path.parent))
    rows = [f"| `{folder.relative_to(ROOT)}` | {_sentence(folder)} |\n" for folder in folders]
    return f"\n## {package.name}\n\n| folder | content |\n|---|---|\n" + "".join(rows)


def _sentence(folder: Path) -> str:
    readme = folder / "README.md"
    if readme.exists():
        return " ".join(readme.read_text(encoding="utf-8").split("\n\n", 1)[0].split())
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n", 1)[0].split())
