"""The web page in Chromium, and its script in Node.js, with a control endpoint."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import trio

from bridge.api.alarms import by_gravity
from bridge.api.events import ALARM_RAISED, LEADER_ELECTED, MEMBER_SUSPECT, VERDICT_CHANGED
from bridge.api.view import SHOWN, AlarmView, ServerRole
from bridge.api.words import MEMBER_COLUMNS
from bridge.node.control import page
from bridge.node.control.page import joined
from tests.browser import CHROMIUM, MISSING, Browser, Tab
from tests.end_to_end.farm import local_farm
from tests.gallery.page import open_page, signal_to
from tests.node.test_control_page import ServedPage, serving
from tests.operator_history import flapping, history, row, sights
from tests.operator_states import healthy
from tests.operator_views import CHOICES

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
NODE_JS = shutil.which("node")
LIVE = "document.getElementById('state').textContent === 'live' && !document.getElementById('farm').hidden"
DRAWN = f"{LIVE} && document.querySelector('#timeline svg') && document.querySelector('#sights table')"
T = TypeVar("T")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(MISSING)
    with Browser() as started:
        yield started


@asynccontextmanager
async def full_page(directory: Path, names: tuple[str, ...]) -> AsyncIterator[ServedPage]:
    """Serve a page with a made-up history and made-up views of these nodes."""
    now_ms = time.time_ns() // 1_000_000
    documents = {"/v1/history": history(now_ms, names), "/v1/views": sights(now_ms, names, odd=names[2])}
    async with serving(directory, documents=documents) as served:
        yield served


def address(served: ServedPage) -> str:
    return f"https://127.0.0.1:{served.server.remote_port}/#token={served.token}"


async def in_tab(
    browser: Browser, served: ServedPage, use: Callable[[Tab], T], *, width: int = 1280, dark: bool = False
) -> T:
    """Open the page, and return the result of a function that uses its tab."""

    def used() -> T:
        tab = browser.open(address(served), width, dark=dark)
        tab.wait(LIVE)
        found = use(tab)
        assert tab.problems == []
        return found

    return await trio.to_thread.run_sync(used)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["light", "phone-dark"])
async def test_page_shows_hostile_names_as_text(tmp_path: Path, browser: Browser, width: int, *, dark: bool) -> None:
    names = ("node-1", HOSTILE, "node-3")
    async with full_page(tmp_path, names) as served:
        view = served.node.current
        members = (view.members[0], msgspec.structs.replace(view.members[1], name=HOSTILE), *view.members[2:])
        alarms = (AlarmView("certificate", HOSTILE, HOSTILE),)
        served.node.current = msgspec.structs.replace(view, members=members, alarms=alarms)
        served.node.events.append(ALARM_RAISED, {"alarm": HOSTILE, "text": HOSTILE})

        def check(tab: Tab) -> None:
            tab.wait(DRAWN)
            tab.wait("document.querySelectorAll('#events li').length")
            assert tab.evaluate("document.querySelectorAll('img, iframe, object, link[rel=stylesheet]').length") == 0
            assert tab.evaluate("document.scripts.length") == 1
            for card in ("alarms", "timeline", "charts", "members", "sights", "events"):
                assert HOSTILE in tab.evaluate(f"document.getElementById('{card}').textContent"), card
            assert view.verdict.text in tab.text()
            light = int(tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]"))
            assert light < 64 if dark else light > 192
            assert tab.evaluate("[...document.querySelectorAll('button')].every(each => each.textContent.trim())")
            # On a phone the rows of each table become cards, and nothing is cut.
            parts = "html" if width == 1280 else "html, .scroll, td"
            wide = "each => each.clientWidth && each.scrollWidth > each.clientWidth"
            assert tab.evaluate(f"[...document.querySelectorAll('{parts}')].filter({wide}).length") == 0

        await in_tab(browser, served, check, width=width, dark=dark)


async def test_node_with_name_of_inherited_property_is_a_member(tmp_path: Path, browser: Browser) -> None:
    """A node that does not list the new node `constructor` does not count as a disagreement.

    Views from before a change of this node's verdict do not count as an agreement.
    """
    now_ms, names = time.time_ns() // 1_000_000, ("node-1", "constructor", "node-3")
    documents = {"/v1/history": history(now_ms, names), "/v1/views": sights(now_ms, names)}
    del documents["/v1/views"]["nodes"][0]["members"]["constructor"]
    async with serving(tmp_path, documents=documents) as served:

        def check(tab: Tab) -> str:
            tab.wait("document.getElementById('sights').textContent.includes('constructor')")
            assert "The farm has changed since; the views follow." in tab.text()
            served.node.current = healthy()
            tab.wait("!document.querySelector('#sights table.old')")
            return str(tab.evaluate("document.getElementById('sights').textContent"))

        text = await in_tab(browser, served, check)
        assert "All 3 nodes that answered see the same" in text
        assert "function" not in text


async def test_page_shows_critical_alarm_before_members(tmp_path: Path, browser: Browser) -> None:
    async with full_page(tmp_path, ("node-1", "node-2", "node-3")) as served:
        kinds = ("certificate", "no-quorum")
        verdict = served.node.current.verdict.text
        alarms = by_gravity(
            (
                AlarmView("servers-down", verdict, "do it"),
                *(AlarmView(each, f"text of {each}", "do it") for each in kinds),
            )
        )
        first, *others = served.node.current.members
        members = (first, *(msgspec.structs.replace(each, rtt_ms=7.0, evicted=True) for each in others))
        served.node.current = msgspec.structs.replace(served.node.current, alarms=alarms, members=members)
        shown = await in_tab(browser, served, Tab.text)
    places = [shown.index(text) for text in ("✕ no-quorum: text", "! certificate: text", "Round trip")]
    assert places == sorted(places)
    assert "servers-down: see above" in shown
    assert shown.count(verdict) == 1
    assert "7 ms" in shown
    assert "7.0 ms" not in shown
    assert "evicted" in shown


async def test_page_of_node_without_history_shows_rest(tmp_path: Path, browser: Browser) -> None:
    async with serving(tmp_path) as served:

        def text(tab: Tab) -> str:
            for card in ("sights", "past-problem"):
                tab.wait(f"document.getElementById('{card}').textContent.includes('newer version')")
            assert tab.evaluate("document.getElementById('past').hidden")
            # The browser itself reports both replies with 404 in its console.
            assert all("404" in each for each in tab.problems)
            tab.problems.clear()
            return tab.text()

        shown = await in_tab(browser, served, text)
    assert "no history: this node does not have it; nodes of a newer version do" in shown
    assert "no view of the other nodes: this node does not have it" in shown
    assert "node-2" in shown


async def test_timeline_shows_details_by_keyboard_and_mouse(tmp_path: Path, browser: Browser) -> None:
    async with full_page(tmp_path, ("node-1", "node-2", "node-3")) as served:

        def check(tab: Tab) -> None:
            tab.wait(DRAWN)
            tab.evaluate("document.getElementById('timeline').focus()")
            spoken = "document.getElementById('spoken').textContent"
            for _ in range(4):
                tab.press("ArrowDown")
            assert tab.evaluate(spoken).startswith("node-2: alive")
            tab.press("ArrowLeft")
            tab.press("ArrowLeft")
            assert tab.evaluate(spoken).startswith("node-2: dead")
            tab.point("#timeline [data-row='1']", 0.98)
            assert tab.evaluate("document.getElementById('tip').textContent").startswith("Leader: node-1")
            tab.point("#charts svg", 0.9)
            assert "node-2: " in tab.evaluate("document.getElementById('tip').textContent")
            tab.click("#changes-box summary")
            tab.wait("document.getElementById('changes').textContent.includes('node-2: dead')")

        await in_tab(browser, served, check)


async def test_event_filter_and_links_lead_to_member(tmp_path: Path, browser: Browser) -> None:
    async with full_page(tmp_path, ("node-1", "node-2", "node-3")) as served:
        served.node.events.append(LEADER_ELECTED, {"term": 3})
        served.node.events.append(MEMBER_SUSPECT, {"member": "node-2"})
        served.node.events.append(VERDICT_CHANGED, {"kind": "no-quorum", "text": "No quorum", "severity": "critical"})

        def check(tab: Tab) -> None:
            rows = "[...document.querySelectorAll('#events li')].map(each => each.textContent)"
            tab.wait("document.querySelectorAll('#events li').length === 3")
            tab.click("[data-least=warning]")
            assert len(tab.evaluate(rows)) == 2
            tab.click("[data-least=critical]")
            assert tab.evaluate(rows)[0].endswith("No quorum")
            tab.click("[data-least=all]")
            tab.evaluate("filter.value = 'suspect'; filter.dispatchEvent(new Event('input'))")
            tab.wait(f"{rows}.length === 1")
            assert tab.evaluate("document.querySelector('#events li').className") == ""
            tab.click("#events button[data-member='node-2']")
            assert tab.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
            assert "Incarnation" in tab.evaluate("document.getElementById('members').innerText")
            tab.click("#members button.term")
            # A late scroll event closes the explanation, so a hidden text counts too.
            explained = tab.evaluate("document.getElementById('explain').textContent")
            assert "failures, by SWIM over UDP" in explained

        await in_tab(browser, served, check)


async def test_page_shows_reasons_of_leaves_and_choices(tmp_path: Path, browser: Browser) -> None:
    async with full_page(tmp_path, ("node-1", "node-2", "node-3")) as served:

        def check(tab: Tab) -> None:
            cause = "unhealthy: its server is down or does not report"
            assert "4 of 5 healthy" in tab.text()
            leaves = "[...document.querySelectorAll('#leaves tbody tr')].map(each => each.textContent)"
            dead, *alive = tab.evaluate(leaves)
            assert dead.startswith("node-5")
            assert cause in dead
            assert dead.count("in its last report: ● holds") == 3
            assert not any(cause in each or "in its last report" in each for each in alive)
            first = alive[0]
            assert "● holds for 12 min 30 s" in first
            assert "last error: Connection refused" in first
            published = tab.evaluate("document.getElementById('published').textContent")
            assert CHOICES[2] in published
            assert "uptime7m30s130 of 200" in published
            tab.click("[data-toggle='0000000000000005']")
            detail = tab.evaluate("document.getElementById('members').textContent")
            assert cause in detail
            assert "in its last report: 1 of 1 healthy" in detail

        await in_tab(browser, served, check)


async def test_page_shows_declared_figures_and_headings(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = replace(SHOWN[-1], name="destinations", label="invented figure")
    status = msgspec.structs.replace(MEMBER_COLUMNS["status"], title="invented heading")
    monkeypatch.setattr(page, "SHOWN", (*SHOWN, declared))
    monkeypatch.setattr(page, "MEMBER_COLUMNS", {**MEMBER_COLUMNS, "status": status})
    monkeypatch.setattr(page, "_page", page._page.__wrapped__)  # Without the page that other tests have cached.
    async with full_page(tmp_path, ("node-1", "node-2", "node-3")) as served:

        def detail(tab: Tab) -> str:
            tab.click("[data-toggle='0000000000000001']")
            return str(tab.evaluate("document.getElementById('members').textContent"))

        shown = await in_tab(browser, served, detail)
    assert "Nameinvented headingRaft" in shown
    assert "Figuresjob lag 0.40 ms, machine CPU 3.5 %, machine RAM 41 %, invented figure 1 %" in shown


async def test_thousands_of_spans_draw_few_elements(tmp_path: Path, browser: Browser) -> None:
    names = tuple(f"node-{each}" for each in range(1, 65))
    now_ms = time.time_ns() // 1_000_000
    day = history(now_ms, names)
    day["rows"] = [each for each in day["rows"] if each["kind"] != "node"]
    day["rows"] += [row("node", name, flapping(now_ms - 86_400_000, now_ms, 250)) for name in names]
    day["spansLeftOut"] = 7
    documents = {"/v1/history": day, "/v1/views": sights(now_ms, names, odd="node-3", silent=("node-9",))}
    async with serving(tmp_path, documents=documents) as served:
        view = served.node.current
        many = (
            msgspec.structs.replace(view.members[0], node_id=f"{each:016x}", is_self=False)
            for each in range(100, 2_100)  # The ids of the other members are lower.
        )
        minor = tuple(msgspec.structs.replace(each, raft_id=None, server_role=ServerRole.NONE) for each in many)
        served.node.current = msgspec.structs.replace(view, members=(*minor, *view.members))
        for _ in range(600):
            served.node.events.append(MEMBER_SUSPECT, {"member": "node-2"})

        def check(tab: Tab) -> None:
            tab.wait(DRAWN)
            tab.wait("document.querySelectorAll('#events li').length === 500")
            drawn = "document.querySelectorAll('#timeline svg *').length"
            assert tab.evaluate(drawn) < 500
            assert "7 older changes left out" in tab.text()
            assert tab.evaluate("document.querySelectorAll('#charts svg *').length") < 120
            assert tab.evaluate("document.querySelectorAll('#sights tbody tr').length") == 2
            assert tab.evaluate("document.querySelectorAll('#members tbody tr').length") == 100
            shown = tab.evaluate("document.getElementById('members').textContent")
            assert "node-5" in shown, "servers and dead members come first"
            assert "and 1905 more" in shown
            tab.click("#rows-more")
            assert tab.evaluate(drawn) < 1500

        await in_tab(browser, served, check)


def test_page_shows_stopped_and_killed_nodes(tmp_path: Path, browser: Browser) -> None:
    with local_farm(tmp_path / "farm", 3) as farm:
        shown, second, third = farm.nodes
        address_of_page = open_page(shown)
        farm.start_all()
        farm.wait_settled()
        tab = browser.open(address_of_page())
        tab.wait(f"{LIVE} && document.getElementById('verdict').className === 'ok'")
        signal_to(second, signal.SIGSTOP)
        row_of = (
            "[...document.querySelectorAll('#members tr')].find(each => each.textContent.includes('{}')).textContent"
        )
        tab.wait(f"/suspect|dead/.test({row_of.format(second.name)})")
        signal_to(second, signal.SIGCONT)
        tab.wait("document.getElementById('verdict').className === 'ok'")
        third.kill()
        tab.wait(f"/dead/.test({row_of.format(third.name)})")
        tab.wait("document.getElementById('verdict').className === 'warning'")
        signal_to(shown, signal.SIGSTOP)
        tab.wait("document.body.className === 'stale'")
        assert "the node does not answer; the page shows old data" in tab.text()
        signal_to(shown, signal.SIGCONT)
        tab.wait(f"{LIVE} && document.body.className === ''")
        shown.kill()
        tab.wait("document.body.className === 'stale'")
        assert "not connected since" in tab.text()
        assert f"{third.name}\t" in tab.text()


@pytest.mark.skipif(NODE_JS is None, reason="node is not installed (Debian: apt-get install nodejs)")
@pytest.mark.parametrize("has_stream", [True, False], ids=["stream", "no-answer"])
def test_page_of_hanging_node_is_not_live(tmp_path: Path, *, has_stream: bool) -> None:
    """Without a frame for 6 s, the page shows the time of the last one. After 30 s it closes the connection."""
    script, file = Path(__file__).with_name("page_silence.js"), tmp_path / "page.html"
    file.write_text(joined(), encoding="utf-8")
    arguments = [str(NODE_JS), str(script), str(file), *([] if has_stream else ["unanswered"])]
    ran = subprocess.run(
        arguments, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "TZ": "UTC"}
    )
    old = "the node does not answer; the page shows old data"
    hangs = "the node does not answer; is it stopped or overloaded?"
    first, later = f"not live since 10:00:00 (7 s ago): {old}", f"not live since 10:00:06 (31 s ago): {old}"
    assert json.loads(ran.stdout) == (["live", first, "live", later, 1] if has_stream else ["", hangs, hangs, 1])
