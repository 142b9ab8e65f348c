"""`garlicfarm top`: one farm or several live in the terminal, as their nodes see them.

    --node    find the nodes of one farm ──▶ `bridge.tui.top`
    --farm    a name of the list of farms, or an address ──▶ `farm_list` ──▶ `bridge.tui.farms`: verdicts, then one farm

This module is separate because the live view needs rich, whose import takes longer than `garlicfarm status`.
"""

from functools import partial
from pathlib import Path

import click
import trio

from bridge.cli.events.farm_list import chosen_farms
from bridge.cli.failure import fail, failures
from bridge.cli.node_queries import answer_timeout_s, find_nodes, nodes_option
from bridge.cli.options import file_path
from bridge.cli.printing import drawing_refusal
from bridge.node.control.client import ANSWER_TIMEOUT_S, ControlError
from bridge.tui.farms import show_farms
from bridge.tui.top import show_farm


@click.command()
@nodes_option
@click.option(
    "--farm",
    "named",
    metavar="FARM",
    multiple=True,
    help="A farm to watch: its name in the list of farms, or the address of a node as with --node; may be given several"
    " times.",
)
@click.option(
    "--farms",
    "farm_list",
    type=file_path,
    help="The list of farms, TOML; without --farm, all of them (default: ~/.config/garlicfarm/farms.toml).",
)
def top(nodes: tuple[str, ...], named: tuple[str, ...], farm_list: Path | None) -> None:
    """Watch farms live: members, Raft, publications, recent events. q quits.

    When the node stops responding, `top` queries the next named node, or a node whose state directory has the same
    parent. With several farms, their verdicts come first; Enter opens a farm, Esc returns.
    """
    refusal = drawing_refusal()
    if refusal is not None:
        fail(f"top draws on a terminal, and {refusal}; use `garlicfarm status` or `garlicfarm status --json`")
    timeout_s = answer_timeout_s(ANSWER_TIMEOUT_S)
    with failures(ControlError):
        if named or farm_list is not None:
            if nodes:
                fail("--node names nodes of one farm: give each farm by --farm, or its nodes in the list of farms")
            farms = chosen_farms(named, farm_list)
        else:
            find_nodes(nodes)
    try:
        if named or farm_list is not None:
            trio.run(show_farms, farms, timeout_s)
        else:
            trio.run(show_farm, partial(find_nodes, nodes), timeout_s)
    except* KeyboardInterrupt:
        # Ctrl-C quits, as q does.
        pass
