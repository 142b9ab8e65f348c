"""Pictures of the live view and of `garlicfarm up`, with real processes on loopback.

    three nodes create a farm ─▶ the live view follows them ─▶ each pane at three sizes, as SVG
    kill -9 of the leader      ─▶ the take-over in `top`, and the local farm in `up`

View, history and panes come from `garlicfarm top`; only the terminal is replaced by a recording terminal.
"""

import re
import tempfile
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.text import Text

from bridge.api.view import LocalFarmView, ProcessView
from bridge.tui.state import Pane, ViewState
from bridge.tui.top import LiveView, keep_watching
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, local_farm
from tests.reference.site import GALLERY

SIZES: Final = ((80, 24), (120, 40), (200, 50))
WATCHED_S: Final = 12.0
"""Seconds before the pictures are taken: the charts of round trips grow with each second."""
LOG_READ_S: Final = 2.5
PANES: Final = {
    Pane.FARM: "The farm: the verdict first, then members, publications, and events",
    Pane.DETAIL: "A member in detail",
    Pane.EVENTS: "Events of the whole farm, each fact once",
    Pane.LOG: "The log, as sentences",
    Pane.PUBLISHING: "Publications, and candidates for the publisher",
    Pane.HELP: "All keys",
}
_FONT_OF_ANOTHER_PLACE: Final = re.compile(r"@font-face \{.*?\}", re.DOTALL)
Picture = tuple[str, str]
"""The name of the file, and its caption."""


def pictures() -> Iterator[Picture]:
    """Write every picture, and yield it with its caption."""
    with (
        tempfile.TemporaryDirectory(prefix="garlicfarm-gallery-") as scratch,
        local_farm(Path(scratch) / "farm-state", 3) as farm,
    ):
        for node in farm.nodes:
            node.start(anew=True)
        leader = farm.wait_settled()
        yield from _of_panes(farm)
        leader.kill()
        yield from _of_take_over(farm)


def _of_panes(farm: Farm) -> Iterator[Picture]:
    """Yield every pane of a healthy farm."""
    live = _watched([node.socket for node in farm.nodes], WATCHED_S)
    live.press("down")
    for pane, text in PANES.items():
        live.state = ViewState(pane=pane, selected=live.state.selected)
        yield from _at_every_size(pane.value, text, live)


def _of_take_over(farm: Farm) -> Iterator[Picture]:
    """Yield `top` and `up` after the leader was killed."""
    farm.wait_until(lambda: farm.leader() is not None, START_BOUND_S, "another one leads")
    live = _watched([node.socket for node in farm.running], WATCHED_S)
    yield from _at_every_size("take-over", "After kill -9 of the leader: the new leader, and the time", live)
    live.local = LocalFarmView(
        0,
        str(farm.directory.relative_to(farm.directory.parent)),
        tuple(_process(node) for node in farm.nodes),
        "demonstration: throwaway keys, nothing leaves this machine",
    )
    yield from _at_every_size("up", "garlicfarm up: all nodes of a demonstration on one machine", live)


def _process(node: Node) -> ProcessView:
    if node.running:
        return ProcessView(node.name, node.pid, running=True, detail="", view=node.view())
    return ProcessView(node.name, None, running=False, detail="killed by signal 9", view=None)


def _watched(sockets: list[Path], seconds: float) -> LiveView:
    """Return the live view after it has watched the farm for `seconds`, and has read the log."""
    live = LiveView()

    async def watch() -> None:
        with trio.move_on_after(seconds):
            await keep_watching(lambda: sockets, live)
        live.state = ViewState(pane=Pane.LOG)
        with trio.move_on_after(LOG_READ_S):
            await keep_watching(lambda: sockets, live)

    trio.run(watch)
    live.state = ViewState()
    return live


def _at_every_size(name: str, text: str, live: LiveView) -> Iterator[Picture]:
    for width, height in SIZES:
        file = GALLERY / f"top-{name}-{width}x{height}.svg"
        console = Console(
            width=width,
            height=height,
            record=True,
            file=StringIO(),
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
        )
        console.print(Text("\n", end="").join(live.lines(width, height)), end="")
        drawn = console.export_svg(title=f"garlicfarm, {width} x {height}", unique_id=file.stem)
        file.write_text(_FONT_OF_ANOTHER_PLACE.sub("", drawn), encoding="utf-8")
        yield file.name, f"{text} ({width} x {height})"
