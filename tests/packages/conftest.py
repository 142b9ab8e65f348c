"""The packages built by `make dist`, and the scratch machine to install them on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.machine import Machine, debian_package


@pytest.fixture(scope="session")
def package() -> Path:
    return debian_package()


@pytest.fixture(scope="module")
def machine(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine")) as made:
        made.install(package)
        yield made
