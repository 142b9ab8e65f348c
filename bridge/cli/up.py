"""`garlicfarm up`: a farm of several nodes on this machine, for a first look, for experiments and for tests.

    prepare files ─▶ start N processes of `garlicfarm run` ─▶ show them until a stop ─▶ stop every one of them

Each node has a leaf with a page, which a client reaches through a SAM bridge of this process (`leaf_services`).

In a terminal the farm is shown live; otherwise each event of each node is one line. With --exit-when-published the
command is a test: it ends with 0 as soon as a structure on disk verifies and names every healthy destination.
"""

import math
import os
import shlex
import shutil
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import click
import trio
from msgspec import Struct

from bridge.api.events import EventStory, event_sentence, story_line
from bridge.cli.failure import failures
from bridge.cli.node_queries import LOCAL_FARM_DIRECTORY
from bridge.cli.options import IntegerRange, NumberRange, RespelledOption, directory_path, timeout_option
from bridge.cli.printing import drawing_refusal, echo, written_apart
from bridge.node.local.farm_files import (
    SERVERS_MAX,
    LocalFarm,
    LocalFarmError,
    NodeFiles,
    locked,
    prepare,
    refuse_other_use,
)
from bridge.node.local.leaf_services import LeafServices, start_bridge
from bridge.node.local.supervisor import Child, Command, run_children
from bridge.node.local.watch import LocalWatch
from bridge.node.security.key_files import KeyFileError
from bridge.sam.connection import SamBridge
from bridge.tui.top import show_local_farm
from bridge.wire.i2p.destination_keys import DestinationKeyError
from bridge.wire.keys.farm_key import FarmKeyError
from consensus import counted

POLL_SECONDS = 0.2
CLIENT_ADDRESS = "127.0.0.1:8080"
"""The listener of the client in the proposed command."""
LOG_TAIL_LINES = 5
NOTICE = "Demonstration: throwaway destinations, loopback only. Nothing here leaves this machine."


class Options(Struct, frozen=True):
    """The options of the command."""

    nodes: int
    directory: Path
    for_seconds: float
    exit_when_published: bool
    timeout_seconds: float
    program: str
    """The command that starts this program in the user's shell."""


class Failed(Exception):  # noqa: N818 - it is the command's answer, not a fault of the program
    """The farm failed: the reason, as text."""


@click.command()
@click.option(
    "--nodes",
    "--servers",
    "nodes",
    cls=RespelledOption,
    default=3,
    show_default=True,
    type=IntegerRange(1, SERVERS_MAX),
    help="Number of nodes.",
)
@click.option(
    "--state-dir",
    "directory",
    default="farm-state",
    show_default=True,
    type=directory_path,
    help="Directory of keys, logs and published structures; an existing farm there continues.",
)
@click.option(
    "--for",
    "for_seconds",
    metavar="SECONDS",
    default=math.inf,
    type=NumberRange(min=0),
    help="Stop after this time (default: on Ctrl-C).",
)
@click.option(
    "--exit-when-published",
    is_flag=True,
    help="End with 0 once a Meta LeaseSet2 that verifies is on disk; its path is the last line.",
)
@timeout_option(
    "timeout_seconds",
    "With --exit-when-published: end with 1 and the reason after this number of seconds.",
    default_s=60.0,
)
def up(
    *,
    nodes: int,
    directory: Path,
    for_seconds: float,
    exit_when_published: bool,
    timeout_seconds: float,
) -> None:
    """Run a farm of several nodes on this machine's loopback."""
    options = Options(nodes, directory, for_seconds, exit_when_published, timeout_seconds, _program())
    with failures(LocalFarmError, KeyFileError, FarmKeyError, DestinationKeyError, Failed, OSError):
        refuse_other_use(directory)
        with locked(directory), written_apart():
            trio.run(_run, options)


async def _run(options: Options) -> None:
    async with trio.open_nursery() as nursery:
        services = await start_bridge(nursery)
        farm = await trio.to_thread.run_sync(prepare, options.directory, options.nodes, services.bridge)
        await _run_farm(farm, services, options)
        nursery.cancel_scope.cancel()


async def _run_farm(farm: LocalFarm, services: LeafServices, options: Options) -> None:
    client = _client_command(services.bridge, options)
    commands = tuple(
        Command(node.name, ("run", "--config", str(node.configuration_file), "--stop-with-stdin"), node.log_file)
        for node in farm.nodes
    )
    last_line: list[str] = []

    async def use(children: tuple[Child, ...]) -> None:
        watch = LocalWatch(farm, children, NOTICE, options.program, client)
        live = drawing_refusal() is None and not options.exit_when_published
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, nursery.cancel_scope)
            nursery.start_soon(watch.run)
            nursery.start_soon(services.run, farm, [child.exited for child in children], watch.running_pid)
            # Print it even before the live view: it is visible again when the view ends.
            _print_introduction(farm, client, options)
            if live:
                nursery.start_soon(_show_live, nursery.cancel_scope, watch)
            else:
                nursery.start_soon(_print_events, watch)
                nursery.start_soon(_print_exits, farm, children)
            with trio.move_on_after(options.for_seconds):
                if options.exit_when_published:
                    last_line.append(await _until_published(watch, farm, children, options.timeout_seconds))
                else:
                    await _until_none_runs(watch, farm, children, options)
            nursery.cancel_scope.cancel()

    await run_children(commands, use)
    if options.exit_when_published and not last_line:
        raise Failed("stopped before anything was published")
    for line in last_line:
        echo(line)


async def _show_live(farm_scope: trio.CancelScope, watch: LocalWatch) -> None:
    """Show the live view; the key that closes it stops the farm."""
    await show_local_farm(watch.picture, watch.events)
    farm_scope.cancel()


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


async def _until_published(
    watch: LocalWatch, farm: LocalFarm, children: tuple[Child, ...], timeout_seconds: float
) -> str:
    with trio.move_on_after(timeout_seconds):
        while any(child.running for child in children):
            found = await trio.to_thread.run_sync(watch.published)
            if found is not None:
                return str(found.path)
            await trio.sleep(POLL_SECONDS)
        ends = await trio.to_thread.run_sync(_ends, farm, children)
        raise Failed(f"every process of the farm has ended before anything was published: {ends}")
    raise Failed(f"nothing was published within {timeout_seconds:g} s: {watch.progress()}")


async def _until_none_runs(watch: LocalWatch, farm: LocalFarm, children: tuple[Child, ...], options: Options) -> None:
    """Return when every node has ended normally, by `garlicfarm leave` or a signal; raise `Failed` otherwise.

    Nodes that the user started again, as the screen advises, count: the view continues while one of them runs.
    """
    started = trio.current_time()
    for child in children:
        await child.exited.wait()
    while any(each.running for each in watch.picture().processes):  # noqa: ASYNC110 - others started these
        await trio.sleep(POLL_SECONDS)
    seconds = trio.current_time() - started
    if any(child.process.returncode for child in children):
        ends = await trio.to_thread.run_sync(_ends, farm, children)
        raise Failed(f"every process of the farm has ended after {seconds:.0f} s: {ends}")
    again = f"{options.program} up --state-dir {shlex.quote(str(farm.directory))}"
    echo(f"{counted(len(children), 'node')} stopped cleanly after {seconds:.0f} s. To continue the farm:  {again}")


def _ends(farm: LocalFarm, children: tuple[Child, ...]) -> str:
    return "; ".join(
        f"{node.name}: {child.exit_text}{_log_tail(node)}" for node, child in zip(farm.nodes, children, strict=True)
    )


def _log_tail(node: NodeFiles, lines_max: int = LOG_TAIL_LINES) -> str:
    try:
        lines = node.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    tail = " | ".join(line.strip() for line in lines[-lines_max:] if line.strip())
    return f" ({tail})" if tail else ""


def _print_introduction(farm: LocalFarm, client: str, options: Options) -> None:
    echo(NOTICE)
    again = "Continuing the farm" if farm.continued else "A new farm"
    echo(f"{again} of {counted(len(farm.nodes), 'node')} in {farm.directory}; each is a separate process.")
    if options.exit_when_published:
        return
    command, first = options.program, farm.nodes[0]
    echo(f"Watch it from another terminal:  {command} top   (also: status, members, log, lease-set show FILE)")
    echo(
        "Kill a process to see the others take over; it stays down until you start it again:"
        f"  {command} run --config {shlex.quote(str(first.configuration_file))}"
    )
    echo(f"Reach the leaves from another terminal, and then http://{CLIENT_ADDRESS}/:  {client}")
    echo(f"Next step, a real router:  {command} help attach-a-router. Ctrl-C stops everything.")


def _client_command(bridge: SamBridge, options: Options) -> str:
    node = "" if options.directory == LOCAL_FARM_DIRECTORY else f" --node {shlex.quote(str(options.directory))}/node-1"
    return f'{options.program} connect --sam {bridge} --listen {CLIENT_ADDRESS} "$({options.program} link{node})"'


def _program() -> str:
    """Return the command that starts this program in the user's shell."""
    installed = Path(sys.executable).with_name("garlicfarm")
    found = shutil.which("garlicfarm")
    # pipx and the Debian package put a link on the path.
    is_on_path = found is not None and os.path.realpath(found) == os.path.realpath(installed)
    return os.path.relpath(installed) if installed.exists() and not is_on_path else "garlicfarm"


async def _print_events(watch: LocalWatch) -> None:
    story = EventStory()
    async for event in watch.events:
        if not story.is_new(event_sentence(event) or f"{event.node} {event.kind}", event.time_ms):
            continue
        at = datetime.fromtimestamp(event.time_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
        echo(f"{at} {story_line(event)}")


async def _print_exits(farm: LocalFarm, children: tuple[Child, ...]) -> None:
    async def wait_for(node: NodeFiles, child: Child) -> None:
        echo(f"{_now()} {node.name} process-started pid={child.pid}")
        await child.exited.wait()
        # A killed process did not log a reason.
        reason = _log_tail(node, lines_max=1) if (child.process.returncode or 0) > 0 else ""
        echo(f"{_now()} {node.name} process-ended pid={child.pid} {child.exit_text}{reason}")

    async with trio.open_nursery() as nursery:
        for node, child in zip(farm.nodes, children, strict=True):
            nursery.start_soon(wait_for, node, child)


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).strftime("%H:%M:%S.%f")[:-3]
