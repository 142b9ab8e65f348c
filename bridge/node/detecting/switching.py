"""The change of `i2pd.conf` that switches services on: lines at its end, or another value in a line.

    router with services that are off ─▶ trusted file ─▶ text before and after, and the copy of the file
    services that are on only in the file, for example after a kill of this command ─▶ the same, without a new text

The command changes the file in two cases only: root changes Debian's file, or a user changes the file of the user's own
i2pd. A process of another system user chooses its own command line, so the file that it names could be any file. If the
file lacks a password, the command sets a random one for I2PControl. With the published default, every user of the
machine could control the router. If i2pd runs, only the owner and a group can read a file with a new password.
"""

import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bridge.node.detecting.found import FoundRouter, ServiceState
from bridge.node.detecting.i2pd import SYSTEM_CONFIGURATION
from bridge.node.detecting.machine import MachineFiles
from bridge.node.router.link import Link, Software
from bridge.node.security.local_trust import ROOT
from bridge.wire.routers.i2pd_files import read_i2pd_conf
from bridge.wire.routers.text_file import RouterFileError
from consensus.storage import replace_file

COPY_SUFFIX: Final = ".before-garlicfarm"
PASSWORD_BYTES: Final = 18
HIDDEN: Final = "password = (random)"
_PASSWORD: Final = "i2pcontrol.password"  # noqa: S105 - the name of an option


class SwitchError(Exception):
    """The services could not be switched on; the text contains the reason and the state of the file."""


class FileAccess(Struct, frozen=True):
    """The owner and mode of the file."""

    user_id: int
    group_id: int
    mode: int

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file; a kill leaves the old one or the new one, with its owner."""
        replace_file(path, content, self.mode, (self.user_id, self.group_id))


@dataclass(frozen=True, slots=True)
class Switch:
    """The change of a router's configuration."""

    path: Path
    real: Path
    """The path of the file for this process."""
    services: tuple[str, ...]
    """The services that the file switches off; empty if only the restart is missing."""
    links: tuple[Link, ...]
    """The ports that listen after the change and a restart."""
    lines: tuple[str, ...]
    """The changed and new lines, without the password."""
    before: bytes = field(repr=False)
    after: bytes = field(repr=False)
    former: FileAccess
    access: FileAccess
    """Owner and mode of the changed file."""

    @property
    def copy(self) -> Path:
        """The copy of the file, made once and never overwritten."""
        return self.path.with_name(f"{self.path.name}{COPY_SUFFIX}")

    def write(self) -> None:
        """Copy the file, then replace it; raise SwitchError if it has changed, or OSError."""
        if self.real.read_bytes() != self.before:
            raise SwitchError(f"{self.path} has changed since this command read it, and stays as it is")
        copy = self.real.with_name(self.copy.name)
        if not copy.exists():
            self.former.write(copy, self.before)
        self.access.write(self.real, self.after)

    def put_back(self) -> None:
        """Write the text before the change; raise OSError."""
        self.former.write(self.real, self.before)

    @property
    def exposes_password(self) -> bool:
        """True if every user of the machine can read the new password."""
        return HIDDEN in self.lines and bool(self.access.mode & stat.S_IROTH)


def plan_switch(machine: MachineFiles, router: FoundRouter, *, restarts: bool = False) -> Switch | None:
    """Return the change that switches I2CP and I2PControl of an i2pd on; None if they are on, or if it is refused.

    If this command restarts i2pd, services that are on only in its file belong to the change.
    """
    services = router.i2cp, router.i2pcontrol
    off = [each for each in services if each.state is ServiceState.OFF and (each.lines or each.line)]
    waiting = [each for each in services if restarts and each.state is ServiceState.NOT_LISTENING]
    if router.software is not Software.I2PD or not (off or waiting):
        return None
    before = machine.read(router.configuration) if _is_trusted(machine, router) else None
    if before is None:
        return None
    try:
        has_password = _PASSWORD in read_i2pd_conf(before)
    except RouterFileError:
        return None
    changed, added = before.decode().split("\n"), list[str]()
    for service in off:
        if service.line:
            name, _, _ = changed[service.line - 1].partition("=")
            changed[service.line - 1] = f"{name}= true"
        added += service.lines
    shown = [*(changed[each.line - 1] for each in off if each.line), *added]
    if router.i2pcontrol in off and not has_password:
        section = [] if router.i2pcontrol.lines else ["[i2pcontrol]"]
        added += [*section, f"password = {secrets.token_urlsafe(PASSWORD_BYTES)}"]
        shown += [*section, HIDDEN]
    status = machine.real(router.configuration).stat()
    former = FileAccess(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))
    after = "\n".join(("\n".join(changed).rstrip("\n"), *(("", *added) if added else ()), ""))
    return Switch(
        path=router.configuration,
        real=machine.real(router.configuration),
        services=tuple(each.name for each in off),
        links=tuple(each.link for each in (*off, *waiting)),
        lines=tuple(shown),
        before=before,
        after=after.encode() if off else before,
        former=former,
        access=former if HIDDEN not in shown else _hidden(former, machine, router),
    )


def _hidden(former: FileAccess, machine: MachineFiles, router: FoundRouter) -> FileAccess:
    """Return access for the owner and one group, for root i2pd's group; without a running i2pd, the present access."""
    if router.process is None:
        return former
    group_id = router.process.group_id if machine.user_id == ROOT else former.group_id
    return replace(former, group_id=group_id, mode=former.mode & ~stat.S_IRWXO | stat.S_IRGRP)


def _is_trusted(machine: MachineFiles, router: FoundRouter) -> bool:
    """Return True if the file is Debian's and this is root, or if file and process belong to this user."""
    try:
        status = machine.real(router.configuration).lstat()
    except OSError:
        return False
    if not stat.S_ISREG(status.st_mode):
        return False
    if router.configuration == SYSTEM_CONFIGURATION and machine.user_id == ROOT:
        return True
    return router.process is not None and machine.user_id == router.process.user_id == status.st_uid
