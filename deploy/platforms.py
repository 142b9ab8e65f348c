"""docs/reference/platforms.md: the machines with wheels of the base in the index, from pip.

`python -m deploy.platforms` (part of `make requirements`) queries pip's index, one package at a time, and writes the
page. A package without a wheel must be built on the machine itself, or elsewhere for it. The project does not build
packages for such a machine, since an environment is unpacked and never built (`deploy.environment`).
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

from deploy.environment import MACHINES, NO_ARMHF, RELEASES, REQUIREMENTS, ROOT, Target

PAGE = ROOT / "docs" / "reference" / "platforms.md"
PINNED = re.compile(r"^([a-z0-9.-]+)==(\S+)", re.MULTILINE)
HEAD = """\
# Platforms

This page lists the packages that a node needs in addition to Python, and the machines with a wheel in the index. pip
unpacks a wheel without a compiler. `make requirements` queries the index and writes this page. *Any* is a wheel
without compiled code. A number is a version of Python. A dash: pip builds the package from its sources.

"""
NO_WHEELS = """
**arm64** has all wheels: a Raspberry Pi 3 or newer with a 64-bit system installs the wheel and the package unchanged.
Its package is tested under the emulator qemu only: a node creates a farm alone and answers, but no test runs a node on
an arm64 processor.

**armhf** (32-bit ARM) lacks wheels of {missing}.
There pip builds them from their sources, with a C compiler, the headers of Python and of libffi, and for `cbor2` a
Rust compiler. {no_package}
"""
ALL_WHEELS = """
Every machine of this table has all wheels.
"""


def page() -> str:
    """Return the document, by the index's present replies."""
    packages = pinned()
    rows, missing = [], []
    for name, version in packages:
        found = {machine: _pythons(name, version, machine) for machine in MACHINES}
        rows.append(f"| {name} | {version} | " + " | ".join(found.values()) + " |\n")
        missing += [f"`{name}`"] * (found["armhf"] == "—")
    head = f"| package | version | {' | '.join(MACHINES)} |\n|---|---|{'---|' * len(MACHINES)}\n"
    end = NO_WHEELS.format(missing=", ".join(missing), no_package=NO_ARMHF) if missing else ALL_WHEELS
    releases = ", ".join(f"{each.name} (Python {each.python})" for each in RELEASES.values())
    packaged = (
        f"\nDebian packages can be built for {releases},\non amd64 or arm64, for both architectures: `make dist"
        " DEB_PYTHON=3.13 DEB_ARCH=arm64`. Without these parameters\nthe package is for Debian 12 and the building"
        " machine.\n"
    )
    return HEAD + head + "".join(rows) + end + packaged


def pinned() -> list[tuple[str, str]]:
    """Return each package of the base with its version."""
    return PINNED.findall(REQUIREMENTS.read_text(encoding="utf-8"))


def _pythons(name: str, version: str, machine: str) -> str:
    """Return the Python versions with a wheel, as text."""
    found = []
    for release in RELEASES.values():
        wheel = _wheel(name, version, Target(release, machine))
        if wheel.endswith("-none-any.whl"):
            return "any"
        if wheel:
            found.append(release.python)
    return ", ".join(found) or "—"


def _wheel(name: str, version: str, target: Target) -> str:
    """Return the file that pip would choose, or an empty text."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--dry-run", "--no-deps"]
    command += ["--target", "unused", *target.pip_options(), "--report", "-", f"{name}=={version}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        if "No matching distribution found" not in done.stderr:
            raise SystemExit(f"pip could not query {name} {version}: {done.stderr.strip()}")
        return ""
    (install,) = json.loads(done.stdout)["install"]
    return Path(unquote(install["download_info"]["url"])).name


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
