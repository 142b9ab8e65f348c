"""The modules of the four packages: no cycle of imports, no import of a higher layer, pure cores, no sliver.

import-linter leaves out what stands under `if TYPE_CHECKING` if it is told to, and judges folders. These checks read
every import statement of every module, also those in functions and those for annotations alone: two modules that need
each other's types are one idea cut in two.

A module that has one importer and fewer than 40 lines of code is a sliver: its reader changes files for nothing. One
that stands alone on purpose says why, in a sentence of its docstring that begins with "A module of its own".
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.structure.sources import PACKAGES, ROOT, dotted, modules_in, nodes_of, problem, text_of, tree_of

FLOORS = {
    "consensus": ("core", "storage sessions", "server", "net", "protocols"),
    "consensus.protocols.kafka": ("wire", "connections", "topic", "groups"),
    "consensus.protocols.kraft": ("wire", "operators", "replica"),
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
COMMANDS = "bridge.cli."
"""The command line imports these modules by name, when one is called."""
ROOM_MODULES_MAX = {"consensus.protocols": 20, "gossip": 15, "bridge": 20, "pipeline": 15}
FUNCTION_LINES = 70
IMPORTS_OF_APP_MAX = 15
SLIVER_LINES = 40
REASON = "A module of its own"
PURE = frozenset(
    {
        "abc", "array", "base64", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq",
        "itertools", "math", "operator", "random", "statistics", "string", "struct", "types", "typing",
    }
)  # fmt: skip
"""What of the standard library a core may use: nothing that reads a clock, a file, a socket or the environment."""
PURE_BY_FACE = {
    "consensus": ("consensus.core.",),
    "consensus.sessions": ("consensus.sessions.table",),
    "gossip": ("gossip.core.",),
    "consensus.protocols.garlic_farm": ("consensus.protocols.garlic_farm.wire.",),
}
"""Which homes of a face's names a core or a wire may use; the wire alone uses the last."""
OF_OTHER_PROTOCOLS = re.compile(r"(?i)garlic|zmq|kraft|kafka|\btls\b|\bssl\b|\bwires?\b")

Graph = Mapping[str, Mapping[str, int]]
"""Module → each module that it imports → the line. A package counts if a name of its own is imported."""


@cache
def modules() -> dict[str, Path]:
    """Return the modules of the packages by name."""
    return {dotted(path): path for path in modules_in(*PACKAGES)}


@cache
def graph() -> Graph:
    """Return what each module imports."""
    return {name: dict(_imported(name, path)) for name, path in modules().items()}


def _imported(importer: str, path: Path) -> Iterator[tuple[str, int]]:
    """A stub declares the imports of its package."""
    stub = path.with_suffix(".pyi")
    for line, module, names in imports_of(stub if stub.exists() else path):
        for name in [f"{module}.{name}" for name in names] or [module]:
            found = name if name in modules() else module
            if found in modules() and found != importer:
                yield found, line


@cache
def imports_of(path: Path) -> list[tuple[int, str, tuple[str, ...]]]:
    """Return the line, the module and the names of each import statement; `import x` has no names."""
    found: list[tuple[int, str, tuple[str, ...]]] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = f"{dotted(path)}.{node.module}" if node.level else node.module or ""
            found.append((node.lineno, module, tuple(alias.name for alias in node.names)))
    return found


def room_of(module: str, package: str) -> str | None:
    """Return the room of `package` that holds a module: empty for its face, None for a module of another package."""
    if module == package:
        return ""
    rest = module.removeprefix(f"{package}.")
    return None if rest == module else rest.partition(".")[0]


def floor_of(room: str, package: str) -> int:
    """Return the number of a floor; the face of the package, which may import anything, is above all."""
    floors = FLOORS[package]
    return next((number for number, floor in enumerate(floors) if room in floor.split()), len(floors))


def code_lines(path: Path) -> int:
    """Return the number of lines that hold code: neither blank nor comment nor docstring."""
    strings = {
        line
        for node in nodes_of(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return sum(
        1
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#") and number not in strings
    )


def check() -> Iterator[str]:
    """Yield what breaks the order of the modules."""
    yield from cycles(graph())
    yield from higher_floors(graph())
    yield from missing_floors(graph())
    yield from slivers(graph())
    yield from _large_rooms()
    yield from _long_functions()
    yield from _composition_root()
    for path in modules().values():
        if not ast.get_docstring(tree_of(path)):
            yield problem(path, 1, "a module begins with a docstring")
    yield from _impure_modules()
    yield from _foreign_words_of_the_server()


def cycles(imports: Graph) -> Iterator[str]:
    """Yield a cycle of imports."""
    try:
        TopologicalSorter({name: set(others) for name, others in imports.items()}).prepare()
    except CycleError as error:
        circle = error.args[1]
        line = imports.get(circle[1], {}).get(circle[0], 1)
        yield _problem_in(circle[1], line, f"a cycle of imports: {' -> '.join(circle)}")


def higher_floors(imports: Graph) -> Iterator[str]:
    """Yield imports of the same floor's other rooms and of higher floors."""
    for package in FLOORS:
        for module, others in imports.items():
            own = room_of(module, package)
            for other, line in others.items():
                room = room_of(other, package)
                # A root that imports nothing tells the version.
                is_version = other == package and not imports[package]
                if own is None or room is None or room == own or is_version:
                    continue
                if floor_of(room, package) >= floor_of(own, package):
                    yield _problem_in(module, line, f"{module} imports {other}, which is not on a lower floor")


def missing_floors(imports: Graph) -> Iterator[str]:
    """Yield rooms without a floor, and rooms of `FLOORS` that do not exist."""
    for package, floors in FLOORS.items():
        rooms = {room for module in imports if (room := room_of(module, package))}
        for room in sorted(rooms ^ set(" ".join(floors).split())):
            yield f"tests/structure/modules.py:1: FLOORS of {package} and its folders differ in {room}"


def slivers(imports: Graph) -> Iterator[str]:
    """Yield short modules with one importer and without a reason."""
    importers: dict[str, list[str]] = {}
    for name, others in imports.items():
        for other in others:
            importers.setdefault(other, []).append(name)
    for name, path in modules().items():
        by = importers.get(name, [])
        is_called_by_name = name.startswith(COMMANDS) and not by
        if path.name == "__init__.py" or len(by) > 1 or is_called_by_name:
            continue
        if code_lines(path) < SLIVER_LINES and REASON not in (ast.get_docstring(tree_of(path)) or ""):
            yield problem(
                path, 1, f"{code_lines(path)} lines of code, imported by {by}: fold it in, or say why it stands alone"
            )


def _large_rooms() -> Iterator[str]:
    for package, most in ROOM_MODULES_MAX.items():
        paths = [path for name, path in modules().items() if name.startswith(package) and path.name != "__init__.py"]
        for room, count in Counter(path.parent for path in paths).items():
            if count > most:
                yield problem(room / "__init__.py", 1, f"{count} modules, more than a reader keeps apart ({most})")


def _long_functions() -> Iterator[str]:
    for path in modules_in("bridge"):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines >= FUNCTION_LINES:
                    yield problem(path, node.lineno, f"{node.name} has {lines} lines and does not fit on a screen")


def _composition_root() -> Iterator[str]:
    path = modules()["bridge.node.app"]
    of_the_project = {module for _, module, names in imports_of(path) if names and module.startswith(PACKAGES)}
    if len(of_the_project) > IMPORTS_OF_APP_MAX:
        yield problem(path, 1, f"it imports of {len(of_the_project)} modules, and is to read as a table of contents")
    for node in nodes_of(path):
        match node:
            case ast.Assign(value=ast.Constant(None)) | ast.AnnAssign(value=ast.Constant(None)):
                yield problem(path, node.lineno, "the composition root builds each part completely: no None for later")
            case _:
                pass


def _impure_modules() -> Iterator[str]:
    for path in modules().values():
        parts = path.relative_to(ROOT).parts
        for line, module, names in imports_of(path):
            top = module.partition(".")[0]
            if "core" in parts:
                # A face loads its modules lazily; msgspec does no I/O and reads no clock.
                is_face = (path.name, top) == ("__init__.py", "lazy_loader")
                if not (top in PURE or top in PACKAGES or is_face or (parts[0], top) == ("bridge", "msgspec")):
                    yield problem(path, line, f"{module} is not known to be pure")
                if top == "random" and names != ("Random",):
                    yield problem(path, line, "a core is given its Random; the module's functions are global state")
            if parts[:2] in {("bridge", "core"), ("bridge", "wire")} and module in PURE_BY_FACE:
                homes = {name: home for _, home, exported in imports_of(_stub(module)) for name in exported}
                for name in names:
                    if not f"{homes[name]}.".startswith(PURE_BY_FACE[module]):
                        yield problem(path, line, f"{name} of {module} does I/O")


def _stub(face: str) -> Path:
    return ROOT.joinpath(*face.split("."), "__init__.pyi")


def _foreign_words_of_the_server() -> Iterator[str]:
    for path in modules_in("consensus/server"):
        for number, line in enumerate(text_of(path).splitlines(), start=1):
            for word in OF_OTHER_PROTOCOLS.findall(line):
                yield problem(path, number, f"the server names no protocol, no TLS and no wire: {word}")


def _problem_in(module: str, line: int, text: str) -> str:
    path = modules().get(module)
    return problem(path, line, text) if path else f"{module}:{line}: {text}"
