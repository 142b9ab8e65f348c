"""`garlicfarm top`: the live terminal view of the farm as one node sees it."""

import sys

import click
import trio

from bridge.cli.failure import fail, failures
from bridge.cli.options import node_option
from bridge.node.control.client import ControlError, find_control_socket
from bridge.tui.top import show_farm


@click.command()
@node_option
def top(node: str | None) -> None:
    """Watch the farm live: members, Raft, what is published, recent events. q quits."""
    if not sys.stdout.isatty():
        fail("top draws on a terminal and stdout is none; use `garlicfarm status` or `garlicfarm status --json`")
    with failures(ControlError):
        path = find_control_socket(node)
    try:
        trio.run(show_farm, path)
    except* KeyboardInterrupt:
        # Ctrl-C is the other way to quit.
        pass
