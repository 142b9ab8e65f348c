"""Pictures of the page for browsers, from a farm of real processes on loopback."""

import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.browser import CHROMIUM, MISSING, Browser
from tests.end_to_end.farm import Node, local_farm
from tests.end_to_end.settings import LOOPBACK, free_port
from tests.reference.site import GALLERY

WIDTHS: Final = (1280, 390)


def pictures() -> Iterator[tuple[str, str]]:
    """Write every picture, and yield it with its caption."""
    if CHROMIUM is None:
        sys.stdout.write(f"the page for browsers is skipped: {MISSING}\n")
        return
    with (
        tempfile.TemporaryDirectory(prefix="garlicfarm-gallery-") as scratch,
        local_farm(Path(scratch) / "farm-state", 3) as farm,
        Browser() as browser,
    ):
        address = open_page(farm.nodes[0])
        for node in farm.nodes:
            node.start(anew=True)
        farm.wait_settled()
        for width in WIDTHS:
            tab = browser.open(address(), width)
            tab.wait("document.getElementById('state').textContent === 'live'")
            file = GALLERY / f"page-{width}.png"
            tab.picture(file)
            yield file.name, f"The page for browsers, {width} pixels wide"


def open_page(node: Node) -> Callable[[], str]:
    """Enable a node's page for browsers; return a function for its address with the token, once the node runs."""
    listen = f"{LOOPBACK}:{free_port(socket.SOCK_STREAM)}"
    settings = f'[control]\nlisten = "{listen}"\npage = true\n'
    node.configuration.write_text(f"{node.configuration.read_text()}\n{settings}")
    return lambda: f"https://{listen}/#token={(node.directory / 'control.read.token').read_text().strip()}"
