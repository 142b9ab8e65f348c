"""`garlicfarm farm`: the whole shared state, as the servers agree on it and the asked node has applied it.

`status` tells how this node is and what is published; this tells why: every server's report, every candidate's score or
inability, every leaf with its load, what operators and the pipeline added, and the last publication of each master.
"""

import click

from bridge.api.outputs import FarmOutput
from bridge.api.view import FarmView, PublishingView, WeightsView
from bridge.cli.options import ask_node, json_option, node_option
from bridge.cli.printing import echo, print_facts, print_json, print_table
from bridge.node.control.client import ControlClient
from bridge.tui.words import clock_text, duration, known


@click.command()
@node_option
@json_option
def farm(node: str | None, *, as_json: bool) -> None:
    """Show all that the farm's servers agree on: reports, candidates, leaves, weights, publications."""
    view = ask_node(node, ControlClient.view)
    if as_json:
        print_json(
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
            )
        )
        return
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
    facts.append(("voters", ", ".join(f"{each.name or 'server'} ({each.raft_id})" for each in raft.voters) or "none"))
    if raft.learners:
        learners = ", ".join(f"{each.name or 'server'} ({each.raft_id})" for each in raft.learners)
        facts.append(("learners", learners))
    if view.removed:
        facts.append(("removed", ", ".join(f"server {each}" for each in view.removed)))
    return facts


def _print_reports(view: FarmView) -> None:
    rows = [
        (
            f"{each.name or 'server'} ({each.raft_id})",
            f"{each.age_ms / 1000:.0f} s{', stale' if each.stale else ''}{', clock off' if each.clock_off else ''}",
            "yes" if each.attached else "no",
            f"{each.healthy_destinations}/{each.destinations}",
            "-" if each.job_lag_ms is None else f"{each.job_lag_ms:.0f} ms",
            "-" if each.cpu_percent is None else f"{each.cpu_percent:.0f} %",
            "-" if each.memory_percent is None else f"{each.memory_percent:.0f} %",
        )
        for each in view.reports
    ]
    print_table(("SERVER", "REPORTED", "ROUTER", "HEALTHY", "JOB LAG", "CPU", "MEMORY"), rows)


def _print_master(each: PublishingView) -> None:
    facts = [("master", each.master)]
    if each.published_s is not None:
        when = clock_text(each.published_s * 1000, dated=True)
        content = (each.content_hash or "")[:16]
        facts.append(("published", f"{when} by server {known(each.published_by)}, content {content}"))
    if each.forced:
        facts.append(("forced", "an operator wants it published anew"))
    print_facts(facts)
    rows = [
        (
            f"{standing.name or 'server'} ({standing.raft_id})",
            str(standing.score),
            "publishes" if standing.raft_id == each.publisher_id else standing.inability or "able",
            "preferred" if standing.preferred else "",
        )
        for standing in each.standings
    ]
    print_table(("CANDIDATE", "SCORE", "", ""), rows)


def _print_leaves(view: FarmView) -> None:
    costs = {entry.destination: entry.cost for each in view.publishing for entry in each.entries}
    rows = [
        (
            leaf.destination,
            f"{report.name or 'server'} ({report.raft_id})",
            "healthy" if leaf.healthy else "unhealthy",
            str(leaf.load),
            "excluded" if leaf.excluded else known(costs.get(leaf.destination)),
        )
        for report in view.reports
        for leaf in report.leaves
    ]
    print_table(("LEAF", "AT", "REPORTED", "LOAD", "COST"), rows)


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
        echo(f"the pipeline last spoke of the log up to entry {weights.through_index} ({weights.formula})")
