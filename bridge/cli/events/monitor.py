"""`garlicfarm monitor`: the events on all nodes, as one story, live.

    node-1 ── events, by long polls ─┐
    node-2 ──────────────────────────┼─▶ each fact once (`bridge.api.events`) ─▶ a line
    node-3 ──────────────────────────┘

`--node`, which may be repeated, names the nodes. By default the command follows the default node, and the nodes whose
state directories have the same parent. If a node stops replying, a line reports this, and another line reports its
return. With `--json` the events are not combined: each line is one event of one node.
"""

import sys
import time
from collections.abc import Collection, Sequence

import click
import trio

from bridge.api.events import EventStory, event_sentence, story_line
from bridge.api.json import DocumentError
from bridge.api.printable import clock_text
from bridge.api.trace import TraceEvent
from bridge.cli.failure import failures
from bridge.cli.node_queries import answer_timeout_s, find_named_nodes, find_nodes, nodes_option
from bridge.cli.options import IntegerRange, json_option
from bridge.cli.printing import echo, print_json_line
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.control.connections.node_address import NodeAddress

WAIT_MS = 10_000
RETRY_INTERVAL_S = 1.0
ANSWER_TIMEOUT_S = 5.0


@click.command()
@click.option("--kind", "kinds", multiple=True, help="Show events of this kind only; may be given several times.")
@click.option(
    "--last", default=0, show_default=True, type=IntegerRange(0, 1000), help="Number of past events to print first."
)
@nodes_option
@json_option
def monitor(*, kinds: tuple[str, ...], last: int, nodes: tuple[str, ...], as_json: bool) -> None:
    """Show what happens on all nodes, as it happens, until Ctrl-C. Each fact is printed once."""
    with failures(ControlError):
        addresses = find_named_nodes(nodes) or find_nodes()
    try:
        trio.run(_run, addresses, _Printer(kinds, len(addresses), as_json=as_json), last)
    except* KeyboardInterrupt:
        pass


class _Printer:
    def __init__(self, kinds: Sequence[str], nodes: int, *, as_json: bool) -> None:
        self._kinds = tuple(dict.fromkeys(kinds))
        self._unanswered = nodes
        self._known: set[str] = set()
        self._as_json = as_json
        self._story = EventStory()

    def began(self, known: Collection[str]) -> None:
        """Add the kinds of events of one more node. After the last node, report kinds that none of them has had."""
        self._known.update(known)
        self._unanswered -= 1
        missing = [each for each in self._kinds if each not in self._known]
        if self._unanswered == 0 and missing:
            there = ", ".join(sorted(self._known)) or "none"
            echo(f"Nothing of the kind {', '.join(missing)} yet; the nodes have had: {there}.", err=True)

    def show(self, events: Sequence[TraceEvent]) -> None:
        for event in events:
            if self._kinds and event.kind not in self._kinds:
                continue
            if self._as_json:
                print_json_line(event)
            elif self._story.is_new(event_sentence(event) or f"{event.node} {event.kind}", event.time_ms):
                echo(f"{clock_text(event.time_ms)} {story_line(event)}")
        sys.stdout.flush()

    def print_note(self, text: str) -> None:
        echo(f"{clock_text(int(time.time() * 1000))} {text}", err=self._as_json)


async def _run(addresses: Sequence[NodeAddress], printer: _Printer, last: int) -> None:
    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(_follow, address, printer, last)


async def _follow(address: NodeAddress, printer: _Printer, last: int) -> None:
    cursor: int | None = None
    newest: TraceEvent | None = None
    is_silent = is_started = False
    async with ControlClient(address, answer_timeout_s(ANSWER_TIMEOUT_S)) as client:
        while True:
            try:
                if cursor is None:
                    cursor, newest, known = await _start(client, printer, last)
                    if not is_started:
                        is_started = True
                        printer.began(known)
                elif is_silent and newest is not None and not await client.has_event(newest):
                    cursor, newest = 1, None
                page = await client.events(cursor, 1_000, 0 if is_silent else WAIT_MS)
            except (ControlError, DocumentError) as error:
                if not is_silent:
                    printer.print_note(str(error))
                if not is_started:
                    is_started = True
                    printer.began(())
                    last = max(last, 1_000)  # if the node starts later, all its events are new
                is_silent = True
                await trio.sleep(RETRY_INTERVAL_S)
                continue
            if is_silent:
                printer.print_note(f"the node at {address} answers again")
            is_silent, cursor = False, page.next_cursor
            newest = page.events[-1] if page.events else newest
            printer.show(page.events)


async def _start(client: ControlClient, printer: _Printer, last: int) -> tuple[int, TraceEvent | None, set[str]]:
    """Print the last present events; return the next position, the newest event, and the kinds of all events."""
    cursor, recent, known = 1, list[TraceEvent](), set[str]()
    newest: TraceEvent | None = None
    while True:
        page = await client.events(cursor, 1_000)
        known.update(each.kind for each in page.events)
        recent = [*recent, *page.events][-last:] if last else []
        if not page.events:
            printer.show(recent)
            return page.next_cursor, newest, known
        cursor, newest = page.next_cursor, page.events[-1]
