"""`garlicfarm router detect`: the I2P routers of this machine, and a node's settings for one of them.

    processes, ports, files ─▶ routers, server tunnels ─▶ one question ─▶ [router], [[leaf]] ─▶ checks, as of `doctor`

If I2CP or I2PControl of i2pd is off, the question includes the change of `i2pd.conf` and the restart of i2pd. If the
command may not change the router's files, it prints the lines to add. It reads only the public beginning of a tunnel's
key file.
"""

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from bridge.api.outputs import CheckResult
from bridge.cli.failure import confirm, fail, failures, interruptible
from bridge.cli.options import SummaryGroup, file_path, json_option, yes_option
from bridge.cli.printing import echo, print_json
from bridge.cli.router.attaching import Agreement, attach, choose
from bridge.cli.router.screen import detect_output, print_outcome, print_routers
from bridge.node.detecting.machine import MachineFiles
from bridge.node.detecting.node_file import NodeFile, default_node_file, read_node_file
from bridge.node.detecting.plan import PlanError
from bridge.node.detecting.proposal import Proposal, detect_routers, propose
from bridge.node.detecting.switching import SwitchError
from bridge.node.doctor.leaf_checks import ROUTER
from bridge.node.router.link import I2CP_PORT, Software

NO_ROUTER = (
    "no I2P router was found on this machine: install one (`sudo apt install i2pd`, or Java I2P from geti2p.net), start"
    " it, and run the command again"
)
HIDDEN_ROUTER = (
    "a router listens at the usual I2CP port {port}, but its files and process are not visible here (in a container?):"
    " write the settings by hand, `garlicfarm help attach-a-router`"
)
NO_FILE = "name the node's configuration with --config FILE; a missing file is made"
NOT_READY = "the settings are written, but the router does not accept a node yet: follow the lines above"


def _complete_tunnel(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del context, parameter
    found = (each for router in detect_routers(MachineFiles()).routers for each in router.tunnels if each.is_usable)
    return [
        CompletionItem(each.tunnel.name, help=f"{each.tunnel.host}:{each.tunnel.port}")
        for each in found
        if each.tunnel.name.startswith(incomplete)
    ]


@click.group(cls=SummaryGroup)
def router() -> None:
    """Find the I2P router of this machine, and write a node's settings for it."""


@router.command()
@click.option("--config", "path", type=file_path, help="The node's configuration; a missing file is made.")
@click.option(
    "--software", type=click.Choice([each.value for each in Software]), help="The kind of router, if there are both."
)
@click.option(
    "--tunnel",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=_complete_tunnel,
    help="A server tunnel that becomes a leaf.",
)
@yes_option
@json_option
def detect(path: Path | None, software: str | None, names: tuple[str, ...], *, yes: bool, as_json: bool) -> None:
    """Find Java I2P and i2pd on this machine, list their server tunnels, and write [router] and [[leaf]].

    Without --config, the file is /etc/garlicfarm/node.toml, ~/.config/garlicfarm/node.toml, or node.toml in this
    directory. Use sudo if the router's files are not readable. All leaves of a farm serve the same content, so the
    command prompts if the tunnels lead to several services. With --json it writes only if --yes is given, too.
    """
    machine = MachineFiles()
    place = path or default_node_file(machine.homes)
    with failures(PlanError, OSError):
        file = None if place is None else read_node_file(place)
        detection, proposal = propose(machine, file, software, names)
    if as_json and not yes:
        print_json(detect_output(detection, proposal, file, None))
        return
    if not as_json:
        print_routers(detection, proposal)
    if proposal is None:
        if software is not None and detection.routers:
            fail(f"no router of the kind {software} was found on this machine")
        is_hidden = machine.listens("127.0.0.1", I2CP_PORT)
        fail(HIDDEN_ROUTER.format(port=I2CP_PORT) if is_hidden else NO_ROUTER)
    if file is None:
        fail(NO_FILE)
    lines = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with lines, interruptible(lambda: _state(file)), failures(PlanError, SwitchError, OSError):
        changed, proposal, checks = attach(_agreed(machine, proposal, file, yes=yes), MachineFiles)
    if as_json:
        print_json(detect_output(changed or detection, proposal, file, checks))
    else:
        print_outcome(proposal, file, checks)
    if any(each.name == ROUTER and each.result is CheckResult.PROBLEM for each in checks):
        fail(NOT_READY)


def _state(file: NodeFile) -> str:
    """Return the state of the node's configuration after Ctrl-C, and the way to continue."""
    is_written = read_node_file(file.path).text != file.text
    state = "has the settings. To check them" if is_written else "is unchanged. To continue"
    return f"{file.path} {state}, repeat the command."


def _agreed(machine: MachineFiles, proposal: Proposal, file: NodeFile, *, yes: bool) -> Agreement:
    """Return the changes after the one question; end the command without consent."""
    try:
        agreed = choose(machine, proposal, file, yes=yes)
    except click.Abort:
        fail("nothing was done, because the prompt was not answered; name the tunnels with --tunnel, and give --yes")
    if not agreed.is_change:
        echo(f"{file.path} has these settings already.", err=True)
    elif agreed.question:
        confirm(agreed.question, yes=yes, default=True)
    return agreed
