"""`garlicfarm leave` and `withdraw`: a node says goodbye and stops; a founder takes back its promise.

The leader takes a node that left out of the Raft group, unless too few voters would stay; started again, it comes back
under its Raft id. A promise can be taken back only as long as the farm cannot have been founded with it; formation
judges that, and this command prints its reason.
"""

import click

from bridge.cli.options import ask_node, json_option, node_option, print_json
from bridge.node.control_client import ControlClient


async def _leave(client: ControlClient) -> str:
    name = (await client.view()).node.name
    await client.leave()
    return name


@click.command()
@node_option
@json_option
def leave(node: str | None, *, as_json: bool) -> None:
    """Tell a node to leave the farm and stop."""
    name = ask_node(node, _leave)
    if as_json:
        print_json({"schema": 1, "leaving": True, "node": name})
    else:
        click.echo(f"{name} leaves the farm and stops.")


async def _withdraw(client: ControlClient) -> str:
    name = (await client.view()).node.name
    await client.withdraw()
    return name


@click.command()
@node_option
@json_option
def withdraw(node: str | None, *, as_json: bool) -> None:
    """Take back a node's promise to found a farm, when an alarm advises it."""
    name = ask_node(node, _withdraw)
    if as_json:
        print_json({"schema": 1, "withdrawn": True, "node": name})
    else:
        click.echo(f"{name} has promised nothing now and looks for founders again.")
