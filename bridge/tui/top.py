"""The two live views: of the farm as one node sees it (`top`), and of a whole local farm (`up`).

Asking the node and drawing are tasks of their own: a node that is slow to answer never freezes the screen.

    ask the node that answered last ── no answer ──▶ ask the others in turn ── none answers ──▶ show why

The screen shows the farm, not one process: a node that died must not take the view of the others with it. While another
node is shown than the one that was meant, an alarm line says so. There is no changing back as long as that one answers:
a node that comes and goes would make the picture jump.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio
from msgspec.structs import replace
from rich.console import Console, RenderableType

from bridge.api.json import DocumentError
from bridge.api.view import AlarmView, FarmView, LocalFarmView
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.control.node_address import NodeAddress
from bridge.tui.render import render, render_local_farm, render_message
from bridge.tui.screen import show

ASK_EVERY_S = 0.5
ANSWER_TIMEOUT_S = 5.0
CHANGED_OVER = "changed-over"
"""Not an alarm of a node: the view's own, that it asks another one."""


async def show_farm(nodes: Callable[[], Sequence[NodeAddress]], console: Console | None = None) -> None:
    """The farm as the first of `nodes` that answers sees it, until the operator quits.

    `nodes` are asked for at each change; a `ControlError` says that there is none.
    """
    shown = console or Console()
    latest: list[FarmView | str] = ["asking a node …"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_asking, nodes, latest)
        await show(lambda width, height: _picture(latest[0], width, height, shown), shown)
        nursery.cancel_scope.cancel()


async def show_local_farm(picture: Callable[[], LocalFarmView], console: Console | None = None) -> None:
    """All processes of a local farm, until the operator quits."""
    shown = console or Console()
    color = _has_color(shown)
    await show(lambda width, height: render_local_farm(picture(), width, height, color=color), shown)


async def keep_asking(nodes: Callable[[], Sequence[NodeAddress]], latest: list[FarmView | str]) -> None:
    """Keep what is latest in `latest[0]`: a view, or why there is none."""
    shown: NodeAddress | None = None
    while True:
        reason = ""
        try:
            known = nodes()
        except ControlError as error:
            known, reason = (), str(error)
        for address in sorted(known, key=lambda each: each != shown):
            lost = await _follow(address, latest, is_meant=address == known[0], why_not=reason)
            if lost.answered:
                shown = address
                break
            reason = reason or lost.reason
        else:
            latest[0] = reason
            await trio.sleep(ASK_EVERY_S)


@dataclass(frozen=True, slots=True)
class _Lost:
    """How it ended that a node was asked."""

    reason: str
    answered: bool
    """It had answered before."""


async def _follow(address: NodeAddress, latest: list[FarmView | str], *, is_meant: bool, why_not: str) -> _Lost:
    """Show what one node sees until it does not answer. `why_not`: the reason of the node that was asked before it."""
    answered = False
    async with ControlClient(address, ANSWER_TIMEOUT_S) as client:
        while True:
            try:
                view = await client.view()
            except (ControlError, DocumentError) as error:
                return _Lost(str(error), answered)
            answered = True
            latest[0] = view if is_meant else _noted(view, why_not)
            await trio.sleep(ASK_EVERY_S)


def _noted(view: FarmView, why_not: str) -> FarmView:
    """The view of a node that stands in for the one that was meant."""
    note = AlarmView(CHANGED_OVER, f"this is what {view.node.name} sees", why_not or "the node that was meant is back")
    return replace(view, alarms=(note, *view.alarms))


def _picture(latest: FarmView | str, width: int, height: int, console: Console) -> RenderableType:
    color = _has_color(console)
    if isinstance(latest, str):
        return render_message(latest, width, height, color=color)
    return render(latest, width, height, color=color)


def _has_color(console: Console) -> bool:
    return console.color_system is not None and not console.no_color
