"""The live view at work: it asks the nodes, hears keys, carries out orders, and draws (`top`, and `up`).

    ask the node that answered last ── no answer ──▶ ask the others in turn ── none answers ──▶ show why
    while it does not lead: how far the others are, from the leader, if that is one of the nodes
    events of that node, by long polls ──▶ history ◀── a view each second
    entries of the log, while they are shown
    keys ──▶ `state.update` ──▶ state, orders ──▶ the node ──▶ what became of them, in the footer

Each is a task of its own: a node that is slow to answer never freezes the screen, and a key is drawn at once.

The screen shows the farm, not one process: a node that died must not take the view of the others with it. While another
node is shown than the one that was meant, an alarm line says so. There is no changing back as long as that one answers:
a node that comes and goes would make the picture jump.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, assert_never

import msgspec
import trio
from rich.console import Console, RenderableType

from bridge.api.alarms import by_gravity
from bridge.api.entry_words import Names
from bridge.api.json import DocumentError
from bridge.api.requests import CommandRequest, ExclusionOrder
from bridge.api.trace import TraceEvent
from bridge.api.view import AlarmView, FarmView, FollowerView, LocalFarmView, best_view
from bridge.node.control.client import ANSWER_TIMEOUT_S, ControlClient, ControlError
from bridge.node.control.node_address import NodeAddress
from bridge.tui.history import ENTRIES, History
from bridge.tui.panes import Seen, draw, scroll_limit
from bridge.tui.screen import show
from bridge.tui.state import Evict, Exclude, Leave, Order, Pane, Quit, Transfer, ViewState, update

ASK_EVERY_S = 1.0
EVENT_WAIT_MS: Final = 10_000
CHANGED_OVER: Final = "changed-over"
"""Not an alarm of a node: the view's own, that it asks another one."""


@dataclass(slots=True)
class Following:
    """The node that is asked, and its last view; `reason`: why there is no view, or why there is none after it."""

    view: FarmView | None = None
    reason: str = "querying a node …"
    address: NodeAddress | None = None


@dataclass(slots=True)
class LiveView:
    """What is on the screen, and what an operator has chosen."""

    following: Following = field(default_factory=Following)
    state: ViewState = field(default_factory=ViewState)
    history: History = field(default_factory=History)
    local: LocalFarmView | None = None
    followers: tuple[FollowerView, ...] = ()
    """As the leader knows them, while another node is followed."""
    orders: list[Order] = field(default_factory=list)
    """Given, and not carried out yet."""
    ordered: trio.Event = field(default_factory=trio.Event)
    timeout_s: float = ANSWER_TIMEOUT_S
    """Seconds to wait for an answer of a node."""

    def picture(self, width: int, height: int, *, color: bool, unicode: bool) -> RenderableType:
        """The screen now."""
        seen = Seen(self.following.view, self.history, self.following.reason, self.local)
        if self.state.offset:
            # A key that moves further down than the text reaches is not remembered: the next one up moves it.
            deepest = scroll_limit(self.state, seen, width, height)
            self.state = replace(self.state, offset=min(self.state.offset, deepest))
        return draw(self.state, seen, width, height, color=color, unicode=unicode)

    def press(self, key: str) -> bool:
        """Take a key; True if the view is to end."""
        self.state, order = update(self.state, key, self.following.view)
        if isinstance(order, Quit):
            return True
        if order is not None:
            self.orders.append(order)
            self.ordered.set()
        return False

    def take(self, view: FarmView) -> None:
        """A view has come; only the leader's has followers of its own."""
        if not view.raft.followers:
            view = msgspec.structs.replace(view, raft=msgspec.structs.replace(view.raft, followers=self.followers))
        self.following.view = view
        self.history.take(view)


async def show_farm(
    nodes: Callable[[], Sequence[NodeAddress]], timeout_s: float, console: Console | None = None
) -> None:
    """The farm as the first of `nodes` that answers sees it, until the operator quits.

    `nodes` are asked for at each change; a `ControlError` says that there is none.
    """
    live = LiveView(timeout_s=timeout_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_watching, nodes, live)
        nursery.start_soon(_carry_out, live)
        await _show(live, console or Console())
        nursery.cancel_scope.cancel()


async def keep_watching(nodes: Callable[[], Sequence[NodeAddress]], live: LiveView) -> None:
    """Keep view, events and log fresh until cancelled; nothing is drawn."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_asking, nodes, live)
        nursery.start_soon(keep_asking_leader, nodes, live)
        nursery.start_soon(_follow_events, live)
        nursery.start_soon(_read_log, live)


async def show_local_farm(
    picture: Callable[[], LocalFarmView], events: AsyncIterable[TraceEvent], console: Console | None = None
) -> None:
    """All processes of a local farm, until the operator quits; the view of the leader counts."""
    live = LiveView(state=ViewState(quit_question="Stop the whole farm?"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, picture, live)
        nursery.start_soon(_collect_events, events, live)
        nursery.start_soon(_read_log, live)
        nursery.start_soon(_carry_out, live)
        await _show(live, console or Console())
        nursery.cancel_scope.cancel()


async def _show(live: LiveView, console: Console) -> None:
    color = console.color_system is not None and not console.no_color
    unicode = console.encoding.lower().startswith("utf")
    await show(lambda w, h: live.picture(w, h, color=color, unicode=unicode), live.press, console)


async def _watch(picture: Callable[[], LocalFarmView], live: LiveView) -> None:
    while True:
        live.local = picture()
        best = best_view(live.local)
        if best is None:
            live.following = Following(reason="no process answers yet")
        else:
            live.following.address, live.following.reason = Path(best.node.control_address), ""
            live.take(best)
        await trio.sleep(ASK_EVERY_S / 2)


async def _collect_events(events: AsyncIterable[TraceEvent], live: LiveView) -> None:
    async for event in events:
        live.history.add([event])


async def keep_asking(nodes: Callable[[], Sequence[NodeAddress]], live: LiveView) -> None:
    """Keep the view fresh, from whichever node answers."""
    while True:
        reason, following = "", live.following
        try:
            known = nodes()
        except ControlError as error:
            # The node that was followed is named, not the places where another one could be.
            known, reason = ((), str(error)) if following.address is None else ((following.address,), "")
        for address in sorted(known, key=lambda each: each != following.address):
            lost = await _follow(address, live, is_meant=address == known[0], why_not=reason)
            if lost.answered:
                break
            reason = reason or lost.reason
        else:
            live.following = Following(live.following.view, reason, following.address)
            await trio.sleep(ASK_EVERY_S)


@dataclass(frozen=True, slots=True)
class _Lost:
    """How it ended that a node was asked."""

    reason: str
    answered: bool
    """It had answered before."""


async def _follow(address: NodeAddress, live: LiveView, *, is_meant: bool, why_not: str) -> _Lost:
    """Show what one node sees until it does not answer. `why_not`: the reason of the node that was asked before it."""
    answered = False
    async with ControlClient(address, live.timeout_s) as client:
        while True:
            try:
                view = await client.view()
            except (ControlError, DocumentError) as error:
                return _Lost(str(error), answered)
            answered = True
            live.following = Following(None, "", address)
            live.take(view if is_meant else _noted(view, why_not))
            await trio.sleep(ASK_EVERY_S)


def _noted(view: FarmView, why_not: str) -> FarmView:
    """The view of a node that stands in for the one that was meant."""
    note = AlarmView(CHANGED_OVER, f"this is what {view.node.name} sees", why_not or "the node that was meant is back")
    return msgspec.structs.replace(view, alarms=by_gravity((note, *view.alarms)))


async def keep_asking_leader(nodes: Callable[[], Sequence[NodeAddress]], live: LiveView) -> None:
    """While a node is followed that does not lead: keep what the leader alone knows, if it is one of `nodes`."""
    while True:
        with suppress(ControlError):
            for address in nodes():
                if address != live.following.address:
                    await _follow_leader(address, live)
        await trio.sleep(ASK_EVERY_S)


async def _follow_leader(address: NodeAddress, live: LiveView) -> None:
    """Until this node is not the leader of the farm that is shown, or does not answer."""
    try:
        async with ControlClient(address, live.timeout_s) as client:
            # Nodes that do not lead are asked often and in vain: this answer is a short one.
            said = await client.cluster()
            while (shown := live.following.view) is not None and address != live.following.address:
                if said.raft_id is None or (said.cluster_id, said.raft_id) != (
                    shown.farm.cluster_id,
                    shown.raft.leader_id,
                ):
                    return
                live.followers = (await client.view()).raft.followers
                await trio.sleep(ASK_EVERY_S)
    except (ControlError, DocumentError):
        return
    finally:
        live.followers = ()


async def _follow_events(live: LiveView) -> None:
    """The trace of the node that is followed; from its start again when that changes."""
    while True:
        address = live.following.address
        if address is not None:
            live.history.events.clear()
            async with ControlClient(address, live.timeout_s) as client:
                await _until_changed(live, address, client)
        await trio.sleep(ASK_EVERY_S)


async def _until_changed(live: LiveView, address: NodeAddress, client: ControlClient) -> None:
    cursor = 1
    while live.following.address == address:
        try:
            page = await client.events(cursor, 1_000, EVENT_WAIT_MS)
        except (ControlError, DocumentError):
            return
        cursor = page.next_cursor
        live.history.add(page.events)


async def _read_log(live: LiveView) -> None:
    """The newest entries, while they are shown: each is asked for once."""
    while True:
        view, address = live.following.view, live.following.address
        if live.state.pane is Pane.LOG and view is not None and address is not None:
            entries = live.history.entries
            first = max(view.raft.first_index, view.raft.commit_index - ENTRIES + 1, 1)
            if entries and entries[-1].index <= view.raft.commit_index:
                first = max(first, entries[-1].index + 1)
            try:
                async with ControlClient(address, live.timeout_s) as client:
                    page = await client.log(first, ENTRIES)
                live.history.read(page.entries, Names(view))
            except (ControlError, DocumentError) as error:
                live.state = replace(live.state, notice=str(error))
        await trio.sleep(ASK_EVERY_S)


async def _carry_out(live: LiveView) -> None:
    """Have the node do what was ordered, one after the other, and tell what became of it."""
    while True:
        await live.ordered.wait()
        live.ordered = trio.Event()
        while live.orders:
            order, address = live.orders.pop(0), live.following.address
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
    """What carries an order out, and says what was done."""

    async def ask(client: ControlClient) -> str:
        match order:
            case Transfer(name):
                return f"{await client.transfer(name)} leads now."
            case Exclude(destinations, excluded):
                texts = [
                    (await client.command(CommandRequest(exclusion=ExclusionOrder(each, excluded)))).text
                    for each in destinations
                ]
                return "; ".join(texts)
            case Evict(node_id, name):
                evicted = await client.evict_node(node_id)
                return f"{name} is out; keys of era {evicted.era} are sealed for {evicted.sealed_for} members."
            case Leave(name):
                await client.leave()
                return f"{name} leaves the farm and stops."
            case Quit():
                return ""
            case _:
                assert_never(order)

    return ask
