"""The house keeps its shape: floors import one way, cores are pure, every module explains itself."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gossip", "consensus", "bridge", "pipeline")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
CORE_MODULES = [path for path in MODULES if "core" in path.relative_to(ROOT).parts]

PURE = frozenset(
    {
        "abc", "array", "base64", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq",
        "itertools", "math", "operator", "random", "statistics", "string", "struct", "types", "typing",
    }
)  # fmt: skip
"""What of the standard library a core may use: nothing that reads a clock, a file, a socket or the environment."""


def _imports(path: Path) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.extend((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", [alias.name for alias in node.names]))
    return found


def _stub(face: str) -> Path:
    return ROOT.joinpath(*face.split("."), "__init__.pyi")


def test_every_import_contract_is_kept() -> None:
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", CORE_MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_core_imports_only_what_is_pure(path: Path) -> None:
    for module, names in _imports(path):
        top = module.partition(".")[0]
        assert (
            top in PURE
            or top in PACKAGES
            or (path.name, top) == ("__init__.py", "lazy_loader")
            or (path.is_relative_to(ROOT / "bridge"), top) == (True, "msgspec")  # no I/O, and no clock
        ), f"{module} is not known to be pure"
        if top == "random":
            assert names == ["Random"], "a core is given its Random; the module's own functions are global state"


PURE_BY_FACE = {
    "consensus": ("consensus.core.",),
    "consensus.sessions": ("consensus.sessions.table",),
    "gossip": ("gossip.core.",),
    "consensus.protocols.garlic_farm": ("consensus.protocols.garlic_farm.wire.",),
}
"""Which homes of a face's names a core or a wire may use; the wire alone uses the last."""
PURE_MODULES = [path for floor in ("core", "wire") for path in sorted((ROOT / "bridge" / floor).rglob("*.py"))]


@pytest.mark.parametrize("path", PURE_MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_cores_and_wires_take_of_a_face_only_what_needs_no_io(path: Path) -> None:
    for module, names in _imports(path):
        if module in PURE_BY_FACE:
            homes = {name: home for home, names in _imports(_stub(module)) for name in names}
            impure = [name for name in names if not f"{module}.{homes[name]}.".startswith(PURE_BY_FACE[module])]
            assert not impure, f"{path} imports {impure} from {module}"


def test_the_server_names_no_protocol_no_tls_and_no_wire() -> None:
    for path in sorted((ROOT / "consensus" / "server").glob("*.py")):
        found = re.findall(r"(?i)garlic|zmq|kraft|kafka|\btls\b|\bssl\b|\bwires?\b", path.read_text(encoding="utf-8"))
        assert not found, f"{path.name} says {found}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_opens_by_explaining_itself(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "a file opens with a docstring"
