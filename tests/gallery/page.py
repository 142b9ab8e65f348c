"""Pictures of the page for browsers in each state, at two widths, and of some in dark.

three real nodes   healthy, another node stopped (SIGSTOP), killed, no quorum, the shown node itself stopped
made-up views      partition, no router, foreign key, full disk (`tests.operator_states`); history and views of all
                   nodes are made up too (`tests.operator_history`)
"""

import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import trio

from bridge.api.events import EVENT_TYPES
from bridge.node.events.event_log import EventLog
from tests.browser import CHROMIUM, MISSING, Browser, Tab
from tests.end_to_end.farm import Node, local_farm
from tests.end_to_end.settings import LOOPBACK, free_port
from tests.node.test_control_page import serving
from tests.operator_history import history, log_tail, sights, trace, up_to
from tests.operator_states import CHANGED_MS, State, moved_to, states
from tests.reference.site import GALLERY

WIDTHS: Final = (1280, 390)
NAMES: Final = ("node-1", "node-2", "node-3")
BOUND_S: Final = 60.0
DRAWN: Final = (
    "document.getElementById('past-problem').textContent !== 'requesting …'"
    " && document.getElementById('sights').textContent !== 'requesting …'"
)
FRESH: Final = "!document.querySelector('#sights table.old')"
"""The views of all nodes are newer than the last change of leader or verdict."""
Picture = tuple[str, str]


def pictures() -> Iterator[Picture]:
    """Write every picture, and yield it with its caption."""
    if CHROMIUM is None:
        sys.stdout.write(f"the page for browsers is skipped: {MISSING}\n")
        return
    with Browser() as browser:
        yield from _of_real_farm(browser)
        for name, state in states().items():
            yield from trio.run(_of_made_up_state, browser, name, state)


def _of_real_farm(browser: Browser) -> Iterator[Picture]:
    with (
        tempfile.TemporaryDirectory(prefix="garlicfarm-gallery-") as scratch,
        local_farm(Path(scratch) / "farm-state", 3) as farm,
    ):
        shown, second, third = farm.nodes
        address = open_page(shown)
        for node in farm.nodes:
            node.start(anew=True)
        farm.wait_settled()
        tabs = [browser.open(address(), width) for width in WIDTHS]
        dark = [browser.open(address(), width, dark=True) for width in WIDTHS]
        for tab in (*tabs, *dark):
            tab.wait(f"document.getElementById('verdict').className === 'ok' && {DRAWN} && {FRESH}", BOUND_S)
        yield from _taken(tabs, "healthy", "Healthy")
        yield from _taken(dark, "healthy-dark", "Healthy, in a dark browser")
        # One node after the other, so that the farm keeps its quorum in the first two states.
        signal_to(second, signal.SIGSTOP)
        _wait_text(tabs, f"[...document.querySelectorAll('#members tr')].some(each => each.key && {_is_down(second)})")
        _wait_text(tabs, f"document.getElementById('verdict').className === 'warning' && {FRESH}")
        yield from _taken(tabs, "stopped", f"{second.name} is stopped (SIGSTOP)")
        signal_to(second, signal.SIGCONT)
        _wait_text(tabs, "document.getElementById('verdict').className === 'ok'")
        third.kill()
        _wait_text(tabs, f"document.getElementById('verdict').className === 'warning' && {FRESH}")
        yield from _taken(tabs, "killed", f"{third.name} is killed")
        second.kill()
        _wait_text(tabs, f"document.getElementById('verdict').className === 'critical' && {FRESH}")
        yield from _taken(tabs, "no-quorum", "Two of three nodes are killed: no quorum")
        signal_to(shown, signal.SIGSTOP)
        _wait_text(tabs, "document.body.className === 'stale'")
        yield from _taken(tabs, "not-live", "The shown node itself is stopped: old data is dimmed")
        signal_to(shown, signal.SIGCONT)


async def _of_made_up_state(browser: Browser, name: str, state: State) -> list[Picture]:
    now_ms = time.time_ns() // 1_000_000
    names = NAMES if state.view.raft.voters else NAMES[:1]
    day = history(now_ms, NAMES) if state.view.raft.voters else {**history(now_ms, NAMES), "fromMs": now_ms, "rows": []}
    silent = tuple(NAMES[each - 1] for each in state.silent)
    views = sights(now_ms, names, silent=silent)
    verdict, raft = state.view.verdict, state.view.raft
    if raft.voters:
        day = up_to(state.view, day, now_ms - CHANGED_MS)
    story = trace(state.view, now_ms, now_ms - CHANGED_MS)
    views["nodes"][0] |= {"verdict": verdict.kind.value, "severity": verdict.severity.value}
    for each in (one for one in views["nodes"] if one["answered"]):
        each.update(leader=raft.leader_name, term=raft.term, commitIndex=raft.commit_index)
    if any(not leaf.healthy for each in state.view.reports for leaf in each.leaves):
        # The log has the report of this leaf, so each node sees it.
        for each in (one for one in views["nodes"] if one["answered"]):
            each.update(verdict=verdict.kind.value, severity=verdict.severity.value)
    if not state.view.publishing:
        views["nodes"][0]["publishers"] = {}
    documents = {"/v1/history": day, "/v1/views": views}
    with tempfile.TemporaryDirectory(prefix="garlicfarm-gallery-") as scratch:
        async with serving(Path(scratch), documents=documents) as served:
            served.node.current = moved_to(state.view, now_ms)
            clock = iter(story)
            served.node.events = EventLog("node-1", lambda: next(clock).time_ms)
            for each in story:
                served.node.events.append(EVENT_TYPES[each.kind], each.data)
            served.node.log = log_tail(state.view, now_ms - (CHANGED_MS if raft.leader_id is None else 4_000))
            address = f"https://{LOOPBACK}:{served.server.remote_port}/#token={served.token}"

            def take() -> list[Picture]:
                tabs = [browser.open(address, width) for width in WIDTHS]
                _wait_text(tabs, DRAWN)
                return list(_taken(tabs, name, f"{state.caption} (made up)"))

            return await trio.to_thread.run_sync(take)


def signal_to(node: Node, number: signal.Signals) -> None:
    assert node.process is not None
    node.process.send_signal(number)


def _is_down(node: Node) -> str:
    return f"each.textContent.includes('{node.name}') && /suspect|dead/.test(each.textContent)"


def _wait_text(tabs: list[Tab], condition: str) -> None:
    for tab in tabs:
        tab.wait(condition, BOUND_S)


def _taken(tabs: list[Tab], name: str, caption: str) -> Iterator[Picture]:
    for tab in tabs:
        tab.wait("!document.getElementById('farm').hidden")
        file = GALLERY / f"page-{name}-{tab.width}.png"
        tab.picture(file)
        yield file.name, f"Page, {tab.width} pixels wide: {caption}"


def open_page(node: Node) -> Callable[[], str]:
    """Enable a node's page for browsers; return a function for its address with the token, once the node runs."""
    listen = f"{LOOPBACK}:{free_port(socket.SOCK_STREAM)}"
    settings = f'[control]\nlisten = "{listen}"\npage = true\n'
    node.configuration.write_text(f"{node.configuration.read_text()}\n{settings}")
    return lambda: f"https://{listen}/#token={(node.directory / 'control.read.token').read_text().strip()}"
