"""The rooms of the four packages: no circle of modules, no import of a higher floor, no sliver.

import-linter leaves out what stands under `if TYPE_CHECKING` if it is told to, and judges folders. This test reads
every import statement of every module, also those in functions and those for annotations alone: two modules that need
each other's types are one idea cut in two.

A module that has one importer and fewer than 40 lines of code is a sliver: its reader changes files for nothing. One
that stands alone on purpose says why, in a sentence of its docstring that begins with "A module of its own".
"""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = {
    "consensus": ("core", "storage sessions", "server", "net", "protocols"),
    "consensus.protocols.kraft": ("wire", "node", "groups"),
    "consensus.protocols.kraft.node": ("connections", "operators topic", "replica"),
    "gossip": ("core", "wire", "node simulation"),
    "bridge": ("core", "wire", "api", "node", "tui", "cli"),
    "bridge.core": ("formation", "log", "membership", "state", "publishing", "farm"),
    "bridge.wire": ("membership", "keys", "i2p", "log"),
    "bridge.node": (
        "http_exchange",
        "events",
        "security",
        "router",
        "settings",
        "raft",
        "membership",
        "tasks",
        "local_node",
        "joined_node",
        "founded_farm",
        "kafka zmq",
        "client_endpoints",
        "control",
        "doctor offline local",
        "app",
    ),
}
"""Of each package, from the lowest to the highest; two rooms of one floor do not know each other."""
PACKAGES = ("consensus", "gossip", "bridge", "pipeline")
COMMANDS = "bridge.cli."
"""The command line imports these modules by name, when one is called."""
ROOM_MODULES_MAX = {"consensus.protocols": 20, "gossip": 15, "bridge": 20, "pipeline": 15}
FUNCTION_LINES = 70
IMPORTS_OF_APP_MAX = 15
SLIVER_LINES = 40
REASON = "A module of its own"


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {dotted(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def imported(path: Path) -> Iterator[str]:
    """Yield each module of these packages that a file imports. A stub declares the imports of its package."""
    stub = path.with_suffix(".pyi")
    for node in ast.walk(ast.parse((stub if stub.exists() else path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            source = f"{dotted(path)}.{node.module}" if node.level else node.module
            for alias in node.names:
                yield from [name for name in (f"{source}.{alias.name}", source) if name in MODULES][:1]


GRAPH = {name: {other for other in imported(path) if other != name} for name, path in MODULES.items()}
"""Module → what it imports. A package counts if a name of its own is imported, such as one of a face."""


def room_of(module: str, package: str) -> str | None:
    """The room of `package` in which a module stands: empty for its face, None for a module of another package."""
    if module == package:
        return ""
    rest = module.removeprefix(f"{package}.")
    return None if rest == module else rest.partition(".")[0]


def floor_of(room: str, package: str) -> int:
    """The floor's number; the face of the package, which may import anything, stands above all."""
    floors = FLOORS[package]
    return next((number for number, floor in enumerate(floors) if room in floor.split()), len(floors))


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


@pytest.mark.parametrize("package", FLOORS)
def test_a_module_imports_only_its_own_room_and_lower_floors(package: str) -> None:
    wrong = []
    for module, others in GRAPH.items():
        own = room_of(module, package)
        for other in others:
            room = room_of(other, package)
            if own is None or room is None or room == own:
                continue
            if other == package and not GRAPH[package]:
                continue  # a root that imports nothing, and tells the version
            if floor_of(room, package) >= floor_of(own, package):
                wrong.append(f"{module} -> {other}")
    assert wrong == []


@pytest.mark.parametrize("package", FLOORS)
def test_every_room_stands_on_a_floor(package: str) -> None:
    rooms = {room for module in GRAPH if (room := room_of(module, package))}
    assert rooms == set(" ".join(FLOORS[package]).split())


@pytest.mark.parametrize("module", sorted(name for name, path in MODULES.items() if path.name != "__init__.py"))
def test_a_module_with_one_importer_is_more_than_a_sliver(module: str) -> None:
    importers = [name for name, others in GRAPH.items() if module in others]
    docstring = ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8"))) or ""
    lines = lines_of_code(MODULES[module])
    is_called_by_name = module.startswith(COMMANDS) and not importers
    assert len(importers) > 1 or is_called_by_name or lines >= SLIVER_LINES or REASON in docstring, (
        f"{lines} lines of code, imported by {importers}: fold it into its importer, or say why it stands alone"
    )


@pytest.mark.parametrize("package", ROOM_MODULES_MAX)
def test_a_room_has_no_more_modules_than_a_reader_keeps_apart(package: str) -> None:
    paths = [path for name, path in MODULES.items() if name.startswith(package) and path.name != "__init__.py"]
    rooms = Counter(str(path.parent.relative_to(ROOT)) for path in paths)
    assert {room: count for room, count in rooms.items() if count > ROOM_MODULES_MAX[package]} == {}


def test_a_function_of_bridge_fits_a_screen() -> None:
    long = {}
    for name, path in MODULES.items():
        if name.startswith("bridge"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    if lines >= FUNCTION_LINES:
                        long[f"{name}.{node.name}"] = lines
    assert long == {}


def test_the_composition_root_reads_as_a_table_of_contents() -> None:
    tree = ast.parse(MODULES["bridge.node.app"].read_text(encoding="utf-8"))
    modules = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    of_the_project = sorted(each for each in modules if each and each.startswith(PACKAGES))
    assert len(of_the_project) <= IMPORTS_OF_APP_MAX
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign)]
    assert [each for each in values if isinstance(each, ast.Constant) and each.value is None] == []
