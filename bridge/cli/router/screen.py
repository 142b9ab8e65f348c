"""The output of `router detect`: the routers with their services and tunnels, and the outcome of the written settings.

    i2pd, process 4711, /etc/i2pd/i2pd.conf
      I2CP        on             127.0.0.1:7654
      …
      web (http) -> 127.0.0.1:8080: becomes a leaf
          fazz3….b32.i2p

The names come from foreign files; `echo` makes them harmless.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from bridge.api import outputs
from bridge.api.farm_facts import listed
from bridge.cli.config import print_check
from bridge.cli.founding.starting import restart_service
from bridge.cli.printing import echo, echo_whole
from bridge.node.detecting.control_login import PASSWORD_FILE, Login
from bridge.node.detecting.found import DEFAULT_PASSWORD, Detection, FoundRouter, FoundTunnel, Service, ServiceState
from bridge.node.detecting.node_file import PACKAGE_FILE, NodeFile, read_node_file
from bridge.node.detecting.plan import NOT_NAMED
from bridge.node.detecting.proposal import Proposal
from bridge.node.doctor.leaf_checks import ROUTER
from bridge.node.doctor.router_checks import STATUS
from bridge.node.router.link import Software
from bridge.node.settings.places import node_places
from bridge.wire.routers.text_file import ServerTunnel
from gossip import Address
from gossip.node import endpoint

NAMES = {Software.JAVA: "Java I2P", Software.I2PD: "i2pd"}
AGAIN = "run `garlicfarm router detect` again"
"""The next step after an action of the operator: `init` and `join` cannot be repeated then."""
_FOR_INSTANCE = "For instance: "
_TO_COPY = ("    ", _FOR_INSTANCE)
"""The starts of lines with text to copy; a terminal may break these lines within a word."""
COLORS = {ServiceState.ON: "green", ServiceState.NOT_LISTENING: "red"}


def print_routers(detection: Detection, proposal: Proposal | None) -> None:
    """Print each router with its services and tunnels, then the unreadable files."""
    for each in detection.routers:
        running = "not running" if each.process is None else f"process {each.process.pid}"
        echo(f"{NAMES[each.software]}, {running}, {each.configuration}", bold=True)
        for service in each.services:
            color = COLORS.get(service.state, "yellow")
            echo(f"  {service.link}", mark=f"  {service.name:<10}  {service.state.value:<13}", color=color)
        for tunnel in each.tunnels:
            _print_tunnel(tunnel, proposal)
        if not each.tunnels:
            echo("  no server tunnel")
        echo()
    for unread in detection.unread:
        echo(f"{unread.path}: {unread.reason}", mark="not read  ", color="yellow")
    for action in dict.fromkeys(each.action for each in detection.unread if each.action):
        echo(f"          -> {action}")


def _print_tunnel(tunnel: FoundTunnel, proposal: Proposal | None) -> None:
    known = tunnel.tunnel
    echo(f"  {known.name} ({known.kind}) -> {_target(known)}{_use(tunnel, proposal)}")
    if tunnel.destination is not None:
        echo(f"      {tunnel.destination.address}")


def _target(tunnel: ServerTunnel) -> str:
    return endpoint(Address(tunnel.host, tunnel.port))


def _use(tunnel: FoundTunnel, proposal: Proposal | None) -> str:
    if proposal is None:
        return ""
    if tunnel in proposal.plan.tunnels:
        return ": becomes a leaf"
    if tunnel in proposal.choices:
        return ": can become a leaf"
    return f": not chosen: {proposal.reason(tunnel) or NOT_NAMED}"


def print_outcome(proposal: Proposal, file: NodeFile, checks: Sequence[outputs.Check]) -> None:
    """Print the checks of the written settings, the next actions, and the way to use the settings."""
    print_actions(proposal, file, checks)
    if not proposal.router.i2cp.is_on:
        return
    if file.path == PACKAGE_FILE and restart_service(node_places()):
        echo("The service has started again with the settings.")
        return
    start = (
        "sudo systemctl restart garlicfarm"
        if file.path == PACKAGE_FILE
        else f"garlicfarm run --config {shlex.quote(str(file.path))}"
    )
    is_new = read_node_file(file.path).text != file.text
    advice = (
        "To use the settings, start the node" if is_new else "If the node does not use these settings yet, start it"
    )
    echo(f"{advice} again: {start}")


def print_actions(proposal: Proposal, file: NodeFile, checks: Sequence[outputs.Check]) -> None:
    """Print the checks of the written settings, and the next actions."""
    router = proposal.router
    # The actions below open these ports; the check of a closed port would name other causes.
    closed = {name for name, service in ((ROUTER, router.i2cp), (STATUS, router.i2pcontrol)) if service.action}
    for check in checks:
        if check.result is outputs.CheckResult.OK or closed.isdisjoint({check.name, check.cause}):
            print_check(check)
    for line in _actions(proposal, file):
        if line.startswith(_TO_COPY):
            echo_whole(line)
        else:
            echo(line)


def _actions(proposal: Proposal, file: NodeFile) -> Iterator[str]:
    router, login = proposal.router, proposal.login
    off: dict[str, list[Service]] = {}
    for service in router.services:
        if service.action:
            off.setdefault(service.action, []).append(service)
    for action, services in off.items():
        yield f"To switch {listed([each.name for each in services])} on, {action}"
        lines = [line for each in services for line in each.lines]
        if lines:
            yield from (f"    {line}" for line in lines)
            yield f"{_FOR_INSTANCE}{append_command(lines, router.configuration)}"
    if off:
        # The router must start again after a change of its files.
        start = "" if router.restart in off else f"{router.restart}, and "
        connects = "i2pcontrol" in proposal.plan.router
        yield f"Then {start}{'the node connects' if connects else AGAIN}."
    if router.i2pcontrol.is_on and not isinstance(login, Login):
        yield f"I2PControl is left out: {login}."
        yield f"Write its password into {file.directory / PASSWORD_FILE}, mode 0600, and {AGAIN}."
    if isinstance(login, Login) and login.password == DEFAULT_PASSWORD:
        yield "I2PControl has its published password, so every user of this machine controls the router: set your own."
    if router.requires_login:
        yield "Its I2CP requires a user: set router.i2cp_username and router.i2cp_password_file."
    if not proposal.plan.leaves and not file.leaves and all(each.destination for each in router.tunnels):
        yield f"No server tunnel of the router can be a leaf: make one for your service, and {AGAIN}."


def append_command(lines: Sequence[str], file: Path) -> str:
    """Return a shell command that adds lines to a file of the router."""
    words = " ".join(shlex.quote(line) for line in ("", *lines))
    return f"printf '%s\\n' {words} | sudo tee -a {shlex.quote(str(file))}"


def detect_output(
    detection: Detection, proposal: Proposal | None, file: NodeFile | None, checks: Sequence[outputs.Check] | None
) -> outputs.RouterDetectOutput:
    """Return the JSON document; only a written file has `checks`."""
    settings = {}
    if proposal is not None:
        plan = proposal.plan
        settings = {"router": dict(plan.router), "leaf": [dict(each) for each in plan.leaves]}
    return outputs.RouterDetectOutput(
        routers=tuple(_router_view(each, proposal) for each in detection.routers),
        unread=tuple(outputs.UnreadFileView(str(each.path), each.reason, each.action) for each in detection.unread),
        file=None if file is None else str(file.path),
        written=checks is not None,
        settings=settings,
        checks=tuple(checks or ()),
    )


def _router_view(router: FoundRouter, proposal: Proposal | None) -> outputs.FoundRouterView:
    return outputs.FoundRouterView(
        software=router.software.value,
        configuration=str(router.configuration),
        pid=None if router.process is None else router.process.pid,
        i2cp=_service_view(router.i2cp),
        i2pcontrol=_service_view(router.i2pcontrol),
        sam=_service_view(router.sam),
        tunnels=tuple(_tunnel_view(each, proposal) for each in router.tunnels),
        chosen=proposal is not None and router is proposal.router,
    )


def _service_view(service: Service) -> outputs.FoundServiceView:
    return outputs.FoundServiceView(service.state.value, str(service.link), service.action, service.lines)


def _tunnel_view(tunnel: FoundTunnel, proposal: Proposal | None) -> outputs.FoundTunnelView:
    known, destination = tunnel.tunnel, tunnel.destination
    return outputs.FoundTunnelView(
        name=known.name,
        kind=known.kind,
        address=None if destination is None else destination.address,
        destination=None if destination is None else destination.base64,
        target=_target(known),
        chosen=proposal is not None and tunnel in proposal.plan.tunnels,
        reason=tunnel.problem if proposal is None else proposal.reason(tunnel),
    )
