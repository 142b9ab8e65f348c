"""The rooms of consensus and gossip: no circle of modules, no import from a lower floor to a higher one, no sliver.

import-linter leaves out what stands under `if TYPE_CHECKING` if it is told to, and judges folders. This test reads
every import statement of every module, also those in functions and those for annotations alone: two modules that need
each other's types are one idea cut in two.

A module that has one importer and fewer than 40 lines of code is a sliver: its reader changes files for nothing. One
that stands alone on purpose says why, in a sentence of its docstring that begins with "A module of its own".
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = {
    "consensus": ("core", "storage sessions", "server", "net", "protocols"),
    "gossip": ("core", "wire", "node simulation"),
}
"""Of each package, from the lowest to the highest; two folders of one floor do not know each other."""
ROOM_MODULES_MAX = 15
SLIVER_LINES = 40
REASON = "A module of its own"


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {dotted(path): path for package in FLOORS for path in sorted((ROOT / package).rglob("*.py"))}


def imported(path: Path) -> Iterator[str]:
    """The modules of these packages that a file names in any import statement."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield from [name for name in (submodule, node.module) if name in MODULES][:1]


GRAPH = {name: {other for other in imported(path) if other != name} for name, path in MODULES.items()}
"""Module → what it imports. A package counts if a name of its own is imported, such as one of a face."""


def floor_of(module: str) -> int:
    """The floor's number; the face of the package, which may import anything, stands above all."""
    package, _, rest = module.partition(".")
    floors, folder = FLOORS[package], rest.partition(".")[0]
    return next((number for number, floor in enumerate(floors) if folder in floor.split()), len(floors))


def lines_of_code(path: Path) -> int:
    """Lines that hold code: neither blank nor comment nor docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    strings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = path.read_text(encoding="utf-8").splitlines()
    return sum(
        1
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#") and number not in strings
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("module", sorted(GRAPH))
def test_a_module_imports_nothing_from_a_higher_floor(module: str) -> None:
    higher = sorted(other for other in GRAPH[module] if floor_of(other) > floor_of(module))
    assert higher == [], f"{module} stands on floor {floor_of(module)}"


@pytest.mark.parametrize("module", sorted(name for name, path in MODULES.items() if path.name != "__init__.py"))
def test_a_module_with_one_importer_is_more_than_a_sliver(module: str) -> None:
    importers = [name for name, others in GRAPH.items() if module in others]
    docstring = ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8"))) or ""
    lines = lines_of_code(MODULES[module])
    assert len(importers) > 1 or lines >= SLIVER_LINES or REASON in docstring, (
        f"{lines} lines of code, imported by {importers}: fold it into its importer, or say why it stands alone"
    )


@pytest.mark.parametrize("room", ["core", "wire", "node", "simulation"])
def test_a_room_of_gossip_has_at_most_fifteen_modules(room: str) -> None:
    modules = [path.stem for path in (ROOT / "gossip" / room).glob("*.py") if path.name != "__init__.py"]
    assert 0 < len(modules) <= ROOM_MODULES_MAX
