"""`garlicfarm servers`: who is in the Raft group, and taking a server out of it, be it the leader.

A removal goes through the log: any node takes it, every leader carries it out by the rules of
docs/how-to/servers.md, and the server is not added again before it is restored. A leader that is to go hands leadership
over first. The command waits until the group is without the server, and says what is waited for if that takes long.
"""

import click
import trio

from bridge.api.outputs import ServersOutput, ServerView
from bridge.api.requests import CommandRequest, RemovalOrder
from bridge.api.view import FarmView, RaftRole
from bridge.cli.failure import confirm, fail
from bridge.cli.options import ask_node, json_option, node_option, yes_option
from bridge.cli.printing import echo, print_json, print_table
from bridge.cli.publish import tell
from bridge.node.control.client import ControlClient
from bridge.tui.words import known

POLL_SECONDS = 0.3


@click.group(invoke_without_command=True)
@node_option
@json_option
@click.pass_context
def servers(context: click.Context, node: str | None, *, as_json: bool) -> None:
    """List the servers of the Raft group, remove one, let one back."""
    if context.invoked_subcommand is None:
        show(ask_node(node, ControlClient.view), as_json=as_json)


def show(view: FarmView, *, as_json: bool) -> None:
    """Who votes, who learns, who was removed."""
    raft = view.raft
    roles = [(each, "voter") for each in raft.voters] + [(each, "learner") for each in raft.learners]
    lags = {each.raft_id: each.lag_entries for each in raft.followers}
    reports = {each.raft_id: each for each in view.reports}
    if as_json:
        listed = tuple(
            ServerView(
                each.raft_id,
                each.endpoint,
                each.name,
                role=role,
                leads=each.raft_id == raft.leader_id,
                lag_entries=lags.get(each.raft_id),
                report_age_ms=reports[each.raft_id].age_ms if each.raft_id in reports else None,
            )
            for each, role in roles
        )
        print_json(ServersOutput(listed, view.removed, raft.waits))
        return
    rows = [
        (
            str(each.raft_id),
            known(each.name),
            "leader" if each.raft_id == raft.leader_id else role,
            known(lags.get(each.raft_id)),
            f"{reports[each.raft_id].age_ms / 1000:.0f} s" if each.raft_id in reports else "-",
            each.endpoint,
        )
        for each, role in roles
    ]
    print_table(("ID", "NAME", "ROLE", "LAG", "REPORT", "ADDRESS"), rows)
    if view.removed:
        echo(f"removed by an operator: {', '.join(map(str, view.removed))}")
    for text in raft.waits:
        echo(f"waiting: {text}")
    if raft.leader_id is None:
        echo("no leader is known to this node; ask another one with --node")
    elif raft.role is not RaftRole.LEADER:
        echo(f"{known(raft.leader_name)} leads and knows the lag, and what is waited for; ask it with --node")


@servers.command()
@click.argument("server")
@node_option
@json_option
@yes_option
@click.option("--wait", "wait_s", type=float, default=30.0, show_default=True, help="Seconds to wait until it is out.")
def remove(server: str, node: str | None, wait_s: float, *, yes: bool, as_json: bool) -> None:
    """Take SERVER (name or Raft id) out of the farm, the leader too."""
    confirm(f"Take {server} out of the farm? Its leaves will be listed no more.", yes=yes)
    tell(node, CommandRequest(removal=RemovalOrder(server, removed=True)), as_json=as_json)

    async def until_out(client: ControlClient) -> FarmView:
        view = await client.view()
        with trio.move_on_after(wait_s):
            while _on_their_way(view):
                await trio.sleep(POLL_SECONDS)
                view = await client.view()
        return view

    view = ask_node(node, until_out)
    if _on_their_way(view):
        reasons = "; ".join(view.raft.waits) or f"ask {known(view.raft.leader_name)}, which leads: `garlicfarm servers`"
        fail(f"the farm lets {server} go as soon as it can, and it is still a member: {reasons}")


def _on_their_way(view: FarmView) -> list[int]:
    """Who was removed by an operator and is a member still."""
    return [each.raft_id for each in (*view.raft.voters, *view.raft.learners) if each.raft_id in view.removed]


@servers.command()
@click.argument("server")
@node_option
@json_option
def restore(server: str, node: str | None, *, as_json: bool) -> None:
    """Let a removed SERVER come back."""
    tell(node, CommandRequest(removal=RemovalOrder(server, removed=False)), as_json=as_json)
