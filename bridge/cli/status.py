"""`garlicfarm status` and `members`: the farm as one node sees it, as text or as JSON."""

import sys
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import click

from bridge.api.control_routes import VIEW
from bridge.api.farm_facts import outdated_reports
from bridge.api.outputs import MembersOutput
from bridge.api.printable import clock_text, duration, known
from bridge.api.verdict import EXIT_STATUS, NOTHING_TO_DO
from bridge.api.view import (
    FarmView,
    FollowerView,
    LeafView,
    LinkView,
    PublishingView,
    RaftRole,
    StandingView,
    VoterView,
    counted_members,
)
from bridge.api.words import (
    MEMBER_COLUMNS,
    SERVER_FAULT,
    by_name,
    conditions_text,
    directory_text,
    handed_over_text,
    health_text,
    level_words,
    score_text,
    seen_text,
)
from bridge.cli.events.all_nodes import show_perspectives, show_round_trips
from bridge.cli.node_queries import call_node, node_option
from bridge.cli.options import output_options, watchable
from bridge.cli.printing import echo, end_with_json, print_facts, print_json, print_table
from bridge.core.formation.member import MemberStatus
from bridge.core.membership.admission import server_label
from consensus import counted


@click.command()
@node_option
@output_options
@watchable
def status(node: str | None, *, as_json: bool) -> None:
    """Show the health of the farm, as one node sees it: the verdict, Raft, publications, alarms.

    Exit codes: 0 healthy; 3 warning (degraded, waiting, an election); 4 critical (no quorum, nothing published, no
    healthy leaf, wrong farm key). As for every command, 1 means failed, and 2 wrong usage.
    """
    view = call_node(node, VIEW)
    if as_json:
        print_json(view)
    else:
        _print_status(view)
    sys.exit(EXIT_STATUS[view.verdict.severity])


def _print_status(view: FarmView) -> None:
    verdict = view.verdict
    echo(verdict.text, bold=True)
    if verdict.advice != NOTHING_TO_DO:
        echo(f"  do: {verdict.advice}")
    facts = [*_node_facts(view), *_raft_facts(view)]
    outdated = outdated_reports(view)
    conditions = {
        leaf.destination: _condition_facts(leaf, is_outdated=report.raft_id in outdated)
        for report in view.reports
        for leaf in report.leaves
    }
    for each in view.publishing:
        facts.extend(_publishing_facts(each, view, conditions))
    facts.extend(_unlisted_facts(view, conditions, outdated))
    shown = (verdict.text, verdict.advice)
    facts.extend(
        ("ALARM", f"{each.kind}: {'see above' if (each.text, each.action) == shown else f'{each.text}; {each.action}'}")
        for each in view.alarms
    )
    if not view.alarms:
        facts.append(("alarms", "none"))
    print_facts(facts)


def _node_facts(view: FarmView) -> list[tuple[str, str]]:
    node, farm = view.node, view.farm
    demo = ", a demonstration that never leaves this machine" if farm.demo else ""
    counts = Counter(member.status for member in counted_members(view))
    endpoints = (("kafka", node.kafka_address), ("zmq", node.zmq_address))
    return [
        ("node", f"{node.name}, Raft id {known(node.raft_id)}, {node.phase.value}, up {duration(node.uptime_ms)}"),
        ("", f"id {node.node_id}, generation {node.generation}, pid {node.pid}, version {node.version}"),
        ("", f"state in {node.state_directory}"),
        *((kind, f"clients read the log at {address}") for kind, address in endpoints if address is not None),
        *(() if node.directory is None else (("directory", directory_text(node.directory)),)),
        ("farm", f"{farm.cluster}, label {farm.label}, {counted(farm.expect, 'founder')}{demo}"),
        ("", f"cluster id {known(farm.cluster_id)}, feature level {known(level_words(view))}"),
        ("members", ", ".join(f"{counts[each]} {each.value}" for each in MemberStatus if counts[each]) or "none"),
    ]


def _raft_facts(view: FarmView) -> list[tuple[str, str]]:
    raft = view.raft
    leader = "none known" if raft.leader_id is None else f"{known(raft.leader_name)} (id {raft.leader_id})"
    facts = [
        ("raft", f"{raft.role.value}, term {raft.term}, leader {leader}"),
        ("log", f"committed {raft.commit_index} of {raft.last_index}, applied {raft.applied_index}"),
    ]
    if raft.log_time_ms is not None:
        facts.append(("log time", clock_text(raft.log_time_ms, dated=True)))
    if raft.voters:
        facts.append(("voters", ", ".join(map(_server_text, raft.voters))))
    if raft.learners:
        facts.append(("learners", ", ".join(map(_server_text, raft.learners))))
    facts.extend(("link", _link_text(link)) for link in raft.links)
    facts.extend(("waiting", text) for text in raft.waits)
    if raft.role is RaftRole.LEADER:
        if raft.transfer_target is not None:
            facts.append(("handing over", f"leadership, to server {raft.transfer_target}"))
        facts.append(("followers", ", ".join(map(_follower_text, raft.followers)) or "none"))
    return facts


def _server_text(server: VoterView) -> str:
    return server_label(server.raft_id, server.name)


def _link_text(link: LinkView) -> str:
    agreed = ", ".join(link.extensions) or "no extensions"
    state = "" if link.connected else "not connected; last "
    return f"to {server_label(link.raft_id, link.name)}: {state}agreed on {agreed}"


def _follower_text(follower: FollowerView) -> str:
    name = follower.name or follower.raft_id
    if follower.lag_entries is None:
        return f"{name} has not answered in this term"
    entries = "entry" if follower.lag_entries == 1 else "entries"
    return f"{name} lacks {follower.lag_entries} {entries}"


def _publishing_facts(
    each: PublishingView, view: FarmView, conditions: Mapping[str, list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    publisher = "no server" if each.publisher_id is None else f"{known(each.publisher_name)} (id {each.publisher_id})"
    facts = [
        ("publisher", f"{publisher}: {each.reason}"),
        ("", f"master {each.master}"),
        ("handed over", handed_over_text(each)),
    ]
    if each.lease_set_file is not None:
        facts.append(("", f"file {each.lease_set_file}"))
    facts.append(("seen", seen_text(each)))
    facts += [
        ("this node" if one.raft_id == view.node.raft_id else server_label(one.raft_id, one.name), text)
        for one in each.standings
        if (text := _candidate_text(one, each, view))
    ]
    for entry in each.entries:
        health = health_text(entry.faults, healthy=entry.healthy)
        facts.append(("leaf", f"{entry.destination} at {known(entry.name)}, cost {entry.cost}, {health}"))
        facts.extend(conditions.get(entry.destination, ()))
    return facts


def _candidate_text(one: StandingView, each: PublishingView, view: FarmView) -> str:
    """Return why this node does not publish, and its score; for another server, return only why it cannot publish."""
    choice = "" if one.raft_id == each.publisher_id else one.choice
    if one.raft_id == view.node.raft_id:
        return "; ".join(filter(None, (choice, score_text(one))))
    return choice if one.inability is not None else ""


def _unlisted_facts(
    view: FarmView, conditions: Mapping[str, list[tuple[str, str]]], outdated: AbstractSet[int]
) -> list[tuple[str, str]]:
    listed = {entry.destination for each in view.publishing for entry in each.entries}
    facts = []
    for report in view.reports:
        for leaf in report.leaves:
            if leaf.destination not in listed:
                reason = "excluded by an operator, " if leaf.excluded else ""
                is_lost = report.raft_id in outdated
                faults = (*((SERVER_FAULT,) if is_lost else ()), *(leaf.faults or ()))
                health = health_text(faults, healthy=leaf.healthy and not is_lost)
                at = server_label(report.raft_id, report.name)
                facts.append(("leaf", f"{leaf.destination} at {at}, not listed, {reason}{health}"))
                facts.extend(conditions[leaf.destination])
    return facts


def _condition_facts(leaf: LeafView, *, is_outdated: bool) -> list[tuple[str, str]]:
    return [("", conditions_text(leaf.conditions, is_outdated=is_outdated))] if leaf.conditions else []


@click.command()
@click.option(
    "--rtt", "matrix", is_flag=True, help="Query all nodes and print the round-trip times between them instead."
)
@click.option(
    "--all-nodes", is_flag=True, help="Query all nodes, and print the farm as each of them sees it, with disagreements."
)
@node_option
@output_options
@watchable
def members(node: str | None, *, matrix: bool, all_nodes: bool, as_json: bool) -> None:
    """List the members with status, incarnation, round-trip time and peers.

    PEERS 2/30: the member has 2 peers, and can have at most 30.
    """
    if matrix and all_nodes:
        raise click.UsageError("--rtt and --all-nodes exclude each other")
    if all_nodes:
        show_perspectives(node, as_json=as_json)
        return
    if matrix:
        show_round_trips(node, as_json=as_json)
        return
    ordered = by_name(call_node(node, VIEW).members)
    end_with_json(MembersOutput(tuple(ordered)), as_json=as_json)
    columns = MEMBER_COLUMNS.values()
    headings = [each.heading for each in columns]
    print_table(headings, [[each.text(member) for each in columns] for member in ordered])
