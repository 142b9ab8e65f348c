"""`garlicfarm leave`: a node says goodbye to its peers and stops. It stays a voter; start it again and it is back."""

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
