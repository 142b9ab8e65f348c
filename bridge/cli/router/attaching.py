"""The attachment of a found router: its services are switched on, and the node's settings are written and checked.

    router detect ──▶ one question ──┐
    init, join ──▶ the same question ┴▶ i2pd.conf, restart of i2pd ──▶ [router], [[leaf]] ──▶ checks

If the command is killed before the restart, the question of its next run includes the restart again. A restart that
does not open the ports is undone: the former configuration is put back, and i2pd starts again with it. `init` and
`join` continue if the machine lacks a router, if the user declines, or if the attachment fails; Ctrl-C and Ctrl-D end
them.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Final

from msgspec import Struct

from bridge.api.outputs import Check
from bridge.cli.failure import reason_of
from bridge.cli.founding.starting import is_managed, systemctl_problem
from bridge.cli.printing import ask_text, ask_yes_or_no, echo, echo_whole, is_terminal
from bridge.cli.router.screen import print_actions, print_routers
from bridge.node.detecting.control_login import Login
from bridge.node.detecting.found import Detection
from bridge.node.detecting.machine import MachineFiles
from bridge.node.detecting.node_file import NodeFile, read_node_file
from bridge.node.detecting.plan import PlanError
from bridge.node.detecting.proposal import Proposal, detect_routers, propose
from bridge.node.detecting.switching import Switch, SwitchError, plan_switch
from bridge.node.doctor.router_checks import router_checks
from bridge.node.security.local_trust import ROOT
from bridge.node.settings.places import Places

ROUTER_START_S: Final = 60.0
POLL_S: Final = 0.2
LOGIN_POLL_S: Final = 1.0
LATER: Final = "An I2P router is on this machine. `garlicfarm router detect` attaches it later."
NO_CHOICE: Final = "the router has tunnels to several services: name the farm's tunnels with --tunnel: {names}"


class Agreement(Struct, frozen=True):
    """The changes for one router that the user agrees to."""

    proposal: Proposal
    file: NodeFile
    switch: Switch | None
    text: str
    """The changed configuration of the node."""
    question: str
    """The one question; empty if the user has agreed already by choosing the tunnels."""

    @property
    def is_change(self) -> bool:
        """True if a file changes."""
        return self.text != self.file.text or self.switch is not None


def choose(machine: MachineFiles, proposal: Proposal, file: NodeFile, *, yes: bool) -> Agreement:
    """Return the changes; if tunnels lead to several services, the user chooses. Raise PlanError or click.Abort."""
    unit = _restarted_unit(machine, proposal)
    switch = plan_switch(machine, proposal.router, restarts=unit is not None)
    before = _switch_text(switch, unit)
    if proposal.choices:
        proposal = proposal.choose(_chosen_names(proposal, file, before, yes=yes))
        return Agreement(proposal, file, switch, file.changed(proposal.plan), "")
    count = len(proposal.plan.leaves)
    leaves = "" if not count else f" and {count} {'leaf' if count == 1 else 'leaves'}"
    question = f"{before}rite this router{leaves} into {file.path}?"
    return Agreement(proposal, file, switch, file.changed(proposal.plan), question)


def _switch_text(switch: Switch | None, unit: str | None) -> str:
    """Return the beginning of the question: the changes of the router, if any, and the first letter of "write"."""
    if switch is None:
        return "W"
    if not switch.services:
        return f"Restart {unit}, and w"
    restart = "" if unit is None else f", restart {unit}"
    return f"Switch {' and '.join(switch.services)} on in {switch.path}{restart}, and w"


def _restarted_unit(machine: MachineFiles, proposal: Proposal) -> str | None:
    """Return the unit of systemd that this command may restart."""
    process = proposal.router.process
    return process.unit if process is not None and machine.user_id == ROOT and is_managed() else None


def attach(
    agreed: Agreement, machine: Callable[[], MachineFiles]
) -> tuple[Detection | None, Proposal, Sequence[Check]]:
    """Change the router if necessary, write the settings, and check them; raise PlanError, SwitchError or OSError.

    Return the routers if the router was changed (otherwise None), the proposal and the checks.
    """
    detection, proposal, file, text = None, agreed.proposal, agreed.file, agreed.text
    if agreed.switch is not None:
        _switch_on(agreed.switch, _restarted_unit(machine(), proposal), machine)
        detection, again = _proposed_after_start(proposal, file, machine)
        proposal = again or proposal
        text = file.changed(proposal.plan)
    # The checks of leaves need the tunnels, which the router opens some minutes after its start.
    checks_leaves = proposal.router.i2cp.is_on and agreed.switch is None
    checks = proposal.write(text, lambda now, leaves: router_checks(now, (), leaves if checks_leaves else ()))
    return detection, proposal, checks


def _switch_on(switch: Switch, unit: str | None, machine: Callable[[], MachineFiles]) -> None:
    if switch.services:
        _write(switch)
    if unit is None:
        return
    problem = systemctl_problem("restart", unit) or _port_problem(switch, machine)
    if problem:
        raise SwitchError(f"{problem}{_undone(switch, unit)}. `journalctl -u {unit}` shows its log")
    echo(f"{unit} has started again.")


def _write(switch: Switch) -> None:
    switch.write()
    echo(f"{switch.path} has new lines; {switch.copy} is the former file:")
    for line in switch.lines:
        echo_whole(f"    {line}")
    if switch.exposes_password:
        echo(
            f"Every user of this machine can read its password: let only root and the group of i2pd read {switch.path}."
        )


def _undone(switch: Switch, unit: str) -> str:
    """Restore the file if this run has changed it; return the outcome."""
    if not switch.services:
        return ""
    switch.put_back()
    return f"; {systemctl_problem('restart', unit) or f'{unit} runs with its former configuration again'}"


def _proposed_after_start(
    proposal: Proposal, file: NodeFile, machine: Callable[[], MachineFiles]
) -> tuple[Detection, Proposal | None]:
    """Return the routers and the proposal when I2PControl accepts the password, or after `ROUTER_START_S`.

    At its first start i2pd listens before it has made the certificate of I2PControl, which takes seconds.
    """
    tunnels = [each.tunnel.name for each in proposal.plan.tunnels]
    ends_s = time.monotonic() + ROUTER_START_S
    while True:
        detection, again = propose(machine(), file, proposal.router.software.value, tunnels)
        is_done = again is None or not again.router.i2pcontrol.is_on or isinstance(again.login, Login)
        if is_done or time.monotonic() > ends_s:
            return detection, again
        time.sleep(LOGIN_POLL_S)


def _port_problem(switch: Switch, machine: Callable[[], MachineFiles]) -> str:
    """Wait for the ports of the services; return the reason if one does not open in time."""
    ends_s = time.monotonic() + ROUTER_START_S
    while True:
        now = machine()
        closed = [str(each) for each in switch.links if not now.listens(each.host, each.port)]
        if not closed:
            return ""
        if time.monotonic() > ends_s:
            return f"nothing listens at {', '.join(closed)} within {ROUTER_START_S:g} s"
        time.sleep(POLL_S)


def _chosen_names(proposal: Proposal, file: NodeFile, before: str, *, yes: bool) -> list[str]:
    """Return the names of the tunnels that the user chooses by their numbers; raise PlanError."""
    names = [each.tunnel.name for each in proposal.choices]
    if yes:
        raise PlanError(NO_CHOICE.format(names=", ".join(names)))
    numbered = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
    answer = ask_text(
        f"{before}rite this router into {file.path}. Which tunnels lead to the farm's service ({numbered})?"
    )
    words = answer.replace(",", " ").split()
    wrong = [each for each in words if each not in names and not (each.isdecimal() and 0 < int(each) <= len(names))]
    if wrong:
        raise PlanError(f"{wrong[0]!r} is not one of {numbered}; nothing was done")
    return [each if each in names else names[int(each) - 1] for each in words]


def has_user() -> bool:
    """Return True if someone at a terminal can answer."""
    return sys.stdin.isatty() and is_terminal()


def offer_router(places: Places, *, yes: bool) -> bool:
    """Attach the router of this machine to the new node, after one question; return True if it is attached.

    All lines are on stderr, because stdout of `init` is the command for the other machines.
    """
    machine = MachineFiles()
    if not yes and not has_user():
        if detect_routers(machine).routers:
            echo(LATER, err=True)
        return False
    try:
        with redirect_stdout(sys.stderr):
            return _offered(machine, places, yes=yes)
    except (PlanError, SwitchError, OSError) as error:
        echo(f"The router is not attached: {reason_of(error)}", err=True)
    echo(LATER, err=True)
    return False


def _offered(machine: MachineFiles, places: Places, *, yes: bool) -> bool:
    file = read_node_file(places.configuration)
    detection, proposal = propose(machine, file, None, ())
    if proposal is None:
        return False
    print_routers(detection, proposal)
    agreed = choose(machine, proposal, file, yes=yes)
    if agreed.is_change and not yes and agreed.question and not ask_yes_or_no(agreed.question, default=True):
        echo(LATER)
        return False
    _, proposal, checks = attach(agreed, MachineFiles)
    print_actions(proposal, file, checks)
    return True
