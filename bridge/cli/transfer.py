"""`garlicfarm transfer`: the leader hands leadership over, before maintenance for instance.

The leader brings its successor up to date, holds what is submitted meanwhile, and tells it to take over: nothing waits
for an election timeout. A node that is stopped in the ordinary way does so by itself.
"""

import click

from bridge.api.control import LeaderAnswer
from bridge.cli.options import ask_node, json_option, node_option
from bridge.cli.printing import echo, print_json
from bridge.node.control.client import ControlClient


@click.command()
@node_option
@click.option(
    "--to", metavar="NODE", help="Name or Raft id of the voter that is to lead (default: whoever is closest)."
)
@json_option
def transfer(node: str | None, to: str | None, *, as_json: bool) -> None:
    """Have the leader hand leadership to another node."""

    async def hand_over(client: ControlClient) -> str:
        return await client.transfer(to)

    leader = ask_node(node, hand_over)
    if as_json:
        print_json(LeaderAnswer(leader))
    else:
        echo(f"{leader} leads now.")
