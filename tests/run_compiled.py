"""Runs the tests of core, codecs and simulator on modules compiled by mypyc.

    PYTHONSAFEPATH=1 PYTHONPATH=build/compiled:. python -m tests.run_compiled     (`make test-compiled`)

    make compiled ─▶ build/compiled ─▶ check that all listed modules are compiled ─▶ tests ─▶ histories of the simulator

mypyc checks annotations at run time: a value that does not match its annotation is an error in compiled code and not in
Python. So decision code and decoders of untrusted bytes are tested in both forms. Planted bugs replace methods, which a
compiled class does not allow. They, and the tests of uncompiled modules, run only on pure Python.
"""

import sys
import tomllib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest

from tests.simulation.consensus import command

ROOT = Path(__file__).parents[1]
COMPILED = ROOT / "build" / "compiled"
TESTS = (
    "tests/spec/test_raft*.py",
    "tests/spec/test_fetch_*.py",
    "tests/wire/test_garlic_farm*.py",
    "tests/wire/test_record.py",
)
HISTORIES = ("--seeds", "10", "--short", "--jobs", "2")
"""Ten histories per strategy reach all compiled modules; `make simulate` runs hundreds in pure Python."""


def main() -> int:
    """Return the exit status: 0 if all tests and histories passed."""
    wrong = not_compiled()
    if wrong:
        sys.exit(f"not compiled: {', '.join(wrong)}; `make compiled` builds them")
    files = files_of(TESTS)
    failed = pytest.main(["-q", "-n", "2", "-p", "no:cacheprovider", "-o", f"pythonpath={COMPILED} {ROOT}", *files])
    return failed or command.main(HISTORIES)


def files_of(patterns: Iterable[str]) -> list[str]:
    """Return the matching files; exit if a pattern does not match any file."""
    found: list[str] = []
    for pattern in patterns:
        matches = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
        if not matches:
            sys.exit(f"tests/run_compiled.py: no file matches {pattern}; correct TESTS")
        found += matches
    return found


def not_compiled() -> list[str]:
    """Return the modules listed in [tool.garlicfarm] compiled that Python imports from elsewhere or as source."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["garlicfarm"]["compiled"]
    paths = [path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern)]
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    wrong = []
    for name in sorted(names):
        found = Path(str(import_module(name).__file__))
        if found.suffix != ".so" or not found.is_relative_to(COMPILED):
            wrong.append(name)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
