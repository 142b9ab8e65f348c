"""Queries of the node that the user chose for a command.

`--node`, or the variable GARLICFARM_NODE, names the node by a socket, a state directory or a URL. Otherwise it is the
first node that answers: in `./farm-state` (from `up`), in the default state directory of `run`, or of an installed
service. Separate options name the token and the certificate of a URL. click stores them for the running command
(`Context.meta`), so commands do not pass them on. Each node has its own token and certificate. With several URLs, such
an option is given once for all of them, or once for each in the same order.
"""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click
from msgspec import Struct

from bridge.api.control import CheckedAnswer, ClusterAnswer
from bridge.api.control_routes import Route
from bridge.api.json import RequestBody
from bridge.cli.failure import confirm, failures, interruptible
from bridge.cli.options import file_path, timeout_option
from bridge.cli.printing import echo
from bridge.node.control.client import (
    ANSWER_TIMEOUT_S,
    ORDER_TIMEOUT_S,
    ControlClient,
    ControlError,
    ask_blocking,
    call_blocking,
    send_request,
)
from bridge.node.control.connections.node_address import NodeAddress, NodeAddressError, is_remote
from bridge.node.security.control_socket import SOCKET_NAME, answers
from bridge.node.security.local_trust import SYSTEM_STATE_DIRECTORY, default_state_directory, with_home
from bridge.node.settings.places import CONFIGURATION_NAME

LOCAL_FARM_DIRECTORY = Path("farm-state")
NODE_VARIABLE = "GARLICFARM_NODE"
TOKEN_VARIABLE = "GARLICFARM_TOKEN_FILE"  # noqa: S105 - the name of a variable
CERTIFICATE_VARIABLE = "GARLICFARM_CERTIFICATE"

BESIDE_TIMEOUT_S = 3.0
"""Timeout in seconds for a node that may be the leader. It is short, because a hanging node does not lead for long."""

_TIMEOUT = f"{__name__}.timeout"

T = TypeVar("T")
A = TypeVar("A", bound=Struct)
F = TypeVar("F", bound=Callable[..., object])


def node_option(command: F) -> F:
    """Add the options for the node and for the time limit of its response; the command gets `node`."""
    return patient_node_option(_timeout_option(command))


def patient_node_option(command: F) -> F:
    """Add only the option for the node, for a command with its own --timeout for several responses."""
    named = click.option(
        "--node",
        "node",
        metavar="ADDRESS",
        help="Control socket or state directory of the node to query, or https://HOST:PORT (default: $GARLICFARM_NODE,"
        " then the first node that replies in ./farm-state, the default state directory, and the service's).",
    )
    return named(_credentials(command, several=False))


def nodes_option(command: F) -> F:
    """Add the options for several nodes; the command gets `nodes`, which is empty without the option."""
    named = click.option(
        "--node",
        "nodes",
        metavar="ADDRESS",
        multiple=True,
        help="Control socket or state directory of a node, or https://HOST:PORT; may be given several times (default:"
        " the node that other commands query, and the nodes in the same directory).",
    )
    return named(_credentials(_timeout_option(command), several=True))


def _timeout_option(command: F) -> F:
    timeout = timeout_option(
        "answer_timeout_s",
        f"Seconds to wait for a reply of the node  [default: {ANSWER_TIMEOUT_S:g}; {ORDER_TIMEOUT_S:g} for"
        " commands to the whole farm, after the first reply of the node].",
        expose_value=False,
        callback=_keep_timeout,
    )
    return timeout(command)


def _keep_timeout(context: click.Context, _option: click.Parameter, seconds: float | None) -> None:
    if seconds is not None:
        context.meta[_TIMEOUT] = seconds


def answer_timeout_s(default_s: float) -> float:
    """Return the number of seconds that --timeout gives, or else the default."""
    context = click.get_current_context(silent=True)
    return default_s if context is None else context.meta.get(_TIMEOUT, default_s)


def _credentials(command: F, *, several: bool) -> F:
    each = " Give one for all URLs, or one for each in their order." if several else ""
    token = click.option(
        "--token-file",
        type=file_path,
        envvar=TOKEN_VARIABLE,
        multiple=several,
        expose_value=False,
        callback=_keep,
        help="With https: a file of that node, control.read.token to read, control.admin.token for changes"
        f" (default: ${TOKEN_VARIABLE}).{each}",
    )
    certificate = click.option(
        "--certificate",
        type=file_path,
        envvar=CERTIFICATE_VARIABLE,
        multiple=several,
        expose_value=False,
        callback=_keep,
        help="With https: that node's control.crt, or the authority that signed its certificate"
        f" (default: ${CERTIFICATE_VARIABLE}, then the authorities of this system).{each}",
    )
    return token(certificate(command))


def _keep(context: click.Context, option: click.Parameter, given: Path | tuple[Path, ...] | None) -> None:
    files = given if isinstance(given, tuple) else () if given is None else (given,)
    context.meta[f"{__name__}.{option.name}"] = files


def _file_at(name: str, place: int, places: int) -> Path | None:
    """Return the file for the URL at this place.

    Raise `ControlError` if there is neither one file for all URLs nor one for each.
    """
    context = click.get_current_context(silent=True)
    files: tuple[Path, ...] = () if context is None else context.meta.get(f"{__name__}.{name}", ())
    if len(files) not in (0, 1, places):
        option = f"--{name.replace('_', '-')}"
        raise ControlError(
            f"{option} names {len(files)} files, and {places} nodes are given by a URL: give one file for all of them,"
            " or one for each, in their order"
        )
    return files[min(place, len(files) - 1)] if files else None


def query_node(node: str | None, question: Callable[[ControlClient], Awaitable[T]]) -> T:
    """Return the response of the chosen node, or end the command with the reason."""
    with interruptible(), failures(ControlError):
        return _query(find_node(node), question)


def call_node(node: str | None, route: Route[A], body: RequestBody | None = None) -> A:
    """Send one request to the node, and return its answer or end the command with the reason."""
    with interruptible(), failures(ControlError):
        return call_blocking(
            find_node(node), route, body, answer_timeout_s(ANSWER_TIMEOUT_S), answer_timeout_s(ORDER_TIMEOUT_S)
        )


def call_current(node: str | None, route: Route[A]) -> A:
    """Return the node's answer to one request, as `query_current` does."""
    return query_current(node, lambda client: client.call(route))


def query_current(node: str | None, question: Callable[[ControlClient], Awaitable[T]]) -> T:
    """Return the node's response after it has applied all changes that any node has acknowledged.

    A follower applies entries later than the leader. If the leader does not confirm the commit index, a line on
    standard error reports that changes may be missing.
    """

    async def caught_up(client: ControlClient) -> T:
        cluster = await client.cluster()
        if cluster.voters and cluster.leader_id != cluster.raft_id:
            try:
                await client.log(limit=0, linearizable=True)
            except ControlError as error:
                echo(f"The last changes may be missing: {error}", err=True)
        return await question(client)

    with interruptible(), failures(ControlError):
        return ask_blocking(
            find_node(node), caught_up, answer_timeout_s(ANSWER_TIMEOUT_S), answer_timeout_s(ORDER_TIMEOUT_S)
        )


def query_leader(nodes: tuple[str, ...], question: Callable[[ControlClient], Awaitable[T]]) -> T:
    """Return the response of the leader, for requests that only the leader carries out.

    The queried nodes are the named ones, and the nodes whose state directories have the same parent as a named or
    default one. Any of them reports the leader. If the leader is one of these nodes, it gets the request. Otherwise
    another node gets it, and takes over leadership before it carries out an order.
    """
    with interruptible(), failures(ControlError):
        return _query(_leaders_address(find_nodes(nodes)), question)


def confirm_checked(
    ask: Callable[[Callable[[ControlClient], Awaitable[None]]], None],
    route: Route[CheckedAnswer],
    order: RequestBody | None,
    question: str,
    *,
    yes: bool,
) -> None:
    """Prompt the user, unless the node would refuse the order: then end with the reason. `ask` queries the node.

    `route` checks the order.
    """
    if not yes:
        ask(lambda client: client.check(route, order))
    confirm(question, yes=yes)


def _query(address: NodeAddress, question: Callable[[ControlClient], Awaitable[T]]) -> T:
    return send_request(address, question, answer_timeout_s(ANSWER_TIMEOUT_S), answer_timeout_s(ORDER_TIMEOUT_S))


def _leaders_address(addresses: tuple[NodeAddress, ...]) -> NodeAddress:
    replies, errors = dict[NodeAddress, ClusterAnswer](), list[ControlError]()
    for address in addresses:
        try:
            replies[address] = send_request(
                address, ControlClient.cluster, min(BESIDE_TIMEOUT_S, answer_timeout_s(BESIDE_TIMEOUT_S))
            )
        except ControlError as error:
            errors.append(error)
    if not replies:
        raise errors[0]
    # An isolated node may still consider itself the leader of an older term.
    knowing, newest = max(replies.items(), key=lambda each: (each[1].leader_id is not None, each[1].term))
    for address, reply in replies.items():
        if reply.raft_id == newest.leader_id is not None and reply.cluster_id == newest.cluster_id:
            if address != addresses[0]:
                _report_leader(newest, "the command continues there")
            return address
    if newest.leader_id is not None:
        _report_leader(newest, "for this command, the queried node takes over leadership")
    return knowing


def _report_leader(known: ClusterAnswer, course: str) -> None:
    """Print, once, the name of the leader and the next step of the command."""
    reported = click.get_current_context().meta.setdefault(f"{__name__}.reported", set[str]())
    if course not in reported:
        reported.add(course)
        echo(f"{known.leader_name or 'Another node'} leads; {course}.", err=True)


def find_node(named: str | None, place: int = 0, places: int = 1) -> NodeAddress:
    """Return the address of the chosen node; a `ControlError` explains how to name one.

    `place` is the position of its URL among `places` URLs.
    """
    chosen = named or os.environ.get(NODE_VARIABLE)
    if chosen is None or not is_remote(chosen):
        return find_control_socket(named, os.environ)
    # Imported here: the modules for TLS take longer to load than a request to a node of this machine.
    from bridge.node.control.connections.remote_node import remote_node  # noqa: PLC0415

    try:
        return remote_node(chosen, _file_at("token_file", place, places), _file_at("certificate", place, places))
    except NodeAddressError as error:
        raise ControlError(str(error)) from error


def find_nodes(named: Sequence[str] = ()) -> tuple[NodeAddress, ...]:
    """Return the chosen nodes, and the nodes whose state directories have the same parent.

    Each of them may answer for the farm. A `ControlError` explains how to name one.
    """
    meant = find_named_nodes(named) or (find_node(None),)
    return tuple(dict.fromkeys(each for address in meant for each in _beside(address)))


def find_named_nodes(named: Sequence[str]) -> tuple[NodeAddress, ...]:
    """Return the named nodes, each URL with its token and certificate; a `ControlError` explains how to name one."""
    urls = [each for each in named if is_remote(each)]
    places = iter(range(len(urls)))
    return tuple(
        find_node(each, place=next(places), places=len(urls)) if is_remote(each) else find_node(each) for each in named
    )


def _beside(first: NodeAddress) -> tuple[NodeAddress, ...]:
    if not isinstance(first, Path):
        return (first,)
    beside = _sockets(first.absolute().parent.parent)
    return (first, *(each for each in beside if each.absolute() != first.absolute()))


def find_control_socket(
    named: str | None, environment: Mapping[str, str] = os.environ, directory: Path | None = None
) -> Path:
    """Return the control socket of the chosen node; a `ControlError` explains how to name one."""
    chosen = named or environment.get(NODE_VARIABLE)
    if chosen and "://" in chosen:
        raise ControlError(
            f"{chosen} is a network address, and this command needs a node of this machine: give --node the node's"
            " state directory or control socket"
        )
    if chosen:
        try:
            return _named_socket(with_home(chosen))
        except ValueError as error:
            raise ControlError(str(error)) from error
    # With a relative path, a removed working directory is not an error: no socket is found in it.
    here = LOCAL_FARM_DIRECTORY if directory is None else directory / LOCAL_FARM_DIRECTORY
    shown = f"./{here}" if directory is None else here
    default = default_state_directory(environment)
    for candidate in (*_sockets(here), *_sockets(default), *_sockets(SYSTEM_STATE_DIRECTORY)):
        if answers(candidate):
            return candidate
    hidden = "" if os.geteuid() == 0 else " (which only root may look into)"
    raise ControlError(
        f"no node answers in {shown}, {default} or {SYSTEM_STATE_DIRECTORY}{hidden}; start one with"
        " `garlicfarm run` or `systemctl start garlicfarm`, make one with `garlicfarm init`, `garlicfarm join TOKEN` or"
        f" `garlicfarm up` (a demonstration), or name one with --node STATE_DIR (or {NODE_VARIABLE})"
    )


def local_configuration() -> Path | None:
    """Return the configuration of the first running node in ./farm-state, or else of the first node there."""
    files = sorted(LOCAL_FARM_DIRECTORY.glob(f"*/{CONFIGURATION_NAME}"), key=_by_number)
    return next((each for each in files if answers(each.with_name(SOCKET_NAME))), files[0] if files else None)


def _by_number(path: Path) -> tuple[int, str]:
    """Return the place of a node in the order of names: node-10 comes after node-9."""
    return len(path.parent.name), path.parent.name


def _named_socket(chosen: Path) -> Path:
    try:
        if not chosen.exists() and len(chosen.parts) == 1:
            # If `up` or the service has several nodes, a node's name is the name of its state directory.
            beside = (LOCAL_FARM_DIRECTORY, default_state_directory(os.environ), SYSTEM_STATE_DIRECTORY)
            return next(
                (each for place in beside for each in _sockets(place) if each.parent.name == chosen.name), chosen
            )
        if not chosen.is_dir():
            return chosen
        (chosen / "..").stat()  # Requires the right to enter the directory.
    except PermissionError as error:
        raise ControlError(f"{chosen} may only be used by the node's user") from error
    except OSError as error:
        raise ControlError(f"no node runs at {chosen}: {error.strerror or error}") from error
    sockets = list(_sockets(chosen))
    if not sockets:
        raise ControlError(f"no node runs with the state directory {chosen}; start it, or name another with --node")
    return next((socket for socket in sockets if answers(socket)), sockets[0])


def _sockets(directory: Path) -> Iterator[Path]:
    """Yield sockets of a node's state directory, or of nodes with a state directory in it, in the order of names."""
    own = directory / SOCKET_NAME
    try:
        if own.exists():
            yield own
        found = sorted(directory.glob(f"*/{SOCKET_NAME}"), key=_by_number)
    except OSError:
        return
    yield from found
