"""HashiCorp's serf from Debian's package, for comparison with gossip groups of the same size and settings.

If it is not installed, its package is unpacked into the benchmark's own directory: an installation would start a daemon
that listens on all interfaces. The benchmark's agents listen only on loopback, on separate ports.
"""

import base64
import shutil
import subprocess
from pathlib import Path

import trio

from benchmarks.gossip_group import Group

FETCH_TIMEOUT_S = 60.0
KEY = base64.b64encode(b"a key that keeps nothing secret.").decode()


async def find(directory: Path) -> tuple[str | None, str]:
    """Return the path of the program, or None and the reason."""
    installed = shutil.which("serf")
    if installed is not None:
        return installed, ""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None, "serf is not installed, and this is not a Debian system to fetch it from"
    target = directory / "serf"
    program = target / "usr/bin/serf"
    if program.exists():
        return str(program), ""
    target.mkdir(exist_ok=True)
    with trio.move_on_after(FETCH_TIMEOUT_S):
        fetched = await trio.run_process(
            ["apt-get", "-q", "download", "serf"], cwd=target, check=False, capture_stdout=True, capture_stderr=True
        )
        packages = list(target.glob("serf_*.deb"))
        if fetched.returncode != 0 or not packages:
            return None, "serf is not installed and `apt-get download serf` failed (try `apt-get update`)"
        await trio.run_process(["dpkg", "-x", str(packages[0]), str(target)], stdout=subprocess.DEVNULL)
        return str(program), ""
    return None, f"serf is not installed and was not fetched within {FETCH_TIMEOUT_S:g} s"


async def start(group: Group, count: int, program: str) -> None:
    """Start `count` further agents with serf's timing for a LAN; the group's first agent is the seed of all others."""
    for _ in range(count):
        await group.start_serf(program, KEY)
