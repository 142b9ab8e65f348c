"""A tracer checks each hop of the walk "A view" of `docs/reference/walks.md`, and the number of hops."""

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import pytest
import trio

from bridge.api.view import FarmView
from bridge.node.app import Node
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.local.farm_files import prepare
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.node.settings.configuration import load_configuration
from tests.node.walk_tracer import BOUNDARY, Walk

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "walks.md"
HOPS_MAX = 20
ROW = re.compile(
    r"^\| \d+ \| \[`[\w.]+`\]\((?:\.\./)+((?:bridge|gossip|consensus)/[\w/]+\.py)#([\w.]+)\)", re.MULTILINE
)
FIRST: Final = ("bridge.node.control.server", "ControlServer._serve")
"""The task of the connection that requests the view."""
STATIONS: Final = frozenset(
    {
        "ControlServer._read_request",
        "Membership.describe",
        "Counters.describe",
        "Raft.describe",
        "PeerLinks.describe",
        "MemberDirectory.metadata_of",
        "Alarms.active",
        "EventLog.recent",
        "candidates_of",
        "lease_set_entries",
        "encode",
        "ControlServer._write",
    }
)
"""The sources of the parts of the view, and the destinations of its bytes."""


@contextmanager
def recording() -> Iterator[Walk]:
    """Record the calls of the task of a connection to the control endpoint."""
    walk = Walk(STATIONS)

    def called(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or _name(frame) not in STATIONS:
            return
        stack = []
        caller: FrameType | None = frame
        while caller is not None:
            module = str(caller.f_globals.get("__name__", ""))
            if module.startswith(("bridge.", "gossip.", "consensus.")) and _name(caller) != BOUNDARY:
                stack.append((module, _name(caller)))
            caller = caller.f_back
        if stack[-1] == FIRST:
            walk.record(_name(frame), stack[::-1])

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield walk
    finally:
        sys.setprofile(before)


def _name(frame: FrameType) -> str:
    """Return the function's dotted name; a nested function counts as its parent."""
    return frame.f_code.co_qualname.partition(".<locals>")[0]


def listed_hops() -> list[tuple[str, str]]:
    """Return the module and function of each row of the document."""
    chapter = DOCUMENT.read_text(encoding="utf-8").split("\n## A view\n", 1)[1].split("\n#", 1)[0]
    return [(path.removesuffix(".py").replace("/", "."), function) for path, function in ROW.findall(chapter)]


async def published_view(client: ControlClient) -> FarmView | None:
    try:
        view = await client.view()
    except ControlError:
        return None
    return view if any(each.entries for each in view.publishing) else None


@pytest.fixture
def _restored_signals() -> Iterator[None]:
    """Restore the signal handlers: when both nodes of the process have ended, the first node's handlers remain."""
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in handlers.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("_restored_signals")
async def test_traced_walk_matches_document_within_twenty_hops(tmp_path: Path) -> None:
    farm = prepare(tmp_path, 2)

    async def run_node(file: Path) -> None:
        configuration = load_configuration(file)
        await Node(configuration, configuration, lambda _: None).run(stop_with_stdin=False)

    async with trio.open_nursery() as nursery:
        # Given a farm of two nodes that publishes
        for each in farm.nodes:
            nursery.start_soon(run_node, each.configuration_file)
        async with ControlClient(farm.nodes[0].directory / SOCKET_NAME) as client:
            with trio.fail_after(60):
                while await published_view(client) is None:  # noqa: ASYNC110 - a call sets no event
                    await trio.sleep(0.1)
                # When one of them receives a request for its view
                with recording() as walk:
                    await client.view()
        nursery.cancel_scope.cancel()
    # Then the request and the view have passed the functions of the document
    assert walk.stations == walk.reached
    rows = listed_hops()
    assert 0 < len(rows) <= HOPS_MAX
    seen = {(module, function) for (_, module), functions in walk.hops.items() for function in functions}
    assert [row for row in rows if row not in seen] == []
    omitted = [
        (into, names) for (_, into), names in walk.hops.items() if not any((into, name) in rows for name in names)
    ]
    assert omitted == []
    assert len(rows) == len(walk.hops)
