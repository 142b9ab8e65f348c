"""Pictures of the live view and the page for browsers, with real processes on loopback (`make gallery`: build/gallery).

    three nodes create a farm ─▶ the live view follows them ─▶ each pane at three sizes, as SVG
                               ─▶ chromium opens the page of a node, wide and narrow, as PNG
    kill -9 of the leader      ─▶ the take-over in `top`, and the local farm in `up`

The view, its history and its panes are the ones of `garlicfarm top`; only the terminal is replaced by a recording one.
The repository does not contain the pictures, since each run makes different ones. A site built afterwards has them as a
page (`tests/reference/site.py`).
"""

import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Final

import trio
from rich.console import Console

from bridge.api.view import LocalFarmView, ProcessView
from bridge.tui.state import Pane, ViewState
from bridge.tui.top import LiveView, keep_watching
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, local_farm
from tests.end_to_end.settings import LOOPBACK, free_port
from tests.reference.site import GALLERY, GALLERY_PAGE

SIZES: Final = ((80, 24), (120, 40), (200, 50))
WIDTHS: Final = (1280, 390)
WATCHED_S: Final = 12.0
"""Seconds before the pictures are taken: the charts of round trips grow with each second."""
LOG_READ_S: Final = 2.5
PAGE_BUDGET_MS: Final = 8_000
CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
BROWSER: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors", "--hide-scrollbars")
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


def take_all() -> None:
    """Take every picture, and write their page."""
    shutil.rmtree(GALLERY, ignore_errors=True)
    GALLERY.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="garlicfarm-gallery-") as scratch:
        directory = Path(scratch) / "farm-state"
        with local_farm(directory, 3) as farm:
            token = _open_page(farm.nodes[0])
            for node in farm.nodes:
                node.start(anew=True)
            leader = farm.wait_settled()
            pictures = [*_of_panes(farm), *_of_page(token)]
            leader.kill()
            pictures += _of_take_over(farm)
    (GALLERY / GALLERY_PAGE).write_text(_page(pictures), encoding="utf-8")


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
        file = GALLERY / f"{name}-{width}x{height}.svg"
        console = Console(
            width=width,
            height=height,
            record=True,
            file=StringIO(),
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
        )
        console.print(live.picture(width, height, color=True, unicode=True), end="")
        drawn = console.export_svg(title=f"garlicfarm, {width} x {height}", unique_id=file.stem)
        file.write_text(_FONT_OF_ANOTHER_PLACE.sub("", drawn), encoding="utf-8")
        yield file.name, f"{text} ({width} x {height})"


def _open_page(node: Node) -> Callable[[], str]:
    """Enable a node's page for browsers; return a function for its address with the token, once the node runs."""
    listen = f"{LOOPBACK}:{free_port(socket.SOCK_STREAM)}"
    settings = f'[control]\nlisten = "{listen}"\npage = true\n'
    node.configuration.write_text(f"{node.configuration.read_text()}\n{settings}")
    return lambda: f"https://{listen}/#token={(node.directory / 'control.read.token').read_text().strip()}"


def _of_page(address: Callable[[], str]) -> Iterator[Picture]:
    """Yield the page for browsers; skip it without a browser."""
    if CHROMIUM is None:
        sys.stdout.write("chromium is missing: the page for browsers is skipped (Debian: apt-get install chromium)\n")
        return
    for width in WIDTHS:
        file = GALLERY / f"page-{width}.png"
        with tempfile.TemporaryDirectory(prefix="garlicfarm-browser-") as profile:
            shown = [f"--user-data-dir={profile}", f"--window-size={width},1400", f"--screenshot={file}"]
            budget = f"--virtual-time-budget={PAGE_BUDGET_MS}"
            command = [str(CHROMIUM), *BROWSER, *shown, budget, address()]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        yield file.name, f"The page for browsers, {width} pixels wide"


def _page(pictures: list[Picture]) -> str:
    shown = "".join(f"\n## {text}\n\n![{text}](gallery/{name})\n" for name, text in pictures)
    return f"# Gallery\n\nA farm of three nodes on one machine, from `make gallery`.\n{shown}"


if __name__ == "__main__":
    take_all()
