"""The modules of the four packages: acyclic imports, only of lower layers; pure cores; a minimum size.

import-linter checks folders, and may ignore imports under `if TYPE_CHECKING`. These checks read every import statement
of every module, including those in functions and for annotations: two modules that need each other's types are one idea
in two files.

A module with one importer and fewer than 40 lines of code is a sliver: it costs its reader a change of files. If a
module is small on purpose, a sentence of its docstring with the words "separate module" gives the reason.
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
    "bridge": ("core", "wire", "api", "sam", "node connect", "tui", "cli"),
    "bridge.core": ("formation", "log", "membership", "state", "publishing", "farm connecting history"),
    "bridge.wire": ("membership history", "keys", "i2p routers", "log"),
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
        "kafka zmq inviting",
        "client_endpoints",
        "history",
        "control",
        "detecting doctor offline local",
        "app",
    ),
}
"""The layers of each package, from the lowest to the highest; folders of one layer do not import each other."""
COMMANDS = "bridge.cli."
"""The prefix of modules that the command line imports by name, when a command is called."""
ROOM_MODULES_MAX = {"consensus.protocols": 20, "gossip": 15, "bridge": 20, "pipeline": 15}
FUNCTION_LINES = 70
PREFACE_LINES = 20
IMPORTS_OF_APP_MAX = 15
SLIVER_LINES = 40
REASON = "separate module"
PURE = frozenset(
    {
        "abc", "array", "base64", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq",
        "itertools", "math", "msgspec", "operator", "random", "statistics", "string", "struct", "types", "typing",
    }
)  # fmt: skip
"""The modules, except own ones, that a core may import: they do not read a clock, a file, a socket or variables."""
PURE_BY_FACE = {
    "consensus": ("consensus.core.",),
    "consensus.sessions": ("consensus.sessions.table",),
    "gossip": ("gossip.core.",),
    "consensus.protocols.garlic_farm": ("consensus.protocols.garlic_farm.wire.",),
}
"""The modules whose names a core or a wire may import through a public module; only the wire uses the last."""
OF_OTHER_PROTOCOLS = re.compile(r"(?i)garlic|zmq|kraft|kafka|\btls\b|\bssl\b|\bwires?\b")

Graph = Mapping[str, Mapping[str, int]]
"""Module → each imported module → the line. A package counts if a name of the package itself is imported."""


@cache
def modules() -> dict[str, Path]:
    return {dotted(path): path for path in modules_in(*PACKAGES)}


@cache
def graph() -> Graph:
    return {name: dict(_imported(name, path)) for name, path in modules().items()}


def _imported(importer: str, path: Path) -> Iterator[tuple[str, int]]:
    """Return the file with the imports of a module: for a package, its stub."""
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
    """Return the folder of a module in `package`: empty for its `__init__`, None for a module of another package."""
    if module == package:
        return ""
    rest = module.removeprefix(f"{package}.")
    return None if rest == module else rest.partition(".")[0]


def floor_of(room: str, package: str) -> int:
    """Return the number of a layer; the `__init__` of the package, which may import anything, is above all."""
    floors = FLOORS[package]
    return next((number for number, floor in enumerate(floors) if room in floor.split()), len(floors))


def code_lines(path: Path) -> int:
    """Return the number of lines of code, without blank lines, comments and docstrings."""
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
    """Yield violations of the order of the modules."""
    yield from cycles(graph())
    yield from higher_floors(graph())
    yield from missing_floors(graph())
    yield from slivers(graph())
    yield from _large_rooms()
    yield from long_prefaces()
    yield from _long_functions()
    yield from _composition_root()
    for path in modules().values():
        if not ast.get_docstring(tree_of(path)):
            yield problem(path, 1, "a module begins with a docstring")
    yield from _impure_modules()
    yield from _foreign_words_of_the_server()


def cycles(imports: Graph) -> Iterator[str]:
    try:
        TopologicalSorter({name: set(others) for name, others in imports.items()}).prepare()
    except CycleError as error:
        circle = error.args[1]
        line = imports.get(circle[1], {}).get(circle[0], 1)
        yield _problem_in(circle[1], line, f"a cycle of imports: {' -> '.join(circle)}")


def higher_floors(imports: Graph) -> Iterator[str]:
    """Yield imports of higher layers, and of other folders in the same layer."""
    for package in FLOORS:
        for module, others in imports.items():
            own = room_of(module, package)
            for other, line in others.items():
                room = room_of(other, package)
                # A root without imports defines the version.
                is_version = other == package and not imports[package]
                if own is None or room is None or room == own or is_version:
                    continue
                if floor_of(room, package) >= floor_of(own, package):
                    yield _problem_in(module, line, f"{module} imports {other}, which is not in a lower layer")


def missing_floors(imports: Graph) -> Iterator[str]:
    """Yield folders without a layer, and missing folders of `FLOORS`."""
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
                path,
                1,
                f"{code_lines(path)} lines of code, imported by {by}: merge it, or give the reason for a module",
            )


def long_prefaces() -> Iterator[str]:
    """Yield modules with a docstring above the limit of lines."""
    for path in modules_in(*PACKAGES, "tests/simulation"):
        lines = (ast.get_docstring(tree_of(path)) or "").count("\n") + 1
        if lines > PREFACE_LINES:
            yield problem(path, 1, f"its docstring has {lines} lines, more than {PREFACE_LINES}: move a part to docs")


def _large_rooms() -> Iterator[str]:
    for package, most in ROOM_MODULES_MAX.items():
        paths = [path for name, path in modules().items() if name.startswith(package) and path.name != "__init__.py"]
        for room, count in Counter(path.parent for path in paths).items():
            if count > most:
                yield problem(room / "__init__.py", 1, f"{count} modules, more than the limit of {most}: add a folder")


def _long_functions() -> Iterator[str]:
    for path in modules_in("bridge"):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines >= FUNCTION_LINES:
                    yield problem(
                        path, node.lineno, f"{node.name} has {lines} lines, more than a screen shows: split it"
                    )


def _composition_root() -> Iterator[str]:
    path = modules()["bridge.node.app"]
    of_the_project = {module for _, module, names in imports_of(path) if names and module.startswith(PACKAGES)}
    if len(of_the_project) > IMPORTS_OF_APP_MAX:
        yield problem(
            path, 1, f"it imports from {len(of_the_project)} modules: it should read like a table of contents"
        )
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
                # An `__init__` loads its modules lazily.
                is_face = (path.name, top) == ("__init__.py", "lazy_loader")
                if not (top in PURE or top in PACKAGES or is_face):
                    yield problem(path, line, f"{module} is not in the list of pure modules")
                if top == "random" and names != ("Random",):
                    yield problem(
                        path, line, "a core gets its Random as a parameter; the module's functions use global state"
                    )
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
                yield problem(path, number, f"the server must not refer to a protocol, TLS or a wire: {word}")


def _problem_in(module: str, line: int, text: str) -> str:
    path = modules().get(module)
    return problem(path, line, text) if path else f"{module}:{line}: {text}"
