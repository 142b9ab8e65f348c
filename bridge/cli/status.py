"""`garlicfarm status` and `members`: the farm as one node sees it, for people or as the documented JSON."""

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.cli.options import ask_node, json_option, node_option, print_json
from bridge.core.view import FarmView, PublishingView, RaftRole
from bridge.node.control_client import ControlClient
from bridge.tui.sections import by_name
from bridge.tui.words import clock_text, duration, known, milliseconds_text, printable
from bridge.wire.view_json import document, view_document


async def _view(client: ControlClient) -> FarmView:
    return await client.view()


@click.command()
@node_option
@json_option
def status(node: str | None, *, as_json: bool) -> None:
    """Show how the farm is, as one node sees it: Raft, what is published, alarms."""
    view = ask_node(node, _view)
    if as_json:
        print_json(view_document(view))
        return
    console = Console(highlight=False, soft_wrap=True)
    for label, text in _facts(view):
        console.print(Text(f"{label:<12}", style="bold") + Text(printable(text)))
    for each in view.publishing:
        _print_publishing(console, each)
    for alarm in view.alarms:
        console.print(
            Text(f"ALARM {alarm.kind}: ", style="bold red") + Text(printable(f"{alarm.text}; {alarm.action}"))
        )
    if not view.alarms:
        console.print(Text("no alarms"))


def _facts(view: FarmView) -> list[tuple[str, str]]:
    node, farm, raft = view.node, view.farm, view.raft
    demo = ", a demonstration that never leaves this machine" if farm.demo else ""
    counts: dict[str, int] = {}
    for member in view.members:
        counts[member.status.value] = counts.get(member.status.value, 0) + 1
    leader = "none known" if raft.leader_id is None else f"{raft.leader_name or '?'} (id {raft.leader_id})"
    facts = [
        (
            "node",
            f"{node.name}, id {known(node.raft_id)}, {node.node_id}, generation {node.generation}, pid {node.pid}",
        ),
        (
            "",
            f"{node.phase.value}, up {duration(node.uptime_ms)}, version {node.version}, state in {node.state_directory}",
        ),
        ("farm", f"{farm.cluster} {farm.label}, cluster id {known(farm.cluster_id)}, {farm.expect} founders{demo}"),
        ("members", ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"),
        ("raft", f"{raft.role.value}, term {raft.term}, leader {leader}"),
        ("log", f"committed {raft.commit_index} of {raft.last_index}, applied {raft.applied_index}"),
    ]
    if raft.log_time_ms is not None:
        facts.append(("log time", clock_text(raft.log_time_ms, dated=True)))
    if raft.role is RaftRole.LEADER:
        lags = (f"{each.name or each.raft_id} lacks {each.lag_entries}" for each in raft.followers)
        facts.append(("followers", ", ".join(lags) or "none"))
    return facts


def _print_publishing(console: Console, each: PublishingView) -> None:
    who = "nobody" if each.publisher_id is None else f"{each.publisher_name or '?'} (id {each.publisher_id})"
    console.print(Text(f"{'publishes':<12}", style="bold") + Text(printable(f"{who}: {each.reason}")))
    console.print(Text(f"{'':<12}master {each.master}"))
    if each.published_s is not None:
        left = "" if each.seconds_to_expiry is None else f", expires in {duration(each.seconds_to_expiry * 1000)}"
        console.print(Text(f"{'':<12}at {clock_text(each.published_s * 1000, dated=True)}{left}"))
    if each.lease_set_file is not None:
        console.print(Text(f"{'':<12}file {each.lease_set_file}"))
    for entry in each.entries:
        health = "healthy" if entry.healthy else "unhealthy"
        console.print(Text(f"{'':<12}{entry.destination} {known(entry.name)} cost {entry.cost} {health}"))


@click.command()
@node_option
@json_option
def members(node: str | None, *, as_json: bool) -> None:
    """List the members with status, incarnation, round-trip time and peers."""
    view = ask_node(node, _view)
    ordered = by_name(view.members)
    if as_json:
        print_json({"schema": 1, "members": [document(member) for member in ordered]})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "STATUS", "INCARNATION", "RTT", "PEERS", "RAFT ID", "GOSSIP", "RAFT"):
        table.add_column(heading, no_wrap=True, overflow="fold")
    for member in ordered:
        table.add_row(
            Text(printable(member.name) + (" (self)" if member.is_self else "")),
            member.status.value,
            f"{member.generation}.{member.number}",
            milliseconds_text(member.rtt_ms),
            f"{known(member.peer_count)}/{known(member.capacity)}",
            known(member.raft_id),
            member.address,
            Text(printable(known(member.endpoint))),
        )
    Console(highlight=False, soft_wrap=True).print(table)
