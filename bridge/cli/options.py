"""Options that several commands share, and asking the node that they name."""

import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from bridge.cli.failure import fail
from bridge.node.control.client import ControlClient, ControlError, ask, find_control_socket

T = TypeVar("T")

node_option = click.option(
    "--node",
    "node",
    metavar="ADDRESS",
    help="Control socket or state directory of the node to ask (default: $GARLICFARM_NODE, then the first that answers"
    " in ./farm-state, then the default state directory).",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask first.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with the documented keys.")


def ask_node(node: str | None, question: Callable[[ControlClient], Awaitable[T]]) -> T:
    """The answer of the node that is meant, or the end of the command with the reason."""
    try:
        return ask(find_control_socket(node), question)
    except ControlError as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
