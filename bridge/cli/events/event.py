"""`garlicfarm event`, `query` and `events`: small messages to all nodes by gossip, and the events on a node.

event NAME [PAYLOAD]    every node that runs records it in its trace
query NAME [PAYLOAD]    every node that has a reply sends it; all nodes reply to `ping` and to `version`
events                  the trace of one node, user events and queries included; with --watch as they happen
"""

import sys

import click

from bridge.api.control import QueryAnswer
from bridge.api.control_routes import EVENT, QUERY
from bridge.api.events import event_text
from bridge.api.printable import clock_text
from bridge.api.requests import QUERY_TIMEOUT_LIMIT_MS, QUERY_TIMEOUT_MS, EventRequest, QueryRequest
from bridge.api.trace import EventPage, TraceEvent
from bridge.cli.node_queries import call_node, node_option, patient_node_option, query_node
from bridge.cli.options import DashedCommand, IntegerRange, json_option, timeout_option, watch_option
from bridge.cli.printing import echo, end_with_json, print_json_line, print_table
from bridge.node.control.client import ControlClient

FOLLOW_WAIT_MS = 10_000
name_argument = click.argument("name")
payload_argument = click.argument("payload", default="")


@click.command(cls=DashedCommand)
@name_argument
@payload_argument
@node_option
@json_option
def event(name: str, payload: str, node: str | None, *, as_json: bool) -> None:
    """Send the user event NAME to all nodes. Each records it: `garlicfarm events --kind user-event`.

    NAME has at most 32 characters, PAYLOAD at most 512 bytes. An event that a node misses is not repeated.
    """
    answer = call_node(node, EVENT, EventRequest(name, payload))
    end_with_json(answer, as_json=as_json)
    if answer.nodes == 0:
        echo(f"No other node is running, so only this node records the event {name}.", err=True)
        return
    count = "all" if answer.nodes is None else f"{answer.nodes} other"
    echo(f"The event {name} is on its way to {count} node{'' if answer.nodes == 1 else 's'}.")


@click.command(cls=DashedCommand)
@name_argument
@payload_argument
@timeout_option(
    "timeout_s", "Seconds to wait for answers.", default_s=QUERY_TIMEOUT_MS / 1000, most_s=QUERY_TIMEOUT_LIMIT_MS / 1000
)
@patient_node_option
@json_option
def query(name: str, payload: str, node: str | None, *, timeout_s: float, as_json: bool) -> None:
    """Query all nodes, and print each reply. Ends when all nodes have replied, or after the timeout.

    Every node replies to `ping` (its name), `version`, `rtt`, `clock` and `view`. It only records other queries in its
    trace.
    """
    request = QueryRequest(name, payload, round(timeout_s * 1000))
    answer = call_node(node, QUERY, request)
    end_with_json(answer, as_json=as_json)
    _print_answers(answer)


def _print_answers(answer: QueryAnswer) -> None:
    if answer.answers:
        print_table(("NODE", "ANSWER"), [(each.node, each.payload) for each in answer.answers])
    else:
        echo(f"No node has a reply to {answer.name}; every node replies to ping and version.", err=True)
    if answer.silent and answer.answers:
        echo(f"No answer in time from: {', '.join(answer.silent)}", err=True)


@click.command()
@click.option("--kind", "kinds", multiple=True, help="Show events of this kind only; may be given several times.")
@click.option(
    "--limit", default=100, show_default=True, type=IntegerRange(1, 1000), help="Number of past events to print."
)
@watch_option("new events as they happen")
@node_option
@json_option
def events(*, kinds: tuple[str, ...], limit: int, follow: bool, node: str | None, as_json: bool) -> None:
    """Print the recent events of a node. With --watch and --json: one event on each line."""
    if follow:
        query_node(node, lambda client: _follow(client, kinds, limit, as_json=as_json))
        return
    page = query_node(node, lambda client: _recent(client, kinds, limit))
    end_with_json(page, as_json=as_json)
    for each in page.events:
        echo(_line(each))
    _report_if_empty(page, kinds)


async def _recent(client: ControlClient, kinds: tuple[str, ...], limit: int) -> EventPage:
    found: list[TraceEvent] = []
    cursor, lost = 1, 0
    while True:
        page = await client.events(cursor, limit=1000)
        found += _chosen(page, kinds)
        del found[:-limit]
        cursor, lost = page.next_cursor, lost + page.lost
        if not page.events:
            return EventPage(cursor, lost, tuple(found))


async def _follow(client: ControlClient, kinds: tuple[str, ...], limit: int, *, as_json: bool) -> None:
    page = await _recent(client, kinds, limit)
    _report_if_empty(page, kinds)
    while True:
        for each in page.events:
            if as_json:
                print_json_line(each)
            else:
                echo(_line(each))
        sys.stdout.flush()
        page = await client.events(page.next_cursor, limit=1000, wait_ms=FOLLOW_WAIT_MS)
        page = EventPage(page.next_cursor, page.lost, tuple(_chosen(page, kinds)))


def _report_if_empty(page: EventPage, kinds: tuple[str, ...]) -> None:
    if kinds and not page.events:
        echo(f"Nothing of the kind {', '.join(kinds)} among the stored events of the node.", err=True)


def _chosen(page: EventPage, kinds: tuple[str, ...]) -> list[TraceEvent]:
    return [each for each in page.events if not kinds or each.kind in kinds]


def _line(each: TraceEvent) -> str:
    return f"{clock_text(each.time_ms)} {each.node} {event_text(each)}"
