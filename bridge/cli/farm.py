"""`garlicfarm farm` and `servers`: the whole shared state, and the Raft group.

`status` shows one node and the publications. `farm` shows their reasons: every server's report, every candidate's score
or inability, every leaf's load, and the weights of operators and of the pipeline.

`servers remove` goes through the log. Any node accepts it, and every leader carries it out by the rules of
docs/how-to/servers.md. The server does not return to the group before `servers restore`. A removed leader transfers
leadership first. The command waits until the server has left the group; after `--timeout` it fails with the obstacle.
"""

import time
from collections.abc import Collection

import click

from bridge.api.control_routes import NODES, VIEW
from bridge.api.farm_facts import outdated_reports
from bridge.api.outputs import FarmOutput, ServersOutput, ServerView
from bridge.api.printable import clock_text, duration, known, short_address
from bridge.api.requests import CommandRequest, RemovalOrder
from bridge.api.verdict import loss_of_each
from bridge.api.view import SHOWN, FarmView, PublishingView, RaftRole, ReportView, StandingView, VoterView, WeightsView
from bridge.api.words import (
    CONDITION_NAMES,
    IN_LAST_REPORT,
    condition_cell,
    condition_text,
    handed_over_text,
    health_text,
    score_text,
    seen_text,
    standing_text,
)
from bridge.cli.failure import fail
from bridge.cli.help.completion import complete_server
from bridge.cli.node_queries import call_current, call_node, node_option, patient_node_option
from bridge.cli.options import (
    NumberRange,
    SummaryGroup,
    json_option,
    output_options,
    timeout_option,
    watchable,
    yes_option,
)
from bridge.cli.printing import echo, end_with_json, print_facts, print_table
from bridge.cli.publish import confirm_order, submit_command
from bridge.core.membership.admission import server_label

POLL_SECONDS = 0.3


@click.command()
@node_option
@output_options
@watchable
def farm(node: str | None, *, as_json: bool) -> None:
    """Show the replicated state of the farm: reports, candidates, leaves, weights, publications."""
    view = call_current(node, VIEW)
    end_with_json(
        FarmOutput(
            cluster=view.farm.cluster,
            log_time_ms=view.raft.log_time_ms,
            applied_index=view.raft.applied_index,
            leader_id=view.raft.leader_id,
            voters=view.raft.voters,
            learners=view.raft.learners,
            publishing=view.publishing,
            reports=view.reports,
            weights=view.weights,
            removed=view.removed,
        ),
        as_json=as_json,
    )
    print_facts(_head(view))
    echo()
    _print_reports(view)
    for each in view.publishing:
        echo()
        _print_master(each)
    echo()
    _print_leaves(view)
    if view.weights != WeightsView():
        echo()
        _print_weights(view.weights)


def _head(view: FarmView) -> list[tuple[str, str]]:
    raft = view.raft
    leader = "none known" if raft.leader_id is None else f"{known(raft.leader_name)} (id {raft.leader_id})"
    facts = [("farm", f"{view.farm.cluster}, applied up to entry {raft.applied_index} by {view.node.name}")]
    if raft.log_time_ms is not None:
        facts.append(("log time", clock_text(raft.log_time_ms, dated=True)))
    facts.append(("leader", leader))
    facts.append(("voters", ", ".join(map(_with_id, raft.voters)) or "none"))
    if raft.learners:
        facts.append(("learners", ", ".join(map(_with_id, raft.learners))))
    if view.removed:
        facts.append(("removed", ", ".join(f"server {each}" for each in view.removed)))
    return facts


def _with_id(server: VoterView | ReportView | StandingView) -> str:
    return f"{server.name or 'server'} ({server.raft_id})"


def _print_reports(view: FarmView) -> None:
    rows = [
        (
            _with_id(each),
            f"{each.age_ms / 1000:.0f} s{', stale' if each.stale else ''}{', clock off' if each.clock_off else ''}",
            "yes" if each.attached else "no",
            f"{each.healthy_destinations}/{each.destinations}",
            *(figure.text(figure.of(each)) for figure in SHOWN),
        )
        for each in view.reports
    ]
    print_table(("SERVER", "REPORTED", "ROUTER", "HEALTHY", *(each.label.upper() for each in SHOWN)), rows)


def _print_master(each: PublishingView) -> None:
    facts = [("master", each.master)]
    if each.published_s is not None:
        when = clock_text(each.published_s * 1000, dated=True)
        content = (each.content_hash or "")[:16]
        who = server_label(each.published_by, each.published_by_name)
        facts.append(("accepted", f"{when} by {who}, content {content}"))
    facts += [("handed over", handed_over_text(each)), ("seen", seen_text(each))]
    if each.forced:
        facts.append(("forced", "an operator requests that it is published again"))
    print_facts(facts)
    rows = [
        (
            _with_id(standing),
            str(standing.score),
            "publisher" if standing.raft_id == each.publisher_id else standing_text(standing, "able"),
            "preferred" if standing.preferred else "",
        )
        for standing in each.standings
    ]
    print_table(("CANDIDATE", "SCORE", "", ""), rows)
    for standing in each.standings:
        name = server_label(standing.raft_id, standing.name)
        echo(f"{name}: {standing.choice}")
        echo(f"  {score_text(standing)}")
        if standing.failure and standing.inability is None:
            echo(f"{name} could not publish: {standing.failure}")


def _print_leaves(view: FarmView) -> None:
    costs = {entry.destination: entry.cost for each in view.publishing for entry in each.entries}
    rows = [
        (
            leaf.destination,
            f"{report.name or 'server'} ({report.raft_id})",
            "healthy" if leaf.healthy else "unhealthy",
            *(condition_cell(leaf, each) for each in CONDITION_NAMES),
            str(leaf.load),
            "excluded" if leaf.excluded else known(costs.get(leaf.destination)),
        )
        for report in view.reports
        for leaf in report.leaves
    ]
    conditions = (each.upper() for each in CONDITION_NAMES.values())
    print_table(("LEAF", "AT", "REPORTED", *conditions, "LOAD", "COST"), rows)
    outdated = outdated_reports(view)
    for report in view.reports:
        prefix = IN_LAST_REPORT if report.raft_id in outdated else ""
        for leaf in report.leaves:
            failed = [each for each in leaf.conditions or () if not each.holds or each.last_error is not None]
            where = f"leaf {short_address(leaf.destination)} at {server_label(report.raft_id, report.name)}"
            if failed or not leaf.healthy:
                text = "; ".join(map(condition_text, failed)) or health_text(leaf.faults, healthy=leaf.healthy)
                echo(f"{where}: {prefix}{text}")


def _print_weights(weights: WeightsView) -> None:
    rows = [(each.destination, known(each.name), "excluded", "") for each in weights.excluded]
    rows += [
        (each.destination, known(each.name), f"cost x {each.factor:g}", "by an operator") for each in weights.costs
    ]
    rows += [
        (each.destination, known(each.name), f"cost x {each.factor:g}", f"pipeline, {duration(each.age_ms)} ago")
        for each in weights.factors
    ]
    print_table(("WEIGHED LEAF", "AT", "HOW", ""), rows)
    if weights.through_index:
        echo(f"the last factors of the pipeline cover the log up to entry {weights.through_index} ({weights.formula})")


# -- servers -----------------------------------------------------------------------------------------------------------


@click.group(cls=SummaryGroup, invoke_without_command=True)
@node_option
@json_option
@click.pass_context
@watchable
def servers(context: click.Context, node: str | None, *, as_json: bool) -> None:
    """List the servers of the Raft group, and the loss if each fails; remove one, or allow it to join again."""
    if context.invoked_subcommand is None:
        _show_servers(call_current(node, VIEW), as_json=as_json)


@servers.command(name="list")
@node_option
@json_option
@watchable
def list_(node: str | None, *, as_json: bool) -> None:
    """List the servers of the Raft group, and the loss to the farm if each fails."""
    _show_servers(call_current(node, VIEW), as_json=as_json)


def _show_servers(view: FarmView, *, as_json: bool) -> None:
    raft = view.raft
    roles = [(each, "voter") for each in raft.voters] + [(each, "learner") for each in raft.learners]
    lags = {each.raft_id: each.lag_entries for each in raft.followers}
    reports = {each.raft_id: each for each in view.reports}
    losses = loss_of_each(view)
    listed = tuple(
        ServerView(
            each.raft_id,
            each.endpoint,
            each.name,
            role=role,
            leads=each.raft_id == raft.leader_id,
            lag_entries=lags.get(each.raft_id),
            report_age_ms=reports[each.raft_id].age_ms if each.raft_id in reports else None,
            loss=losses[each.raft_id],
        )
        for each, role in roles
    )
    end_with_json(ServersOutput(listed, view.removed, raft.waits), as_json=as_json)
    # Only the leader knows the lags of its followers.
    knows_lags = bool(raft.followers)
    rows = [
        (
            str(each.raft_id),
            known(each.name),
            "leader" if each.raft_id == raft.leader_id else role,
            *((known(lags.get(each.raft_id)),) if knows_lags else ()),
            f"{reports[each.raft_id].age_ms / 1000:.0f} s" if each.raft_id in reports else "-",
            losses[each.raft_id] or "may be lost",
            each.endpoint,
        )
        for each, role in roles
    ]
    lag = ("LAG",) if knows_lags else ()
    print_table(("ID", "NAME", "ROLE", *lag, "REPORT", "WITHOUT IT", "ADDRESS"), rows)
    echo(view.verdict.text)
    if view.removed:
        names = {each.raft_id: each.name for each in view.members}
        echo(f"removed by an operator: {', '.join(server_label(each, names.get(each)) for each in view.removed)}")
    for text in raft.waits:
        echo(f"waiting: {text}")
    if raft.leader_id is None:
        echo("this node does not know a leader; query another node with --node")
    elif raft.role is not RaftRole.LEADER:
        echo(f"{known(raft.leader_name)} leads, and shows the lag and the pending changes; query it with --node")


@servers.command()
@click.argument("server", shell_complete=complete_server)
@patient_node_option
@json_option
@yes_option
@timeout_option("wait_s", "Seconds to wait until it is removed.", default_s=30.0)
@click.option("--wait", "former_wait_s", type=NumberRange(0), help="The same as --timeout.", hidden=True)
def remove(
    server: str, node: str | None, wait_s: float, former_wait_s: float | None, *, yes: bool, as_json: bool
) -> None:
    """Remove SERVER (name or Raft id) from the Raft group; it may be the leader."""
    order = CommandRequest(removal=RemovalOrder(server, removed=True))
    confirm_order(node, order, f"Remove {server} from the farm, and no longer list its leaves?", yes=yes)
    submit_command(node, order, as_json=as_json)

    limit_s = wait_s if former_wait_s is None else former_wait_s
    # Gossip may not have a stopped node any more, so the view may lack its node id.
    identities = call_node(node, NODES).nodes
    raft_ids = {each.raft_id for each in identities if server in {str(each.raft_id), each.name, each.id}}
    view, until_s = call_node(node, VIEW), time.monotonic() + limit_s
    while _is_leaving(view, raft_ids) and time.monotonic() < until_s:
        time.sleep(POLL_SECONDS)
        view = call_node(node, VIEW)
    if _is_leaving(view, raft_ids):
        reasons = (
            "; ".join(view.raft.waits) or f"run `garlicfarm servers` at {known(view.raft.leader_name)}, which leads"
        )
        fail(f"{server} is not removed yet; the leader removes it when the rules allow: {reasons}")


def _is_leaving(view: FarmView, raft_ids: Collection[int | None]) -> bool:
    """Return True if an operator has removed one of these servers, and it is still in the group."""
    in_group = {each.raft_id for each in (*view.raft.voters, *view.raft.learners)}
    return not in_group.intersection(view.removed).isdisjoint(raft_ids)


@servers.command()
@click.argument("server", shell_complete=complete_server)
@node_option
@json_option
def restore(server: str, node: str | None, *, as_json: bool) -> None:
    """Allow a removed SERVER to join again."""
    submit_command(node, CommandRequest(removal=RemovalOrder(server, removed=False)), as_json=as_json)
