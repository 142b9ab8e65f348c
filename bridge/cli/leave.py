"""`garlicfarm leave`, `transfer`, `withdraw` and `confirm-cluster`: commands that change one node's role in its farm.

After a node has left, the leader removes its server from the Raft group, unless too few voters would remain. If the
node starts again, it joins under its old Raft id. Before maintenance, a node need not leave: a transfer of leadership
is enough. The leader delays submissions, brings its successor up to date, and sends TimeoutNow, so that the successor
campaigns immediately. So clients do not wait for an election timeout. On a clean stop, a leader transfers its
leadership in the same way.

`withdraw` withdraws the node's promise to create a farm. The node refuses if the farm may already have been created
with this promise, and the command prints the reason.

A new node without a cluster id in its key file cannot distinguish its farm from a farm that a holder of the key
invented. The node waits with an alarm, until the operator confirms the cluster id that a node of the farm shows.
"""

import re
from functools import partial

import click

from bridge.api.control_routes import CONFIRM_CLUSTER, LEAVE, TRANSFER, WITHDRAW, WITHDRAW_CHECK
from bridge.api.outputs import ConfirmClusterOutput, LeaveOutput, WithdrawOutput
from bridge.api.requests import ConfirmClusterRequest, TransferRequest
from bridge.cli.failure import confirm, fail
from bridge.cli.help.completion import complete_server
from bridge.cli.node_queries import call_node, confirm_checked, node_option, query_node
from bridge.cli.options import json_option, yes_option
from bridge.cli.printing import echo, end_with_json
from bridge.core.formation.founding import CLUSTER_ID_BYTES
from bridge.node.control.client import ControlClient


async def _name(client: ControlClient) -> str:
    return (await client.view()).node.name


@click.command()
@node_option
@yes_option
@json_option
def leave(node: str | None, *, yes: bool, as_json: bool) -> None:
    """Make a node leave the farm and stop."""
    name = query_node(node, _name)
    confirm(f"Make {name} leave the farm and stop until you start it again?", yes=yes)
    call_node(node, LEAVE)
    end_with_json(LeaveOutput(leaving=True, node=name), as_json=as_json)
    echo(f"{name} leaves the farm and stops.")


@click.command()
@node_option
@yes_option
@json_option
def withdraw(node: str | None, *, yes: bool, as_json: bool) -> None:
    """Withdraw a node's promise to create a farm, when an alarm advises it."""
    name = query_node(node, _name)
    question = f"Withdraw the promise and the endorsement of {name}, so that it searches for founders again?"
    confirm_checked(partial(query_node, node), WITHDRAW_CHECK, None, question, yes=yes)
    call_node(node, WITHDRAW)
    end_with_json(WithdrawOutput(withdrawn=True, node=name), as_json=as_json)
    echo(f"{name} has withdrawn its promise and searches for founders again.")


@click.command("confirm-cluster")
@click.argument("cluster_id", metavar="ID")
@node_option
@json_option
def confirm_cluster(cluster_id: str, node: str | None, *, as_json: bool) -> None:
    """Confirm to a new node that the cluster with this ID is its farm.

    The node's alarm lists the clusters it has discovered. Compare ID with the output of `garlicfarm status` on a node
    of the farm: a holder of the farm key can announce another farm.
    """
    if re.fullmatch(f"[0-9a-f]{{{2 * CLUSTER_ID_BYTES}}}", cluster_id) is None:
        fail(f"a cluster id has {2 * CLUSTER_ID_BYTES} hexadecimal digits: copy it from `garlicfarm status`")

    async def confirm_it(client: ControlClient) -> str:
        await client.call(CONFIRM_CLUSTER, ConfirmClusterRequest(cluster_id))
        return await _name(client)

    name = query_node(node, confirm_it)
    end_with_json(ConfirmClusterOutput(cluster_id, name), as_json=as_json)
    echo(f"{name} joins cluster {cluster_id}, and no other.")


@click.command()
@click.argument("successor", metavar="[NODE]", required=False, shell_complete=complete_server)
@click.option("--to", help="The same as NODE.", hidden=True, shell_complete=complete_server)
@node_option
@json_option
def transfer(successor: str | None, to: str | None, node: str | None, *, as_json: bool) -> None:
    """Hand leadership from the leader to another node.

    NODE is the name or Raft id of the new leader, a voter (default: the voter with the longest log).
    """
    if successor and to:
        raise click.UsageError("name the new leader once: NODE or --to")
    answer = call_node(node, TRANSFER, TransferRequest(successor or to))
    end_with_json(answer, as_json=as_json)
    echo(f"{answer.leader} is now the leader.")
