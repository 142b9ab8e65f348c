"""Versions are declared in constraints.txt; production packages are installed by hash."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from tests.processes import END_S

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?P<name>[a-z0-9.-]+)==(?P<version>\S+)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


FILES = ("base.txt", "extras.txt", "build.txt")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonical(name): version for name, version in (line.split("==") for line in lines)}


def hashed(file: str) -> dict[str, str]:
    text = (ROOT / "requirements" / file).read_text()
    found = list(BLOCK.finditer(text))
    comment, blocks = text.split("\n", 1)
    assert comment.startswith("# ")
    assert "".join(each[0] + "\n" for each in found) == blocks, "a line that is neither a package nor its hash"
    return {each["name"]: each["version"] for each in found}


@pytest.mark.parametrize("file", FILES)
def test_hashed_packages_have_versions_of_constraints(file: str) -> None:
    known = constraints()
    assert hashed(file) == {name: known.get(name) for name in hashed(file)}, "run `make requirements`"


def test_hashed_base_equals_needs_of_base() -> None:
    assert set(hashed("base.txt")) == closure(project()["project"]["dependencies"], hashed("base.txt"))


def test_hashed_extras_equal_additions_of_extras() -> None:
    base, added = hashed("base.txt"), hashed("extras.txt")
    optional = project()["project"]["optional-dependencies"]
    needed = closure([each for extra in ("pipeline", "zmq", "kafka") for each in optional[extra]], base | added)
    assert set(added) == needed - set(base)


def closure(requirements: Iterable[str], listed: Iterable[str]) -> set[str]:
    """Return the packages of `listed` that these requirements need, directly or indirectly."""
    needed = names(requirements)
    assert needed <= set(listed), "run `make requirements`"
    waiting = list(needed)
    while waiting:
        # Requirements with a false condition, such as another system, are not listed.
        further = (names(distribution(waiting.pop()).requires or []) & set(listed)) - needed
        needed |= further
        waiting += further
    return needed


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def names(requirements: Iterable[str]) -> set[str]:
    return {canonical(re.split(r"[<>=!~\[ ;(]", each)[0]) for each in requirements}


def test_build_backend_is_hashed() -> None:
    assert names(project()["build-system"]["requires"]) == set(hashed("build.txt"))


def test_files_do_not_name_registry_hosts() -> None:
    for file in (*(f"requirements/{each}" for each in FILES), "requirements/pin.py", "Makefile", "constraints.txt"):
        assert "://" not in (ROOT / file).read_text(), f"{file} names a host"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_incomplete_environment_is_removed(tmp_path: Path) -> None:
    """A second `make` would use an environment without pip, and its error would not name the missing package."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\nmkdir -p .venv/bin\ntouch .venv/bin/python\nexit 1\n')
    python.chmod(0o755)
    command = ["make", "-C", str(tmp_path), f"PYTHON={python}", ".venv/bin/python"]
    assert subprocess.run(command, check=False, capture_output=True, timeout=END_S).returncode != 0
    assert python.exists()
    assert not (tmp_path / ".venv").exists()
