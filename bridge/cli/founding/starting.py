"""The start of a node whose files are written: by the package's unit, or in the foreground.

the unit of the package, and systemd runs     systemctl enable --now garlicfarm.service
otherwise                                     `garlicfarm run` in this terminal
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import click

from bridge.cli.failure import fail
from bridge.cli.printing import echo
from bridge.node.settings.places import UNIT, Places

SYSTEMD_RUNS: Final = Path("/run/systemd/system")
SYSTEMCTL_S: Final = 180.0
"""Seconds; the unit waits up to 120 s until the node is ready."""


def start_node(places: Places) -> None:
    """Start the node; return when its unit runs, or when the node in the foreground has ended."""
    if not places.is_service:
        echo("The node runs in this terminal until Ctrl-C; after that, `garlicfarm run` starts it again.", err=True)
        # `keys master` needs this module, but not the whole node.
        from bridge.cli.run import run  # noqa: PLC0415 - see above

        click.get_current_context().invoke(run, config=places.configuration)
        return
    if not is_managed():
        echo(f"systemd does not run here. Start the node as its user: garlicfarm run --config {places.configuration}")
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


def give_to_node(places: Places, *paths: Path) -> None:
    """Give files in the state directory to the user of the service, which owns the directory.

    This user could replace a directory there by a link, so links are never followed.
    """
    if not places.is_service:
        return
    owner = places.state_dir.stat()
    for path in paths:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        if path.is_symlink() or not path.is_dir():
            continue
        for _, directories, files, descriptor in os.fwalk(path):
            for name in (*directories, *files):
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=descriptor, follow_symlinks=False)
