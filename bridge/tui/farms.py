"""Several farms on one screen: their verdicts first, and each of them as `garlicfarm top` shows it.

    farms ─▶ for each: view, orders        always, each second or less often if there are many farms
          ─▶ for the opened one: events, log, lag of the followers
    keys, mouse ─▶ the overview, or the opened farm; Esc in its first pane returns to the overview

Each farm is a separate `LiveView`, so its pane, filter and history stay while another farm is open.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from bridge.node.control.connections.node_address import NodeAddress
from bridge.tui.keys import Button, Input, Mouse
from bridge.tui.layout import COLORS, LEAST_WIDTH, MONOCHROME, Canvas
from bridge.tui.members import farm_charts
from bridge.tui.overview import FarmRow, OverviewState, overview_lines, update_overview
from bridge.tui.screen import show
from bridge.tui.state import ViewState, is_home
from bridge.tui.targets import OnFarm, OnKey, target_at
from bridge.tui.top import (
    QUERY_INTERVAL_S,
    Clicks,
    LiveView,
    capabilities,
    carry_out,
    end_on_signal,
    follow_details,
    keep_current,
)

Nodes = Callable[[], Sequence[NodeAddress]]
SECONDS_OF_EACH_FARM: Final = 0.5
"""Seconds that each farm adds to the time between two queries of a farm, so many farms cost no more than a few."""


@dataclass(slots=True)
class LiveFarms:
    """All farms, and the operator's choices."""

    farms: Mapping[str, LiveView]
    interval_s: float = QUERY_INTERVAL_S
    """Seconds between two queries of a farm that is not open."""
    color: bool = True
    unicode: bool = True
    state: OverviewState = field(default_factory=OverviewState)
    opened: trio.Event = field(default_factory=trio.Event)
    """Set when another farm, or none, was opened."""
    drawn: Sequence[Text] = ()
    clicks: Clicks = field(default_factory=Clicks)
    clock_s: Callable[[], float] = time.monotonic

    @property
    def open_farm(self) -> LiveView | None:
        """Return the farm on the screen; None for the overview."""
        return None if self.state.opened is None else self.farms[self.state.opened]

    @property
    def mouse(self) -> bool:
        """Return True if the view receives the mouse."""
        return self.state.mouse if self.open_farm is None else self.open_farm.mouse

    def rows(self) -> list[FarmRow]:
        """Return one row for each farm."""
        seen = {name: live.data() for name, live in self.farms.items()}
        return [
            FarmRow(
                name=name,
                farm=each.farm,
                age_ms=each.age_ms,
                is_old=each.is_old,
                reason=each.reason,
                charts=() if each.farm is None else tuple(farm_charts(ViewState(), each.farm, each.history)),
            )
            for name, each in seen.items()
        ]

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return the screen now."""
        if self.open_farm is not None:
            return self.open_farm.lines(width, height)
        canvas = Canvas(max(width, LEAST_WIDTH), COLORS if self.color else MONOCHROME)
        self.drawn = overview_lines(self.state, self.rows(), canvas, height, unicode=self.unicode)
        return self.drawn

    def press(self, pressed: Input) -> bool:
        """Process a key or the mouse; return True if the view will end."""
        live = self.open_farm
        if live is None:
            return self._press_overview(pressed)
        if pressed == "escape" and is_home(live.state):
            self._open(None)
            return False
        return live.press(pressed)

    def _press_overview(self, pressed: Input) -> bool:
        key = pressed
        if isinstance(pressed, Mouse):
            key = self._key_of(pressed)
        self.state, opens, ends = update_overview(self.state, str(key), self.rows())
        if opens:
            self._open(self.state.selected)
        return ends

    def _key_of(self, mouse: Mouse) -> str:
        if mouse.button is not Button.LEFT:
            return "up" if mouse.button is Button.WHEEL_UP else "down"
        match target_at(self.drawn, mouse.column, mouse.row):
            case OnKey(key):
                return key
            case OnFarm(name) as target:
                self.state = replace(self.state, selected=name)
                return "enter" if self.clicks.is_double(target, self.clock_s()) else ""
            case _:
                return ""

    def _open(self, name: str | None) -> None:
        if self.open_farm is not None:
            self.open_farm.interval_s = self.interval_s
        self.state = replace(self.state, opened=name)
        if self.open_farm is not None:
            self.open_farm.interval_s = QUERY_INTERVAL_S
        self.opened.set()
        self.opened = trio.Event()


async def show_farms(farms: Mapping[str, Nodes], timeout_s: float, console: Console | None = None) -> None:
    """Show the verdicts of the farms, and each of them on request, until the operator quits."""
    console = console or Console()
    color, unicode = capabilities(console)
    interval_s = max(QUERY_INTERVAL_S, SECONDS_OF_EACH_FARM * len(farms))
    lives = {
        name: LiveView(timeout_s=timeout_s, color=color, unicode=unicode, several=True, interval_s=interval_s)
        for name in farms
    }
    shown = LiveFarms(lives, interval_s, color, unicode)
    async with trio.open_nursery() as nursery:
        for name, nodes in farms.items():
            nursery.start_soon(keep_current, nodes, lives[name])
            nursery.start_soon(carry_out, lives[name])
        nursery.start_soon(_follow_opened, shown, farms)
        nursery.start_soon(end_on_signal, nursery.cancel_scope)
        await show(shown, console)
        nursery.cancel_scope.cancel()


async def _follow_opened(shown: LiveFarms, farms: Mapping[str, Nodes]) -> None:
    """Keep events, log and followers of the opened farm fresh."""
    while True:
        changed, name = shown.opened, shown.state.opened
        async with trio.open_nursery() as nursery:
            if name is not None:
                nursery.start_soon(follow_details, farms[name], shown.farms[name])
            await changed.wait()
            nursery.cancel_scope.cancel()
