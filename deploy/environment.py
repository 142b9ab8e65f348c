"""The Python environment inside of a package: the libraries by hash, and garlicfarm's own wheel, for one platform.

    requirements/base.txt ──▶ wheels of the target's tags ──▶ lib/python3.X/site-packages
    dist/garlicfarm-*.whl ──▶ its files

Wheels are unpacked, never built, and none of their code runs. So the package for arm64 is made on amd64 without an
emulator, and the package for Debian 13 on Debian 12. The hashes determine the files that pip unpacks.

The environment has the layout of `venv`, made by hand, because `venv` can only make one for the running interpreter.
The environment cannot be moved: the first line of the command contains its path (`PREFIX`).
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements" / "base.txt"
PREFIX = Path("/usr/lib/garlicfarm")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "armhf": "armv7l"}
"""Debian's names of architectures, and the names in wheels."""
PACKAGED = ("amd64", "arm64")
"""The architectures with Debian packages."""
NO_ARMHF = "Armhf does not have a Debian package. If the machine can run a 64-bit system, use that instead."
LAUNCHER = """\
#!{prefix}/bin/python -I
# garlicfarm, in a separate environment: -I keeps the user's PYTHONPATH and current directory out of it.
import sys

from bridge.cli.main import main

sys.exit(main())
"""
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_\w+")
_LEGACY = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a distribution: its Python, its glibc, and the suffix of the package's version."""

    name: str
    python: str
    glibc: int
    suffix: str


RELEASES = {
    each.python: each
    for each in (
        Release("Debian 12", "3.11", 36, "deb12"),
        Release("Ubuntu 24.04", "3.12", 39, "ubuntu24.04"),
        Release("Debian 13", "3.13", 41, "deb13"),
    )
}


class PackagingError(Exception):
    """The environment cannot be made; the text has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Target:
    """The release and the architecture of an environment."""

    release: Release
    architecture: str

    @property
    def machine(self) -> str:
        """The architecture's name in wheels."""
        return MACHINES[self.architecture]

    @property
    def interpreter(self) -> str:
        """The tag of its Python."""
        return "cp" + self.release.python.replace(".", "")

    @property
    def platforms(self) -> list[str]:
        """The tags of wheels that its C library can load, the newest first."""
        newer = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.release.glibc, 4, -1)]
        return [*newer, *(f"{legacy}_{self.machine}" for legacy in _LEGACY)]

    def pip_options(self) -> list[str]:
        """Return the options that restrict pip to wheels for this target."""
        tags = [f"--platform={each}" for each in self.platforms]
        abis = [f"--abi={each}" for each in (self.interpreter, "abi3", "none")]
        return [*tags, *abis, f"--python-version={self.release.python}", "--implementation=cp", "--only-binary=:all:"]


def supported_target(python: str, architecture: str) -> Target:
    """Return the target; raise PackagingError if it is not supported."""
    if architecture == "armhf":
        raise PackagingError(NO_ARMHF)
    if python not in RELEASES or architecture not in PACKAGED:
        pythons = ", ".join(f"{each.python} ({each.name})" for each in RELEASES.values())
        raise PackagingError(
            f"a package for Python {python} on {architecture} is not supported: choose a Python of {pythons} and an"
            f" architecture of {', '.join(PACKAGED)}"
        )
    return Target(RELEASES[python], architecture)


def own_wheel(dist: Path) -> Path:
    """Return the project's newest wheel; raise PackagingError without one."""
    found = sorted(dist.glob("garlicfarm-*-py3-none-any.whl"))
    if not found:
        raise PackagingError(f"{dist} does not contain a wheel of garlicfarm: run `make dist`, which makes it first")
    return found[-1]


def install(target: Target, wheel: Path, root: Path) -> Path:
    """Lay the environment out below `root`, which becomes `/`; return its site-packages. Raise PackagingError."""
    prefix = root / PREFIX.relative_to("/")
    site = prefix / "lib" / f"python{target.release.python}" / "site-packages"
    site.mkdir(parents=True)
    into = ["--target", str(site), "--no-compile", "--no-deps"]
    _pip("install", *into, *target.pip_options(), "--require-hashes", "-r", str(REQUIREMENTS))
    # Remove the manual pages of libraries, because pip does not add the own wheel's files to an existing directory.
    shutil.rmtree(site / "share", ignore_errors=True)
    # The own wheel has the platform's plain tag, `linux_x86_64`, which indexes do not accept.
    own = [f"--platform=linux_{target.machine}", *target.pip_options(), "--no-index"]
    _pip("install", *into, *own, str(wheel))
    for each in (site / "bin").glob("*"):
        each.unlink()  # Commands of libraries, with the building machine's Python in their first line.
    (site / "bin").rmdir()
    binaries = prefix / "bin"
    binaries.mkdir()
    (binaries / "python").symlink_to(f"../../../bin/python{target.release.python}")
    (binaries / "garlicfarm").write_text(LAUNCHER.format(prefix=PREFIX), encoding="utf-8")
    (binaries / "garlicfarm").chmod(0o755)
    (prefix / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {target.release.python}\n", encoding="utf-8"
    )
    return site


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise PackagingError(f"pip could not install what the environment needs:\n{done.stderr.strip()}")


def glibc_needed(site: Path, own_least: int) -> int:
    """Return the least minor version of glibc 2 for all wheels in `site`.

    `own_least` is the version of the building machine, for a wheel with the platform's plain tag without a minimum.
    """
    return max(_glibc_of(file.read_text(encoding="utf-8"), own_least) for file in site.glob("*.dist-info/WHEEL"))


def _glibc_of(wheel: str, own_least: int) -> int:
    platforms = [
        part for tag in HeaderParser().parsestr(wheel).get_all("Tag", []) for part in tag.split("-")[2].split(".")
    ]
    if any(each.startswith("linux_") for each in platforms):
        return own_least
    minors = [int(found[1]) for each in platforms if (found := _MANYLINUX.fullmatch(each))]
    minors += [minor for each in platforms for legacy, minor in _LEGACY.items() if each.startswith(f"{legacy}_")]
    return min(minors, default=0)
