"""`garlicfarm publish`: operators' decisions about publications. Any node accepts them; the log distributes them.

    force MASTER              the publisher publishes this master again, changed or not
    exclude, include LEAF     exclude a leaf from all structures, even if it is healthy; list it again
    cost LEAF FACTOR          multiply the cost of a leaf: 2 doubles it, 1 restores it

Masters and leaves are named by their addresses, `….b32.i2p`. docs/explanation/publishing.md explains the effect on the
structure.
"""

from functools import partial

import click

from bridge.api.control_routes import COMMANDS, COMMANDS_CHECK
from bridge.api.requests import CommandRequest, CostOrder, ExclusionOrder, ForceOrder
from bridge.cli.help.completion import complete_leaf, complete_master
from bridge.cli.node_queries import call_node, confirm_checked, node_option, query_node
from bridge.cli.options import DashedCommand, NumberRange, SummaryGroup, json_option, yes_option
from bridge.cli.printing import echo, end_with_json
from bridge.core.log.weights import OPERATOR_BOUNDS, THOUSANDTHS

_LEAST, _MOST = OPERATOR_BOUNDS


@click.group(cls=SummaryGroup)
def publish() -> None:
    """Publish a master again, exclude leaves, change their costs."""


@publish.command(cls=DashedCommand)
@click.argument("master", shell_complete=complete_master)
@node_option
@json_option
def force(master: str, node: str | None, *, as_json: bool) -> None:
    """Publish MASTER again, although nothing changed."""
    submit_command(node, CommandRequest(force=ForceOrder(master)), as_json=as_json)


@publish.command(cls=DashedCommand)
@click.argument("leaf", shell_complete=complete_leaf)
@node_option
@json_option
@yes_option
def exclude(leaf: str, node: str | None, *, yes: bool, as_json: bool) -> None:
    """Exclude LEAF from all publications until it is included again."""
    order = CommandRequest(exclusion=ExclusionOrder(leaf, excluded=True))
    confirm_order(node, order, f"Exclude {leaf} from all publications of the farm?", yes=yes)
    submit_command(node, order, as_json=as_json)


@publish.command(cls=DashedCommand)
@click.argument("leaf", shell_complete=complete_leaf)
@node_option
@json_option
def include(leaf: str, node: str | None, *, as_json: bool) -> None:
    """Include an excluded LEAF again."""
    submit_command(node, CommandRequest(exclusion=ExclusionOrder(leaf, excluded=False)), as_json=as_json)


@publish.command(cls=DashedCommand)
@click.argument("leaf", shell_complete=complete_leaf)
@click.argument("factor", type=NumberRange(_LEAST / THOUSANDTHS, _MOST / THOUSANDTHS))
@node_option
@json_option
def cost(leaf: str, factor: float, node: str | None, *, as_json: bool) -> None:
    """Multiply the cost of LEAF by FACTOR, 0.1 to 10; 1 restores it."""
    submit_command(node, CommandRequest(cost=CostOrder(leaf, factor)), as_json=as_json)


def confirm_order(node: str | None, order: CommandRequest, question: str, *, yes: bool) -> None:
    """Prompt the user about a command, as `confirm_checked` does."""
    confirm_checked(partial(query_node, node), COMMANDS_CHECK, order, question, yes=yes)


def submit_command(node: str | None, command: CommandRequest, *, as_json: bool) -> None:
    """Submit a command and print its result, or end with the reason."""
    answer = call_node(node, COMMANDS, command)
    end_with_json(answer, as_json=as_json)
    echo(f"{answer.text}.")
