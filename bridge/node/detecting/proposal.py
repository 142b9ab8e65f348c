"""The proposal of `router detect`: one router of this machine, and the changes of a node's file for it.

    detection ─▶ the wanted kind, or the most useful router ─▶ login to its I2PControl ─▶ Plan ─▶ text of the file

The password file and the certificate are written before the configuration that names them. They belong to the owner of
the configuration, because the node must read them.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bridge.node.detecting.control_login import PASSWORD_FILE, Login, find_login
from bridge.node.detecting.found import DEFAULT_PASSWORD, Detection, FoundRouter, FoundTunnel, ServiceState
from bridge.node.detecting.i2pd import find_i2pd
from bridge.node.detecting.java import find_java
from bridge.node.detecting.machine import MachineFiles
from bridge.node.detecting.node_file import NodeFile, read_node_file
from bridge.node.detecting.plan import (
    CERTIFICATE_FILE,
    Plan,
    choices,
    is_one_service,
    make_plan,
    named_tunnels,
    reason_against,
    settings_of,
)
from bridge.node.security.local_trust import ROOT, acting_as_owner
from bridge.node.settings.masters import LeafSettings
from bridge.node.settings.router import RouterSettings
from consensus.storage import replace_file

Checked = TypeVar("Checked")
_PUBLIC: Final = 0o644


class Proposal(Struct, frozen=True):
    """The settings for one router."""

    router: FoundRouter
    file: NodeFile | None
    """The node's configuration; None if none is named."""
    login: Login | str
    """The login to its I2PControl, or the reason of a failure."""
    plan: Plan
    choices: tuple[FoundTunnel, ...] = ()
    """Tunnels to several services; the operator chooses the leaves. Empty if no choice is needed."""

    def choose(self, names: Sequence[str]) -> "Proposal":
        """Return the proposal with the tunnels of these names as leaves; raise PlanError."""
        tunnels = named_tunnels(self.router, names, *_addresses(self.file))
        return replace(self, plan=make_plan(self.router, tunnels, _password_file(self.login)), choices=())

    def reason(self, tunnel: FoundTunnel) -> str:
        """Return the reason why a tunnel does not become a leaf; empty if it does, or could."""
        return "" if tunnel in self.plan.tunnels else reason_against(tunnel, *_addresses(self.file))

    def write(self, text: str, check: Callable[[RouterSettings, Sequence[LeafSettings]], Checked]) -> Checked:
        """Write all files, and return the check of the written settings; raise PlanError or OSError."""
        file = self.file
        assert file is not None  # noqa: S101 - its text is written
        password = None
        if self.router.i2cp.certificate is not None:
            certificate = file.directory / CERTIFICATE_FILE
            replace_file(certificate, self.router.i2cp.certificate, _PUBLIC, file.owner)
        if isinstance(self.login, Login):
            password = file.directory / self.login.file
            if self.login.is_new:
                replace_file(password, f"{self.login.password}\n".encode(), owner=file.owner)
        if text != file.text:
            file.replace(text)
        settings, leaves, _ = settings_of(read_node_file(file.path).table, file.directory)
        # A node, and therefore the check, refuses the password file of another user.
        with nullcontext() if password is None or os.geteuid() != ROOT else acting_as_owner(password):
            return check(settings, leaves)


def detect_routers(machine: MachineFiles) -> Detection:
    """Return the routers of this machine: running ones first, then by open I2CP, then by usable tunnels."""
    routers = sorted([*find_i2pd(machine), *find_java(machine)], key=_rank)
    return Detection(tuple(routers), tuple(machine.unread.values()))


def _rank(router: FoundRouter) -> tuple[bool, bool, int]:
    return router.process is None, not router.i2cp.is_on, -sum(each.is_usable for each in router.tunnels)


def propose(
    machine: MachineFiles, file: NodeFile | None, software: str | None, names: Sequence[str]
) -> tuple[Detection, Proposal | None]:
    """Return the routers, and the proposal for one of them; raise PlanError."""
    detection = detect_routers(machine)
    router = next((each for each in detection.routers if software in {None, each.software.value}), None)
    if router is None:
        return detection, None
    login: Login | str = f"it is {router.i2pcontrol.state.value}"
    if router.i2pcontrol.is_on:
        table, directory = ({}, Path.cwd()) if file is None else (file.table, file.directory)
        login = find_login(router, table, directory)
    elif router.i2pcontrol.state is ServiceState.NOT_LISTENING and router.password not in {None, DEFAULT_PASSWORD}:
        # The router accepts its configured password after its next start.
        login = Login(str(router.password), PASSWORD_FILE, is_new=True)
    usable = choices(router, *_addresses(file))
    is_clear = is_one_service(usable)
    plan = make_plan(router, usable if is_clear else (), _password_file(login))
    proposal = Proposal(router, file, login, plan, () if is_clear else usable)
    detection = Detection(detection.routers, tuple(machine.unread.values()))
    return detection, proposal.choose(names) if names else proposal


def _password_file(login: Login | str) -> str | None:
    return login.file if isinstance(login, Login) else None


def _addresses(file: NodeFile | None) -> tuple[frozenset[str], frozenset[str]]:
    """Return the destinations of the masters and of the leaves in a file."""
    return (frozenset(), frozenset()) if file is None else (file.masters, file.leaves)
