"""`garlicfarm connect`: the client of one or more farms.

    --listen   a TCP port that leads to the farm          --http    an HTTP proxy for the farms of the links
    --stdio    standard input and output, for ssh         --status  the state of the running client

A client with a port, a proxy or `--socket` runs until a signal stops it. It connects only to the router's SAM bridge,
and listens only at the given addresses and at its socket. `--status` connects only to the socket of a running client.
`--stdio` tries this socket first. It ends with its connection, and does not listen. No mode looks up names.
"""

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import click
import trio
from msgspec import Struct

from bridge.api.json import DocumentError, decode
from bridge.cli.connect.client_socket import ClientSocketError, default_socket_path, get, serve_socket, tunnel
from bridge.cli.connect.links import LinkLine, LinksError, checked_links, read_links
from bridge.cli.connect.screen import link_label, print_client_status
from bridge.cli.failure import fail, failures, interruptible
from bridge.cli.options import IntegerRange, NumberRange, directory_path, file_path, json_option
from bridge.cli.printing import echo, end_with_json
from bridge.cli.serving.server_command import on_signals, run_server
from bridge.cli.serving.stop_deadline import StopDeadline
from bridge.connect import DEFAULT_PATIENCE_S, HOPS_MAX, ConnectError, FarmClient
from bridge.connect import connect as open_farm
from bridge.connect.client_status import STATUS_PATH, ClientPages, ClientStatus, ServedLink
from bridge.connect.forwarding import Listeners, failure_text, forward
from bridge.connect.http_proxy import Farms, HttpProxy
from bridge.connect.tcp_listener import ListenError, TcpForwarder, serve_port
from bridge.node.events.service_manager import ServiceManager
from bridge.sam.connection import DEFAULT_BRIDGE, SamBridge
from bridge.wire.i2p.farm_link import LinkError, parse_link
from consensus import counted
from gossip import Address
from gossip.node import endpoint, numeric_address

PATIENCE_LEAST_S: Final = 0.1
_ADDRESS: Final = "HOST:PORT"
LOOK_S: Final = 1.0
"""Interval between two checks of the farms; a changed state prints a line."""
_STDIN, _STDOUT = 0, 1


class ClientOptions(Struct, frozen=True):
    """The checked options of a client."""

    links: tuple[LinkLine, ...]
    bridge: SamBridge
    http: Address | None
    patience_s: float
    hops: int | None
    cache: Path | None
    socket: Path


def _address(_context: click.Context, _option: click.Parameter, text: str | None) -> Address | None:
    """Return the numeric address in an option. A name is refused, because its look-up would bypass I2P."""
    try:
        return None if text is None else numeric_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("links", nargs=-1, metavar="[LINK]...")
@click.option(
    "--links",
    "links_file",
    type=file_path,
    help="A file with a link on each line, and optionally name=NAME and listen=HOST:PORT.",
)
@click.option(
    "--sam",
    metavar=_ADDRESS,
    callback=_address,
    default=str(DEFAULT_BRIDGE),
    show_default=True,
    help="The SAM bridge of the router.",
)
@click.option(
    "--listen", metavar=_ADDRESS, callback=_address, help="A TCP port that leads to the farm; for a single LINK."
)
@click.option(
    "--stdio",
    is_flag=True,
    help="Connect standard input and output to the farm of a single LINK, for ssh.",
)
@click.option(
    "--http",
    metavar=_ADDRESS,
    callback=_address,
    help="An HTTP proxy for the addresses and names of the links. It refuses all other hosts.",
)
@click.option(
    "--patience",
    "patience_s",
    type=NumberRange(PATIENCE_LEAST_S),
    metavar="SECONDS",
    default=DEFAULT_PATIENCE_S,
    show_default=True,
    help="The time for the first byte of a reply, before a leaf counts as failed. It is longer for leaves with slow"
    " replies. For GET, HEAD and OPTIONS through the proxy it may fall to a fifth if replies are quick. With inf, a"
    " leaf never fails because of a missing reply: use inf for services that do not reply.",
)
@click.option(
    "--hops",
    type=IntegerRange(0, HOPS_MAX),
    metavar="NUMBER",
    help="Routers in each tunnel of the client; fewer are faster and hide less (default: the router's own, 3).",
)
@click.option(
    "--cache",
    type=directory_path,
    help="Directory for the last Meta LeaseSet2 of each farm (default: garlicfarm in the user's cache directory).",
)
@click.option(
    "--socket",
    type=file_path,
    help="The socket of the client (default: $XDG_RUNTIME_DIR/garlicfarm/connect.sock).",
)
@click.option("--status", is_flag=True, help="Show the state of the running client.")
@json_option
def connect(
    *,
    links: tuple[str, ...],
    links_file: Path | None,
    sam: Address,
    listen: Address | None,
    stdio: bool,
    http: Address | None,
    patience_s: float,
    hops: int | None,
    cache: Path | None,
    socket: Path | None,
    status: bool,
    as_json: bool,
) -> None:
    """Reach farms through I2P, by their links.

    An operator prints a LINK with `garlicfarm link`. The client needs a router with a SAM bridge (i2pd or Java I2P). It
    chooses a leaf of the farm for each connection; with --http, for each request. If this leaf fails before the first
    byte, the client tries the next leaf. Then the connection stays with its leaf, so nothing is sent twice.

    \b
    garlicfarm connect 'LINK' --http 127.0.0.1:8118      browsers and curl
    garlicfarm connect 'LINK' --listen 127.0.0.1:8080    any program with TCP
    ssh -o ProxyCommand="garlicfarm connect --stdio 'LINK'" user@farm
    garlicfarm connect --links FILE --http 127.0.0.1:8118
    garlicfarm connect --status
    """  # noqa: D301 - the backspace is click's mark of lines that stay as they are
    own_socket = socket or default_socket_path()
    if as_json and not status:
        raise click.UsageError("--json goes with --status")
    if status:
        if links or links_file or listen or http or stdio:
            raise click.UsageError("--status takes only --json and --socket")
        _show_status(own_socket, as_json=as_json)
        return
    with failures(LinksError, LinkError, OSError):
        found = _links(links, links_file, listen)
    options = ClientOptions(found, SamBridge(sam.host, sam.port), http, patience_s, hops, cache, own_socket)
    if stdio:
        if len(found) != 1 or listen or http:
            raise click.UsageError("--stdio goes with a single LINK, without --listen and --http")
        with failures(ConnectError, ClientSocketError), interruptible():
            trio.run(_forward_stdio, options)
        return
    if not (http or socket or any(each.listen for each in found)):
        raise click.UsageError("add --listen, --http, --stdio or --socket, or listen=HOST:PORT in the links file")
    run_server(partial(_serve, options), ConnectError, ClientSocketError, ListenError)


def _links(links: tuple[str, ...], links_file: Path | None, listen: Address | None) -> tuple[LinkLine, ...]:
    lines = tuple(LinkLine(parse_link(each)) for each in links)
    if listen is not None:
        if len(lines) != 1:
            raise click.UsageError("--listen goes with a single LINK; a links file has listen=HOST:PORT for each link")
        lines = (LinkLine(lines[0].link, listen=listen),)
    if links_file is not None:
        lines += read_links(links_file)
    if not lines:
        raise click.UsageError("name a LINK, which the operator of the farm gives to users, or --links FILE")
    return checked_links(lines)


def _show_status(path: Path, *, as_json: bool) -> None:
    with failures(ClientSocketError), interruptible():
        page = trio.run(get, path, STATUS_PATH)
    try:
        found = decode(page, ClientStatus)
    except DocumentError as error:
        fail(f"the client at {path} runs another version: {error}")
    end_with_json(found, as_json=as_json)
    print_client_status(found)


async def _forward_stdio(options: ClientOptions) -> None:
    """Connect stdin and stdout through the running client if it has the link, otherwise through a new session."""
    (line,) = options.links
    async with AsyncExitStack() as stack:
        leaf = await stack.enter_async_context(tunnel(options.socket, line.link.address))
        if leaf is None:
            farm = await stack.enter_async_context(_open_farm(line, options))
            leaf = await farm.open_stream()
        await stack.enter_async_context(leaf)
        program = trio.StapledStream(trio.lowlevel.FdStream(_STDOUT), trio.lowlevel.FdStream(_STDIN))
        async with program:
            try:
                await forward(program, leaf, until_leaf_ends=True)
            except trio.BrokenResourceError as error:
                raise ConnectError(failure_text(error)) from error


def _open_farm(line: LinkLine, options: ClientOptions) -> AbstractAsyncContextManager[FarmClient]:
    return open_farm(
        line.link,
        bridge=options.bridge,
        cache_dir=options.cache,
        patience_s=options.patience_s,
        hops=options.hops,
    )


async def _serve(options: ClientOptions, deadline: StopDeadline) -> None:
    listeners, manager = Listeners(), ServiceManager()
    async with AsyncExitStack() as stack:
        opened = [(line, await stack.enter_async_context(_open_farm(line, options))) for line in options.links]
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(deadline.within_when_canceled)
        await nursery.start(on_signals, nursery.cancel_scope.cancel)
        for line, farm in opened:
            if line.listen is not None:
                await nursery.start(serve_port, line.listen, TcpForwarder(farm, listeners).serve)
        served = [
            ServedLink(farm, line.name, None if line.listen is None else endpoint(line.listen)) for line, farm in opened
        ]
        names = {each.name: each.farm for each in served if each.name is not None}
        farms = Farms([each.farm for each in served], names)
        if options.http is not None:
            await nursery.start(serve_port, options.http, HttpProxy(farms, listeners).serve)
        pages = ClientPages(served, listeners, None if options.http is None else endpoint(options.http))
        await nursery.start(serve_socket, options.socket, HttpProxy(farms, listeners, pages.pages()).serve)
        _print_addresses(options)
        manager.ready()
        nursery.start_soon(manager.run, tuple, lambda: _summary(pages.status()))
        await _print_changes(pages)


def _print_addresses(options: ClientOptions) -> None:
    for line in options.links:
        if line.listen is not None:
            echo(f"{endpoint(line.listen)} leads to {line.name or line.link.address}")
    if options.http is not None:
        hosts = ", ".join(line.name or line.link.address for line in options.links)
        echo(f"{endpoint(options.http)} is an HTTP proxy for {hosts}")
    for address in (options.http, *(line.listen for line in options.links)):
        if address is not None and not ip_address(address.host).is_loopback:
            text = f"any program that reaches {endpoint(address)} reaches the farm through this machine"
            echo(f"Warning: {text}. Use an address of loopback, or a firewall", err=True)


async def _print_changes(pages: ClientPages) -> None:
    """Print a line when a farm becomes ready, and when the reason why it is not ready changes."""
    shown: dict[str, str | None] = {}
    while True:
        for number, link in enumerate(pages.status().links, start=1):
            label, problem = link_label(link, number), link.farm.problem
            if shown.get(label, "") != problem:
                shown[label] = problem
                echo(f"{label}: {problem or 'ready, with ' + counted(len(link.farm.leaves), 'leaf', 'leaves')}")
        await trio.sleep(LOOK_S)


def _summary(status: ClientStatus) -> str:
    ready = sum(link.farm.ready for link in status.links)
    return (
        f"{ready} of {counted(len(status.links), 'farm')} ready, {counted(status.open_connections, 'open connection')}"
    )
