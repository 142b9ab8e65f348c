"""The Debian package for arm64, started by an emulator of that processor on Debian bookworm.

The commands run, the libraries load, and a node creates a farm alone and answers. The emulator is slow, so each command
takes seconds. qemu does not emulate the request for the state of a network card (`SIOCETHTOOL`), or the choice of an
interface for multicast (`IP_MULTICAST_IF`). Without them a node treats all interfaces as up, and the routes choose.
"""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from bridge import VERSION
from deploy.deb import package_name
from deploy.environment import supported_target
from tests.packages.machine import DIST, reason_to_skip

pytestmark = pytest.mark.packages

EMULATOR = "qemu-aarch64-static"
PYTHON = "python3.11"
PREFIX = "/usr/lib/garlicfarm/bin"
BOUND_S = 300


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a system for arm64 with the files of the package."""
    reason = reason_to_skip()
    missing = [each for each in ("mmdebstrap", EMULATOR) if shutil.which(each) is None]
    if reason or missing:
        pytest.skip(reason or f"needs {', '.join(missing)} (Debian: apt-get install mmdebstrap qemu-user-static)")
    package = DIST / package_name(supported_target("3.11", "arm64"))
    if not package.exists():
        pytest.skip(f"{package.name} does not exist: `make dist DEB_ARCH=arm64` builds it")
    root = tmp_path_factory.mktemp("arm64") / "root"
    make = ["mmdebstrap", "--quiet", "--mode=root", "--arch=arm64", "--variant=extract", f"--include={PYTHON}"]
    subprocess.run([*make, "bookworm", root], check=True, timeout=BOUND_S)
    subprocess.run(["dpkg", "-x", package, root], check=True, timeout=BOUND_S)  # noqa: S607
    shutil.copy2(shutil.which(EMULATOR) or "", root / EMULATOR)
    for each in ("dev", "proc", "srv", "tmp"):
        (root / each).mkdir(exist_ok=True)
    return root


INSIDE = 'mount --bind /proc "$0/proc" && mount --rbind /dev "$0/dev" && ip link set lo up && exec chroot "$0" "$@"'
"""The shell's command in namespaces for mounts and the network; `$0` is the root of the system."""


def command_in(system: Path, *arguments: str) -> list[str | Path]:
    """Return the command that runs the package's Python for arm64."""
    python = (f"/{EMULATOR}", "-0", f"{PREFIX}/python", f"/usr/bin/{PYTHON}", "-I")
    return ["unshare", "--mount", "--net", "sh", "-c", INSIDE, system, *python, *arguments]


def emulated(system: Path, *arguments: str) -> str:
    """Run the package's Python for arm64, and return its output."""
    command = command_in(system, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_arm64_package_starts_on_its_processor(system: Path) -> None:
    machine = "import platform, sys; print(platform.machine(), sys.prefix)"
    assert emulated(system, "-c", machine) == "aarch64 /usr/lib/garlicfarm\n"
    assert emulated(system, f"{PREFIX}/garlicfarm", "--version") == f"garlicfarm, version {VERSION}\n"


def test_arm64_libraries_sign_and_load(system: Path) -> None:
    """The binaries of `cryptography`, `msgspec`, `psutil` and the others load, and keys are made with them."""
    made = emulated(
        system, f"{PREFIX}/garlicfarm", "keys", "new-farm", "--expect", "1", "--output", "/srv/farm.key", "--json"
    )
    assert '"expect": 1' in made
    emulated(system, f"{PREFIX}/garlicfarm", "keys", "new-destination", "/srv/master.key")
    emulated(system, "-c", "import bridge.node.app, psutil, msgspec, cryptography.x509, consensus")


def test_arm64_node_creates_farm_and_answers(system: Path) -> None:
    garlicfarm = f"{PREFIX}/garlicfarm"
    given = ("--expect", "1", "--name", "arm", "--bind", "127.0.0.1:7668", "--no-start", "--json")
    made = json.loads(emulated(system, garlicfarm, "init", *given))
    log = (system / "srv/node.log").open("w+")
    node = subprocess.Popen(command_in(system, garlicfarm, "run", "--config", made["file"]), stdout=log, stderr=log)
    try:
        until_s, found = time.monotonic() + BOUND_S, ""
        while '"leaderName": "arm"' not in found:
            assert node.poll() is None, Path(log.name).read_text()
            assert time.monotonic() < until_s, found
            status = command_in(system, garlicfarm, "status", "--json", "--timeout", "60")
            found = subprocess.run(status, capture_output=True, text=True, check=False, timeout=BOUND_S).stdout
    finally:
        node.terminate()
        node.wait(BOUND_S)
        log.close()
