"""The tasks of the live view: query the nodes, read keys, carry out orders, and draw (`top`, and `up`).

    query the node that answered last ── no answer ──▶ query the others ── none answers ──▶ show the reason
    while that node does not lead ──▶ query the leader, if it is one of the nodes, for the lag of the followers
    events of that node, by long polls ──▶ history ◀── a view each second
    entries of the log, while they are shown
    keys ──▶ `state.update` ──▶ state, orders ──▶ the node ──▶ their results, in the footer

Each of these is a separate task: a slow node never freezes the screen, and a key is drawn immediately.

The screen shows the farm, not one process: the view of the other nodes must survive the death of the queried one. If
the view comes from another node than the chosen one, an alarm line reports this. The view does not switch back while
the other node answers: if the chosen node fails repeatedly, the picture would jump.
"""

import dataclasses
import signal
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, assert_never

import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from bridge.api import control_routes as routes
from bridge.api.alarms import by_gravity
from bridge.api.entry_words import Names
from bridge.api.json import DocumentError
from bridge.api.observations.history import HistoryAnswer
from bridge.api.requests import CommandRequest, ExclusionOrder, NodeRequest, TransferRequest
from bridge.api.trace import TraceEvent
from bridge.api.view import AlarmView, FarmView, FollowerView, LocalFarmView, best_view
from bridge.api.words import eviction_lines
from bridge.node.control.client import ANSWER_TIMEOUT_S, ControlClient, ControlError
from bridge.node.control.connections.node_address import NodeAddress
from bridge.tui.history import ENTRIES, History
from bridge.tui.keys import Button, Input, Mouse
from bridge.tui.panes import ScreenData, draw_lines, settled
from bridge.tui.screen import show
from bridge.tui.state import (
    WHEEL_LINES,
    Evict,
    Exclude,
    Leave,
    Order,
    Pane,
    Quit,
    Transfer,
    ViewState,
    click,
    update,
    wheel,
)
from bridge.tui.targets import Target, target_at
from consensus import counted

QUERY_INTERVAL_S = 1.0
DOUBLE_CLICK_S: Final = 0.4
LATER_ENTRIES: Final = 5
TIMELINE_INTERVAL_S: Final = 30.0
EVENT_WAIT_MS: Final = 10_000
CHANGED_OVER: Final = "changed-over"
"""An alarm of the view itself, not of a node: the view now queries another node."""


@dataclass(slots=True)
class FollowedNode:
    """The queried node, and its last view. `reason` explains a missing or outdated view."""

    view: FarmView | None = None
    reason: str = "querying a node …"
    address: NodeAddress | None = None
    replied_s: float = 0.0
    """Time of the view, by the clock of this process."""


@dataclass(slots=True)
class Clicks:
    """The last click. A second click on the same target within a moment is a double click."""

    last: tuple[Target, float] | None = None

    def is_double(self, target: Target, now_s: float) -> bool:
        """Record a click; return True if it is the second one of a double click."""
        before = self.last
        is_double = before is not None and before[0] == target and now_s - before[1] <= DOUBLE_CLICK_S
        self.last = None if is_double else (target, now_s)
        return is_double


@dataclass(slots=True)
class LiveView:
    """The content of the screen, and the operator's choices."""

    followed: FollowedNode = field(default_factory=FollowedNode)
    state: ViewState = field(default_factory=ViewState)
    history: History = field(default_factory=History)
    local: LocalFarmView | None = None
    followers: tuple[FollowerView, ...] = ()
    """The followers as the leader knows them, while the view shows another node."""
    orders: list[Order] = field(default_factory=list)
    """The operator's pending orders."""
    ordered: trio.Event = field(default_factory=trio.Event)
    timeout_s: float = ANSWER_TIMEOUT_S
    """Seconds to wait for an answer of a node."""
    color: bool = True
    unicode: bool = True

    clock_s: Callable[[], float] = time.monotonic
    several: bool = False
    """True if the farm is one of several."""
    drawn: Sequence[Text] = ()
    """The last picture, which a click acts on."""
    timeline: HistoryAnswer | None = None
    timeline_reason: str = ""
    interval_s: float = field(default_factory=lambda: QUERY_INTERVAL_S)
    """Seconds between two queries."""
    clicks: Clicks = field(default_factory=Clicks)

    @property
    def mouse(self) -> bool:
        """Return True if the view receives the mouse."""
        return self.state.mouse

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return the screen now."""
        seen = self.data()
        self.state = settled(self.state, seen, width, height)
        self.drawn = draw_lines(self.state, seen, width, height, color=self.color, unicode=self.unicode)
        return self.drawn

    def data(self) -> ScreenData:
        """Return all data that can be drawn."""
        followed = self.followed
        return ScreenData(
            farm=followed.view,
            history=self.history,
            reason=followed.reason,
            local=self.local,
            age_ms=0 if followed.view is None else round((self.clock_s() - followed.replied_s) * 1000),
            interval_ms=round(self.interval_s * 1000),
            several=self.several,
            timeline=self.timeline,
            timeline_reason=self.timeline_reason,
        )

    def press(self, pressed: Input) -> bool:
        """Process a key or the mouse; return True if the view will end."""
        view, order = self.followed.view, None
        match pressed:
            case str():
                self.state, order = update(self.state, pressed, view, self.history)
            case Mouse(button=Button.LEFT):
                target = target_at(self.drawn, pressed.column, pressed.row)
                if target is not None:
                    double = self.clicks.is_double(target, self.clock_s())
                    self.state, order = click(self.state, target, view, self.history, double=double)
            case Mouse():
                by = WHEEL_LINES if pressed.button is Button.WHEEL_DOWN else -WHEEL_LINES
                self.state = wheel(self.state, by, view, self.history)
        if isinstance(order, Quit):
            return True
        if order is not None:
            self.orders.append(order)
            self.ordered.set()
        return False

    def take(self, view: FarmView) -> None:
        """Store a new view. Only the view of the leader contains followers."""
        if not view.raft.followers:
            view = msgspec.structs.replace(view, raft=msgspec.structs.replace(view.raft, followers=self.followers))
        self.followed.view, self.followed.replied_s = view, self.clock_s()
        self.history.take(view)


async def show_farm(
    nodes: Callable[[], Sequence[NodeAddress]], timeout_s: float, console: Console | None = None
) -> None:
    """Show the farm as the first of `nodes` that answers sees it, until the operator quits.

    `nodes` is called before each query of another node; it raises `ControlError` if it does not find a node.
    """
    live = LiveView(timeout_s=timeout_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_watching, nodes, live)
        nursery.start_soon(carry_out, live)
        nursery.start_soon(end_on_signal, nursery.cancel_scope)
        await _show(live, console or Console())
        nursery.cancel_scope.cancel()


async def end_on_signal(scope: trio.CancelScope) -> None:
    """Restore the terminal before the process ends: by default these signals end it immediately."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
        async for _ in signals:
            scope.cancel()


async def keep_watching(nodes: Callable[[], Sequence[NodeAddress]], live: LiveView) -> None:
    """Keep view, events and log fresh until canceled, without drawing."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_current, nodes, live)
        nursery.start_soon(follow_details, nodes, live)


async def follow_details(nodes: Callable[[], Sequence[NodeAddress]], live: LiveView) -> None:
    """Keep events, log and the lag of the followers fresh until canceled, for a farm on the screen."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_leader, nodes, live)
        nursery.start_soon(_follow_events, live)
        nursery.start_soon(_read_log, live)
        nursery.start_soon(_read_timeline, live)


async def show_local_farm(picture: Callable[[], LocalFarmView], events: AsyncIterable[TraceEvent]) -> None:
    """Show all processes of a local farm, until the operator quits; the view of the leader counts."""
    live = LiveView(state=ViewState(quit_question="Stop the whole farm?"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, picture, live)
        nursery.start_soon(_collect_events, events, live)
        nursery.start_soon(_read_log, live)
        nursery.start_soon(_read_timeline, live)
        nursery.start_soon(carry_out, live)
        await _show(live, Console())
        nursery.cancel_scope.cancel()


async def _show(live: LiveView, console: Console) -> None:
    live.color, live.unicode = capabilities(console)
    await show(live, console)


def capabilities(console: Console) -> tuple[bool, bool]:
    """Return True for colors, and True for letters beyond ASCII, if the terminal has them."""
    return console.color_system is not None and not console.no_color, console.encoding.lower().startswith("utf")


async def _watch(picture: Callable[[], LocalFarmView], live: LiveView) -> None:
    while True:
        live.local = picture()
        best = best_view(live.local)
        if best is None:
            live.followed = FollowedNode(reason="no process answers yet")
        else:
            live.followed.address, live.followed.reason = Path(best.node.control_address), ""
            live.take(best)
        await trio.sleep(QUERY_INTERVAL_S / 2)


async def _collect_events(events: AsyncIterable[TraceEvent], live: LiveView) -> None:
    async for event in events:
        live.history.story.add([event])


async def keep_current(nodes: Callable[[], Sequence[NodeAddress]], live: LiveView) -> None:
    """Keep the view fresh, from any node that answers."""
    failed, failure = None, ""
    while True:
        reason, followed = failure, live.followed
        try:
            known = nodes()
        except ControlError as error:
            # The error names the followed node, not the places where another one could be.
            known, reason = ((), str(error)) if followed.address is None else ((followed.address,), "")
        for address in sorted(known, key=lambda each: (each == failed, each != followed.address)):
            lost = await _follow(address, live, is_meant=address == known[0], why_not=reason)
            if lost.answered:
                # Do not query this node again first: a stopped node would delay the queries of the others.
                failed, failure = address, lost.reason
                break
            reason = reason or lost.reason
        else:
            failed, failure = None, ""
            live.followed = dataclasses.replace(live.followed, reason=reason, address=followed.address)
            await trio.sleep(live.interval_s)


class _Lost(Struct, frozen=True):
    """The end of the queries to a node."""

    reason: str
    answered: bool
    """True if the node had replied before."""


async def _follow(address: NodeAddress, live: LiveView, *, is_meant: bool, why_not: str) -> _Lost:
    """Show the view of one node until it does not answer.

    `why_not`: the reason why the queries to the previous node ended.
    """
    has_replied = False
    async with ControlClient(address, live.timeout_s) as client:
        while True:
            try:
                view = await client.view()
            except (ControlError, DocumentError) as error:
                return _Lost(str(error), has_replied)
            if address != live.followed.address and _is_other_farm(live.followed.view, view):
                return _Lost(f"the node at {address} belongs to another farm", has_replied)
            has_replied = True
            live.followed = FollowedNode(None, "", address)
            live.take(view if is_meant else _noted(view, why_not))
            await trio.sleep(live.interval_s)


def _is_other_farm(before: FarmView | None, view: FarmView) -> bool:
    """Return True if a view does not continue the shown one: nodes of several farms may share a directory."""
    if before is None:
        return False
    if before.farm.cluster_id is None or view.farm.cluster_id is None:
        return before.farm.label != view.farm.label
    return before.farm.cluster_id != view.farm.cluster_id


def _noted(view: FarmView, why_not: str) -> FarmView:
    note = AlarmView(CHANGED_OVER, f"this is what {view.node.name} sees", why_not or "the node that was meant is back")
    return msgspec.structs.replace(view, alarms=by_gravity((note, *view.alarms)))


async def follow_leader(nodes: Callable[[], Sequence[NodeAddress]], live: LiveView) -> None:
    """While the followed node does not lead, keep the followers of the leader, if it is one of `nodes`."""
    while True:
        with suppress(ControlError):
            for address in nodes():
                if address != live.followed.address:
                    await _follow_leader(address, live)
        await trio.sleep(QUERY_INTERVAL_S)


async def _follow_leader(address: NodeAddress, live: LiveView) -> None:
    """Keep the followers until this node no longer leads the shown farm, or does not answer."""
    try:
        async with ControlClient(address, live.timeout_s) as client:
            # Query the cluster first: nodes that do not lead are often queried in vain, and this reply is short.
            answer = await client.cluster()
            while (shown := live.followed.view) is not None and address != live.followed.address:
                if answer.raft_id is None or (answer.cluster_id, answer.raft_id) != (
                    shown.farm.cluster_id,
                    shown.raft.leader_id,
                ):
                    return
                live.followers = (await client.view()).raft.followers
                await trio.sleep(QUERY_INTERVAL_S)
    except (ControlError, DocumentError):
        return
    finally:
        live.followers = ()


async def _follow_events(live: LiveView) -> None:
    """Follow the trace of the followed node; from its start again when the node changes."""
    while True:
        address = live.followed.address
        if address is not None:
            live.history.story.clear()
            async with ControlClient(address, live.timeout_s) as client:
                await _until_changed(live, address, client)
        await trio.sleep(QUERY_INTERVAL_S)


async def _until_changed(live: LiveView, address: NodeAddress, client: ControlClient) -> None:
    cursor = 1
    while live.followed.address == address:
        try:
            page = await client.events(cursor, 1_000, EVENT_WAIT_MS)
        except (ControlError, DocumentError):
            return
        cursor = page.next_cursor
        live.history.story.add(page.events)


async def _read_log(live: LiveView) -> None:
    """Keep the log loaded while its pane is shown: the newest entries, each read once, or the chosen part."""
    while True:
        view, address = live.followed.view, live.followed.address
        if live.state.pane is Pane.LOG and view is not None and address is not None:
            try:
                async with ControlClient(address, live.timeout_s) as client:
                    await _load_log(live, view, client)
            except (ControlError, DocumentError) as error:
                live.state = replace(live.state, notice=str(error), log_at_ms=None)
        await trio.sleep(QUERY_INTERVAL_S / 2)


async def _load_log(live: LiveView, view: FarmView, client: ControlClient) -> None:
    at_ms, oldest = live.state.log_at_ms, max(view.raft.first_index, 1)
    if at_ms is not None:
        index = await entry_at(at_ms, oldest, view.raft.commit_index, client)
        part = max(oldest, index - ENTRIES // 2)
        # Later entries are above the chosen one, and some of them stay in sight.
        live.state = replace(live.state, log_at_ms=None, log_from=part, entry=index, top=index + LATER_ENTRIES)
    entries, newest = live.history.entries, view.raft.commit_index - ENTRIES + 1
    start = live.state.log_from
    if start is None or start >= newest:
        live.state = replace(live.state, log_from=None)
        first = max(newest, oldest)
        if entries and first - 1 <= entries[-1].index <= view.raft.commit_index:
            first = entries[-1].index + 1
        if first > view.raft.commit_index:
            return
    else:
        first = max(start, oldest)
        if entries and entries[0].index == first:
            return
    page = await client.log(first, ENTRIES)
    live.history.read(page.entries, Names(view))


async def entry_at(log_time_ms: int, first: int, last: int, client: ControlClient) -> int:
    """Return the first entry with this log time or a later time, by bisection; else the last entry."""
    while first < last:
        middle = (first + last) // 2
        page = await client.log(middle, 1)
        found = page.entries[0].log_time_ms if page.entries else None
        if found is None or found < log_time_ms:
            first = middle + 1
        else:
            last = middle
    return first


async def _read_timeline(live: LiveView) -> None:
    """Read the history of the followed node every half minute, while its pane is shown."""
    read: tuple[NodeAddress, int] | None = None
    read_s = 0.0
    while True:
        address, hours = live.followed.address, live.state.hours
        is_due = read != (address, hours) or live.clock_s() - read_s >= TIMELINE_INTERVAL_S
        if live.state.pane is Pane.TIMELINE and address is not None and is_due:
            try:
                async with ControlClient(address, live.timeout_s) as client:
                    live.timeline = await client.call(routes.HISTORY, query={"hours": hours})
                read, read_s = (address, hours), live.clock_s()
            except (ControlError, DocumentError) as error:
                live.timeline, live.timeline_reason = None, str(error)
        await trio.sleep(QUERY_INTERVAL_S / 2)


async def carry_out(live: LiveView) -> None:
    """Send the orders to the node, one after another, and show their results."""
    while True:
        await live.ordered.wait()
        live.ordered = trio.Event()
        while live.orders:
            order, address = live.orders.pop(0), live.followed.address
            if address is None:
                notice = "No node answers, so nothing was done."
            else:
                live.state = replace(live.state, notice="…")
                try:
                    async with ControlClient(address) as client:
                        notice = await _done(order)(client)
                except (ControlError, DocumentError) as error:
                    notice = str(error)
            live.state = replace(live.state, notice=notice)


def _done(order: Order) -> Callable[[ControlClient], Awaitable[str]]:
    """Return the function that carries an order out and returns its result."""

    async def carry_out(client: ControlClient) -> str:
        match order:
            case Transfer(name):
                return f"{(await client.call(routes.TRANSFER, TransferRequest(name))).leader} is now the leader."
            case Exclude(destinations, excluded):
                texts = []
                for number, each in enumerate(destinations):
                    try:
                        answer = await client.call(
                            routes.COMMANDS, CommandRequest(exclusion=ExclusionOrder(each, excluded))
                        )
                    except ControlError as error:
                        unchanged = len(destinations) - number
                        texts.append(
                            f"{error} ({unchanged} of {counted(len(destinations), 'leaf', 'leaves')} unchanged)"
                        )
                        break
                    texts.append(answer.text)
                return "\n".join(texts)
            case Evict(node_id, _):
                return "\n".join(eviction_lines(await client.call(routes.NODES_EVICT, NodeRequest(node_id))))
            case Leave(name):
                await client.call(routes.LEAVE)
                return f"{name} leaves the farm and stops."
            case Quit():
                return ""
            case _:
                assert_never(order)

    return carry_out
