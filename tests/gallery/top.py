"""Pictures of the live view in each state, of several farms, and of `garlicfarm up`, at four sizes.

    three real nodes   healthy: each pane; leader killed; the watched node stopped (SIGSTOP); no quorum; several farms
    made-up views      partition, no router, foreign key, full disk (`tests.operator_states`)

View, history and panes come from `garlicfarm top`; only the terminal is replaced by a recording terminal.
"""

import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.text import Text

from bridge.api.view import LocalFarmView, ProcessView
from bridge.tui.farms import LiveFarms
from bridge.tui.state import Pane, ViewState
from bridge.tui.top import LiveView, keep_watching
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, local_farm
from tests.gallery.page import signal_to
from tests.operator_history import trace
from tests.operator_states import CHANGED_MS, moved_to, states
from tests.reference.site import GALLERY

SIZES: Final = ((60, 20), (80, 24), (120, 40), (200, 50))
WATCHED_S: Final = 12.0
"""Seconds before the pictures are taken: the charts of round trips grow with each second."""
READ_S: Final = 2.5
"""Seconds for the log, and for the history."""
SILENT_S: Final = 8.0
"""Longer than a request to a stopped node lasts."""
PANES: Final = {
    Pane.FARM: "The farm: the verdict first, then members, publications, charts, and events",
    Pane.DETAIL: "A member in detail",
    Pane.EVENTS: "Events of the whole farm, each fact once",
    Pane.LOG: "The log, as sentences",
    Pane.PUBLISHING: "Publications, and candidates for the publisher with the parts of their scores",
    Pane.TIMELINE: "The timeline of the node's history",
    Pane.HELP: "All keys",
}
_FONT_OF_ANOTHER_PLACE: Final = re.compile(r"@font-face \{.*?\}", re.DOTALL)
Picture = tuple[str, str]
"""The name of the file, and its caption."""
Lines = Callable[[int, int], Sequence[Text]]


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
        yield from _of_stopped_node(farm)
        leader.kill()
        yield from _of_take_over(farm)
        farm.running[0].kill()
        live = _watched([farm.running[0].socket], WATCHED_S)
        yield from _at_every_size("no-quorum", "Two of three nodes are killed: no quorum", live.lines)
    for name, state in states().items():
        live = LiveView(clock_s=lambda: 0.0)
        now_ms = time.time_ns() // 1_000_000
        live.take(moved_to(state.view, now_ms))
        live.history.story.add(trace(state.view, now_ms, now_ms - CHANGED_MS))
        live.followed.reason = ""
        yield from _at_every_size(name, f"{state.caption} (made up)", live.lines)


def _of_panes(farm: Farm) -> Iterator[Picture]:
    live = _watched([node.socket for node in farm.nodes], WATCHED_S)
    live.press("down")
    for pane, text in PANES.items():
        live.state = ViewState(pane=pane, selected=live.state.selected)
        yield from _at_every_size(pane.value, text, live.lines)
    live.state = ViewState(selected=live.state.selected)
    live.press("V")
    yield from _at_every_size("question", "An eviction needs the name of the member", live.lines)


def _of_stopped_node(farm: Farm) -> Iterator[Picture]:
    stopped, other = farm.nodes[0], farm.nodes[1]
    live, healthy = _watched([stopped.socket], WATCHED_S), _watched([other.socket], WATCHED_S)
    signal_to(stopped, signal.SIGSTOP)
    try:
        _watch(live, [stopped.socket], SILENT_S)
        yield from _at_every_size(
            "not-live", "The watched node is stopped: old data is dimmed, with its age", live.lines
        )
        _watch(healthy, [other.socket], READ_S)
        lost = LiveView()
        lost.followed.reason = "no node runs at /srv/harbor/control.sock; start one, or name another with --node"
        farms = LiveFarms({"mill": healthy, "cellar": live, "harbor": lost})
        yield from _at_every_size("farms", "Several farms: their verdicts, and the chosen one in short", farms.lines)
    finally:
        signal_to(stopped, signal.SIGCONT)


def _of_take_over(farm: Farm) -> Iterator[Picture]:
    """Yield `top` and `up` after the leader was killed."""
    farm.wait_until(lambda: farm.leader() is not None, START_BOUND_S, "another one leads")
    live = _watched([node.socket for node in farm.running], WATCHED_S)
    yield from _at_every_size("take-over", "After kill -9 of the leader: the new leader, and the time", live.lines)
    live.state = ViewState(pane=Pane.EVENTS)
    yield from _at_every_size("take-over-events", "The events of a take-over, colored by severity", live.lines)
    live.state = ViewState()
    live.local = LocalFarmView(
        0,
        str(farm.directory.relative_to(farm.directory.parent)),
        tuple(_process(node) for node in farm.nodes),
        "demonstration: throwaway keys, nothing leaves this machine",
    )
    yield from _at_every_size("up", "garlicfarm up: all nodes of a demonstration on one machine", live.lines)


def _process(node: Node) -> ProcessView:
    if node.running:
        return ProcessView(node.name, node.pid, running=True, detail="", view=node.view())
    return ProcessView(node.name, None, running=False, detail="ended by SIGKILL", view=None)


def _watched(sockets: list[Path], seconds: float) -> LiveView:
    """Return the live view after it has watched the farm for `seconds`, and has read the log and the history."""
    live = LiveView()
    for pane, seconds_of_pane in ((Pane.FARM, seconds), (Pane.LOG, READ_S), (Pane.TIMELINE, READ_S)):
        live.state = ViewState(pane=pane, hours=1)
        _watch(live, sockets, seconds_of_pane)
    live.state = ViewState()
    return live


def _watch(live: LiveView, sockets: list[Path], seconds: float) -> None:
    async def watch() -> None:
        with trio.move_on_after(seconds):
            await keep_watching(lambda: sockets, live)

    live.clock_s = time.monotonic
    trio.run(watch)
    # The drawing of the pictures takes longer, but they show this moment.
    ended_s = time.monotonic()
    live.clock_s = lambda: ended_s


def _at_every_size(name: str, text: str, lines: Lines) -> Iterator[Picture]:
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
        console.print(Text("\n", end="").join(lines(width, height)), end="")
        drawn = console.export_svg(title=f"garlicfarm, {width} x {height}", unique_id=file.stem)
        file.write_text(_FONT_OF_ANOTHER_PLACE.sub("", drawn), encoding="utf-8")
        yield file.name, f"{text} ({width} x {height})"
