"""The options of `garlicfarm members` that query all nodes: round-trip times, and the farm as each node sees it."""

from collections import Counter

from bridge.api.control_routes import QUERY, VIEWS
from bridge.api.observations.perspectives import NodePerspective, disagreements
from bridge.api.outputs import RoundTripsOutput, RoundTripView
from bridge.api.printable import duration, known, milliseconds_text
from bridge.api.requests import QUERY_TIMEOUT_MS, QueryRequest
from bridge.cli.node_queries import call_node, query_node
from bridge.cli.printing import echo, end_with_json, print_table
from bridge.core.formation.member import MemberStatus
from bridge.node.control.client import ControlClient
from bridge.wire.membership.round_trips import ROUND_TRIPS_QUERY, read_round_trips


def show_perspectives(node: str | None, *, as_json: bool) -> None:
    """Print one line for each node, then the disagreements."""
    found = call_node(node, VIEWS)
    end_with_json(found, as_json=as_json)
    rows = [_row(each) for each in found.nodes]
    print_table(("NODE", "REPLIED", "VERDICT", "LEADER", "TERM", "COMMIT", "SERVERS IT SEES"), rows)
    echo()
    differing = list(disagreements(found))
    for sentence in differing:
        echo(sentence, mark="! ", color="yellow")
    replied = sum(each.answered for each in found.nodes)
    if not differing:
        echo(f"The {replied} nodes that replied agree." if replied > 1 else "Fewer than two nodes replied.")


def _row(each: NodePerspective) -> tuple[str, ...]:
    if each.verdict is None:
        return each.name, "no", "-", "-", "-", "-", "-"
    replied = "yes" if each.answered else f"{duration(each.age_ms or 0)} ago"
    leader = each.leader or "none"
    return each.name, replied, each.verdict, leader, known(each.term), known(each.commit_index), _servers(each)


def _servers(each: NodePerspective) -> str:
    """Return `3 alive` or `2 alive; dead: node-3`."""
    counts = Counter(each.members.values())
    others = [
        f"{status.value}: {', '.join(name for name, found in each.members.items() if found is status)}"
        for status in MemberStatus
        if status is not MemberStatus.ALIVE and counts[status]
    ]
    return "; ".join([f"{counts[MemberStatus.ALIVE]} alive", *others])


async def _round_trips(client: ControlClient) -> RoundTripsOutput:
    """Query every node by gossip for its round trips; the names come from this node."""
    answer = await client.call(QUERY, QueryRequest(ROUND_TRIPS_QUERY, "", QUERY_TIMEOUT_MS))
    names = {member.node_id: member.name for member in (await client.view()).members}
    rows = []
    for each in answer.answers:
        for peer, rtt_ms in read_round_trips(each.payload):
            found = next((name for node_id, name in names.items() if node_id.startswith(peer)), peer)
            rows.append(RoundTripView(each.node, found, rtt_ms))
    return RoundTripsOutput(tuple(rows), answer.silent)


def show_round_trips(node: str | None, *, as_json: bool) -> None:
    """Print the round-trip times between all nodes."""
    found = query_node(node, _round_trips)
    end_with_json(found, as_json=as_json)
    by_pair = {(each.node, each.peer): each.rtt_ms for each in found.round_trips}
    nodes = sorted({each.node for each in found.round_trips}, key=lambda name: (len(name), name))
    peers = sorted({each.peer for each in found.round_trips}, key=lambda name: (len(name), name))
    rows = [
        (node, *("self" if node == peer else milliseconds_text(by_pair.get((node, peer))) for peer in peers))
        for node in nodes
    ]
    print_table(("FROM", *peers), rows)
    if found.silent:
        echo(f"No answer in time from: {', '.join(found.silent)}", err=True)
