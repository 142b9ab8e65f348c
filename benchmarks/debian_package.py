"""Programs for comparison from Debian's packages: an installed one, or its package, unpacked into a directory.

An installation would start a daemon that listens on all interfaces. The package is fetched once for each directory.
"""

import shutil
import subprocess
from pathlib import Path

import trio

FETCH_TIMEOUT_S = 120.0


async def find_program(name: str, package: str, directory: Path) -> tuple[str | None, str]:
    """Return the path of a program, or None and the reason."""
    installed = shutil.which(name)
    if installed is not None:
        return installed, ""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None, f"{name} is not installed, and this is not a Debian system to fetch it from"
    target = directory / package
    program = target / "usr/bin" / name
    if program.exists():
        return str(program), ""
    target.mkdir(exist_ok=True)
    with trio.move_on_after(FETCH_TIMEOUT_S):
        fetched = await trio.run_process(
            ["apt-get", "-q", "download", package], cwd=target, check=False, capture_stdout=True, capture_stderr=True
        )
        packages = list(target.glob(f"{package}_*.deb"))
        if fetched.returncode != 0 or not packages:
            return None, f"{name} is not installed and `apt-get download {package}` failed (try `apt-get update`)"
        await trio.run_process(["dpkg", "-x", str(packages[0]), str(target)], stdout=subprocess.DEVNULL)
        return str(program), ""
    return None, f"{name} is not installed and was not fetched within {FETCH_TIMEOUT_S:g} s"
