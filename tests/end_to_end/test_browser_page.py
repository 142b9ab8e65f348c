"""The web page in Chromium, and its script in Node.js, with a control endpoint."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import trio

from bridge.api.alarms import by_gravity
from bridge.api.view import AlarmView
from bridge.node.control import page as page_module
from tests.node.test_control_page import ServedPage, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HEADLESS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--ignore-certificate-errors"),
)
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
NODE_JS = shutil.which("node")
PAGE_FILE = Path(page_module.__file__).with_name("page.html")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 390])
async def test_browser_shows_farm_and_escapes_names(tmp_path: Path, width: int) -> None:
    async with serving(tmp_path) as served:
        view = served.node.current
        members = tuple(msgspec.structs.replace(each, name=HOSTILE) for each in view.members[:1]) + view.members[1:]
        served.node.current = msgspec.structs.replace(view, members=members)
        served.node.events.append("alarm-raised", {"text": HOSTILE})
        address = f"https://127.0.0.1:{served.server.remote_port}/#token={served.token}"
        options = (
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900",
            "--virtual-time-budget=5000",
        )
        browser = await trio.run_process(
            [str(CHROMIUM), *HEADLESS, *options, "--dump-dom", address],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        shown = browser.stdout.decode()
        assert browser.returncode == 0, browser.stderr[-2000:]
        assert view.verdict.text in shown, browser.stderr[-2000:]
        assert "node-2" in shown
        assert shown.count("&lt;img src=x onerror=alert(1)&gt;") >= 2
        assert "<img" not in shown


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
async def test_browser_shows_critical_alarm_before_members(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        kinds = ("certificate", "no-quorum")
        alarms = by_gravity(AlarmView(kind, f"text of {kind}", "do it") for kind in kinds)
        first, *others = served.node.current.members
        members = (first, *(msgspec.structs.replace(each, rtt_ms=7.0, evicted=True) for each in others))
        served.node.current = msgspec.structs.replace(served.node.current, alarms=alarms, members=members)
        shown = await dom_of(served, tmp_path)
    places = [shown.index(f"text of {kind}") for kind in ("no-quorum", "certificate")]
    assert places == sorted(places)
    assert places[1] < shown.index('id="members"')
    assert '<li class="critical">✕ no-quorum' in shown
    assert '<li class="warning">! certificate' in shown
    assert "7 ms" in shown
    assert "7.0 ms" not in shown
    assert ">evicted<" in shown


async def dom_of(served: ServedPage, directory: Path) -> str:
    """Return the page's DOM after the browser has shown the view."""
    address = f"https://127.0.0.1:{served.server.remote_port}/#token={served.token}"
    options = (f"--user-data-dir={directory / 'profile'}", "--window-size=1280,900", "--virtual-time-budget=5000")
    browser = await trio.run_process(
        [str(CHROMIUM), *HEADLESS, *options, "--dump-dom", address], capture_stdout=True, capture_stderr=True
    )
    return browser.stdout.decode()


@pytest.mark.skipif(NODE_JS is None, reason="node is not installed (Debian: apt-get install nodejs)")
@pytest.mark.parametrize("has_stream", [True, False], ids=["stream", "no-answer"])
def test_page_of_hanging_node_is_not_live(*, has_stream: bool) -> None:
    """Without a frame for 6 s, the page shows the time of the last one. After 30 s it closes the connection."""
    script = Path(__file__).with_name("page_silence.js")
    arguments = [str(NODE_JS), str(script), str(PAGE_FILE), *([] if has_stream else ["unanswered"])]
    ran = subprocess.run(
        arguments, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "TZ": "UTC"}
    )
    old = "the node does not answer; the page shows old data"
    hangs = "the node does not answer; is it stopped or overloaded?"
    first, later = f"not live since 10:00:00: {old}", f"not live since 10:00:06: {old}"
    assert json.loads(ran.stdout) == (["live", first, "live", later, 1] if has_stream else ["", hangs, hangs, 1])
