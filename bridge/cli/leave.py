"""`garlicfarm leave` and `withdraw`: a node says goodbye and stops; a founder takes back its promise.

The leader takes a node that left out of the Raft group, unless too few voters would stay; started again, it comes back
under its Raft id. A promise can be taken back only as long as the farm cannot have been founded with it; formation
judges that, and this command prints its reason.
"""

import click

from bridge.cli.failure import confirm
from bridge.cli.options import ask_node, json_option, node_option, print_json, yes_option
from bridge.node.control_client import ControlClient


async def _name(client: ControlClient) -> str:
    return (await client.view()).node.name


async def _leave(client: ControlClient) -> None:
    await client.leave()


@click.command()
@node_option
@yes_option
@json_option
def leave(node: str | None, *, yes: bool, as_json: bool) -> None:
    """Tell a node to leave the farm and stop."""
    name = ask_node(node, _name)
    confirm(f"{name} leaves the farm and stops until somebody starts it again. Go on?", yes=yes)
    ask_node(node, _leave)
    if as_json:
        print_json({"schema": 1, "leaving": True, "node": name})
    else:
        click.echo(f"{name} leaves the farm and stops.")


async def _withdraw(client: ControlClient) -> None:
    await client.withdraw()


@click.command()
@node_option
@yes_option
@json_option
def withdraw(node: str | None, *, yes: bool, as_json: bool) -> None:
    """Take back a node's promise to found a farm, when an alarm advises it."""
    name = ask_node(node, _name)
    confirm(f"{name} takes back what it promised to the other founders. Does an alarm advise it?", yes=yes)
    ask_node(node, _withdraw)
    if as_json:
        print_json({"schema": 1, "withdrawn": True, "node": name})
    else:
        click.echo(f"{name} has promised nothing now and looks for founders again.")
