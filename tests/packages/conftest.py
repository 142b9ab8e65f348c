"""The packages built by `make dist`, and the scratch machine to install them on."""

import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.deb import package_name
from deploy.environment import ROOT, supported_target
from tests.packages.machine import Machine, reason_to_skip

DIST = ROOT / "dist"


@pytest.fixture(scope="session")
def package() -> Path:
    """Return the Debian package for the system's Python (not the Python of the virtual environment)."""
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)
    try:
        python_version = subprocess.run(
            ["/usr/bin/python3", "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        )
        architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)  # noqa: S607
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a Debian system with its own Python: {error}")
    found = DIST / package_name(supported_target(python_version.stdout.strip(), architecture.stdout.strip()))
    assert found.exists(), f"{found.name} does not exist: `make dist` builds it (on {platform.platform()})"
    return found


@pytest.fixture(scope="module")
def machine(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Return a machine with the installed package."""
    with Machine(tmp_path_factory.mktemp("machine")) as made:
        (made.root / "srv/garlicfarm.deb").write_bytes(package.read_bytes())
        made.run("dpkg", "--install", "/srv/garlicfarm.deb", environment={"DEBIAN_FRONTEND": "noninteractive"})
        yield made
