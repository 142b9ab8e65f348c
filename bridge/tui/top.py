"""The two live views: of the farm as one node sees it (`top`), and of a whole local farm (`up`).

Asking the node and drawing are tasks of their own: a node that is slow to answer never freezes the screen, and a node
that stopped leaves the reason on it, until the node is back.
"""

from collections.abc import Callable

import trio
from rich.console import Console, RenderableType

from bridge.api.json import DocumentError
from bridge.api.view import FarmView, LocalFarmView
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.control.node_address import NodeAddress
from bridge.tui.render import render, render_local_farm, render_message
from bridge.tui.screen import show

ASK_EVERY_S = 0.5
ANSWER_TIMEOUT_S = 5.0


async def show_farm(address: NodeAddress, console: Console | None = None) -> None:
    """The farm as the node at `address` sees it, until the operator quits."""
    shown = console or Console()
    latest: list[FarmView | str] = [f"asking {address} …"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_asking, address, latest)
        await show(lambda width, height: _picture(latest[0], width, height, shown), shown)
        nursery.cancel_scope.cancel()


async def show_local_farm(picture: Callable[[], LocalFarmView], console: Console | None = None) -> None:
    """All processes of a local farm, until the operator quits."""
    shown = console or Console()
    color = _has_color(shown)
    await show(lambda width, height: render_local_farm(picture(), width, height, color=color), shown)


async def _keep_asking(address: NodeAddress, latest: list[FarmView | str]) -> None:
    async with ControlClient(address, ANSWER_TIMEOUT_S) as client:
        while True:
            try:
                latest[0] = await client.view()
            except (ControlError, DocumentError) as error:
                latest[0] = str(error)
            await trio.sleep(ASK_EVERY_S)


def _picture(latest: FarmView | str, width: int, height: int, console: Console) -> RenderableType:
    color = _has_color(console)
    if isinstance(latest, str):
        return render_message(latest, width, height, color=color)
    return render(latest, width, height, color=color)


def _has_color(console: Console) -> bool:
    return console.color_system is not None and not console.no_color
