"""`garlicfarm top`: the farm live in the terminal, as one node sees it.

    find the nodes ──▶ `bridge.tui.top`: query one of them, draw, handle keys   until q or Ctrl-C

A module of its own: the live view needs rich, which takes longer to import than `garlicfarm status` takes to run.
"""

from functools import partial

import click
import trio

from bridge.cli.failure import fail, failures
from bridge.cli.node_queries import answer_timeout_s, find_nodes, nodes_option
from bridge.cli.printing import drawing_refusal
from bridge.node.control.client import ANSWER_TIMEOUT_S, ControlError
from bridge.tui.top import show_farm


@click.command()
@nodes_option
def top(nodes: tuple[str, ...]) -> None:
    """Watch the farm live: members, Raft, publications, recent events. q quits.

    When the node stops responding, `top` queries the next named node, or a node whose state directory has the same
    parent.
    """
    refusal = drawing_refusal()
    if refusal is not None:
        fail(f"top draws on a terminal, and {refusal}; use `garlicfarm status` or `garlicfarm status --json`")
    with failures(ControlError):
        find_nodes(nodes)
    try:
        trio.run(show_farm, partial(find_nodes, nodes), answer_timeout_s(ANSWER_TIMEOUT_S))
    except* KeyboardInterrupt:
        # Ctrl-C is the other way to quit.
        pass
