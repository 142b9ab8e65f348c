"""What is installed is named once: versions in constraints.txt, and for the base the bytes themselves."""

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?P<name>[a-z0-9.-]+)==(?P<version>\S+)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


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


@pytest.mark.parametrize("file", ["base.txt", "build.txt"])
def test_every_hashed_package_has_the_version_of_the_constraints(file: str) -> None:
    known = constraints()
    assert hashed(file) == {name: known.get(name) for name in hashed(file)}, "run `make requirements`"


def test_the_hashed_base_is_all_that_the_base_needs_and_no_more() -> None:
    base, needed = hashed("base.txt"), names(project()["project"]["dependencies"])
    assert needed <= set(base), "run `make requirements`"
    waiting = list(needed)
    while waiting:
        # What needs a condition that does not hold, as another system, is not in the list.
        further = (names(distribution(waiting.pop()).requires or []) & set(base)) - needed
        needed |= further
        waiting += further
    assert set(base) == needed


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def names(requirements: Iterable[str]) -> set[str]:
    return {canonical(re.split(r"[<>=!~\[ ;(]", each)[0]) for each in requirements}


def test_the_build_backend_is_hashed() -> None:
    assert names(project()["build-system"]["requires"]) == set(hashed("build.txt"))


def test_no_file_names_a_registry_by_its_host() -> None:
    for file in (
        "requirements/base.txt",
        "requirements/build.txt",
        "requirements/pin.py",
        "Makefile",
        "constraints.txt",
    ):
        assert "://" not in (ROOT / file).read_text(), f"{file} names a host"
