"""The start of a node whose files are written: by the package's unit, or in the foreground.

the unit of the package, and systemd runs     systemctl enable --now garlicfarm.service
the unit of the package, without systemd      a line with the command for the node's user
otherwise                                     `garlicfarm run` in this terminal
"""

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

import click

from bridge.cli.failure import fail
from bridge.cli.printing import echo
from bridge.node.security.key_files import load_farm_key
from bridge.node.security.local_trust import acting_as_owner
from bridge.node.settings.places import UNIT, Places
from bridge.wire.keys.farm_key import FarmKey

SYSTEMD_RUNS: Final = Path("/run/systemd/system")
SYSTEMCTL_S: Final = 180.0
"""Time limit of systemctl in seconds; the unit waits up to 120 s until the node is ready."""


def start_node(places: Places) -> None:
    """Start the node; return when its unit runs, or when the node in the foreground has ended."""
    if not places.is_service:
        echo("The node runs in this terminal until Ctrl-C; after that, `garlicfarm run` starts it again.", err=True)
        # `keys master` needs this module, but not the whole node.
        from bridge.cli.run import run  # noqa: PLC0415 - see above

        click.get_current_context().invoke(run, config=places.configuration)
        return
    if not is_managed():
        file = shlex.quote(str(places.configuration))
        echo(f"systemd does not run here. Start the node as its user: garlicfarm run --config {file}")
        return
    _systemctl("enable", "--now", UNIT)
    echo("The node runs, and starts with this machine. `garlicfarm status` shows the farm.")


def restart_service(places: Places) -> bool:
    """Start the node again if systemd runs it; return False if the operator must do so."""
    if not places.is_service or not is_managed():
        return False
    _systemctl("restart", UNIT)
    return True


def is_managed() -> bool:
    """Return True if systemd runs the services of this machine."""
    return SYSTEMD_RUNS.exists() and shutil.which("systemctl") is not None


def _systemctl(*arguments: str) -> None:
    problem = systemctl_problem(*arguments)
    if problem:
        fail(f"{problem}\n`journalctl -u {UNIT}` shows the log of the node")


def systemctl_problem(*arguments: str) -> str:
    """Run systemctl, and return the reason of a failure; empty without one."""
    command = ["systemctl", *arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SYSTEMCTL_S)  # noqa: S603 - fixed words, or a unit that systemd started
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)}` did not end in time"
    return f"`{' '.join(command)}` failed: {done.stderr.strip()}" if done.returncode != 0 else ""


@contextmanager
def as_node_user(places: Places) -> Iterator[None]:
    """Act as the owner of the state directory if the package's unit runs the node, and as root again afterwards.

    So new files there belong to this user, and root does not follow links that this user makes. Read this user's
    secrets in the same way: readers refuse files of other users, even for root.
    """
    with acting_as_owner(places.state_dir) if places.is_service else nullcontext():
        yield


def node_farm_key(places: Places, path: Path) -> FarmKey:
    """Read the farm key of this node, which root has written and the unit gives to its user. Raise KeyFileError."""
    with as_reader(places, path):
        return load_farm_key(path)


def as_reader(places: Places, path: Path) -> AbstractContextManager[None]:
    """Act as the node's user if the path belongs to it, or else as this user. Reading refuses files of other users."""
    exist = places.is_service and path.exists() and places.state_dir.exists()
    is_of_node = exist and path.stat().st_uid == places.state_dir.stat().st_uid
    return as_node_user(places) if is_of_node else nullcontext()
