"""A headless Chromium for tests and pictures, controlled over two pipes with the DevTools protocol.

    Browser ── commands ──▶ descriptor 3 ── Chromium ── replies, events ──▶ descriptor 4

One process serves several tabs, each with its own profile in memory. A tab has the size and the color scheme of a
device, evaluates expressions, waits for a condition, and makes pictures. `problems` collects errors of the console and
of scripts, and every breach of the page's policy (CSP). The protocol is JSON; each message ends with a zero byte. A
driver from a package would download another browser.
"""

import fcntl
import json
import os
import select
import shutil
import tempfile
import time
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from tests.processes import END_S

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING: Final = "chromium is not installed (Debian: apt-get install chromium)"
OPTIONS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--ignore-certificate-errors"),
    *("--hide-scrollbars", "--remote-debugging-pipe", "--disable-dev-shm-usage"),
)
REPLY_S: Final = 60.0
"""Timeout of a reply: two loaded cores need seconds for a large picture."""
POLL_S: Final = 0.05
READ_BYTES: Final = 1 << 20
PHONE_MAX: Final = 600
"""Widths up to here are emulated as a phone with touch."""
_END: Final = b"\0"


class Browser:
    """The process, and a context manager that ends it."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="garlicfarm-browser-", ignore_cleanup_errors=True)
        down, self._commands = os.pipe()
        self._replies, up = os.pipe()
        # Numbers above 4, so that no pipe gets the place of another one.
        high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (down, up)]
        places = [(os.POSIX_SPAWN_DUP2, each, number) for number, each in enumerate(high, start=3)]
        nothing = [(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_RDWR, 0) for each in range(3)]
        arguments = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={self._profile.name}"]
        pid = os.posix_spawn(arguments[0], arguments, os.environ, file_actions=[*nothing, *places])
        self.process = psutil.Process(pid)
        for each in (down, up, *high):
            os.close(each)
        self._received = b""
        self._last_id = 0
        self._tabs: dict[str, Tab] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(END_S)
        os.close(self._commands)
        os.close(self._replies)
        self._profile.cleanup()

    def open(self, address: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> "Tab":
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Performance"):
            tab.call(f"{domain}.enable")
        tab.resize(width, height)
        scheme = "dark" if dark else "light"
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.call("Emulation.setTimezoneOverride", timezoneId="UTC")
        tab.call("Page.navigate", url=address)
        return tab

    def processor_seconds(self) -> float:
        """Return the processor time of the browser and its children so far."""
        family = [self.process, *self.process.children(recursive=True)]
        return float(sum(sum(each.cpu_times()[:2]) for each in family))

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        self._last_id += 1
        number = self._last_id
        command: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        os.write(self._commands, json.dumps(command).encode() + _END)
        deadline = time.monotonic() + REPLY_S
        while True:
            message = self._next(deadline, method)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            if (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                tab.take(message.get("method", ""), message.get("params", {}))

    def _next(self, deadline: float, method: str) -> dict[str, Any]:
        while _END not in self._received:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._replies, READ_BYTES) if ready else b""
            assert part, f"Chromium does not reply to {method}, or has ended"
            self._received += part
        line, _, self._received = self._received.partition(_END)
        message: dict[str, Any] = json.loads(line)
        return message


class Tab:
    """One page of the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.width = 0
        self.problems: list[str] = []
        """Errors of scripts and the console, and breaches of the policy."""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of this tab, and return its result."""
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int) -> None:
        """Set the size; a narrow one is a phone with touch."""
        self.width = width
        phone = width <= PHONE_MAX
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, timeout_s: float = 30.0) -> None:
        """Wait until an expression is true; a failure shows the text of the page."""
        deadline = time.monotonic() + timeout_s
        # An element may be missing until the page has loaded.
        while not self.evaluate(f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"):
            assert time.monotonic() < deadline, f"{condition}: {self.problems} {self.text()[:2000]}"
            time.sleep(POLL_S)

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.evaluate("document.body.innerText"))

    def picture(self, file: Path, *, most_pixels: int = 6000) -> None:
        """Write the whole page as PNG."""
        height = min(most_pixels, int(self.evaluate("document.documentElement.scrollHeight")))
        clip = {"x": 0, "y": 0, "width": self.width, "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        file.write_bytes(b64decode(data))

    def click(self, selector: str) -> None:
        """Click the first element of a selector with the mouse, again if an update has moved the element."""
        hit = f"event.target.closest({json.dumps(selector)}) !== null"
        deadline = time.monotonic() + REPLY_S
        while True:
            self.evaluate("globalThis.hit = false")
            self.evaluate(f"addEventListener('click', event => {{ hit = {hit}; }}, {{ capture: true, once: true }})")
            x, y = self._place(selector, 0.5)
            for kind, buttons in (("mousePressed", 1), ("mouseReleased", 0)):
                place = {"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1}
                self.call("Input.dispatchMouseEvent", **place)
            if self.evaluate("hit"):
                return
            assert time.monotonic() < deadline, f"{selector} was not hit"

    def point(self, selector: str, part: float) -> None:
        """Move the mouse over the first element of a selector, `part` of its width from the left."""
        x, y = self._place(selector, part)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _place(self, selector: str, part: float) -> tuple[float, float]:
        found = f"document.querySelector({json.dumps(selector)})"
        self.wait(found)
        self.evaluate(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y, width, height = self.evaluate(f"(r => [r.x, r.y, r.width, r.height])({found}.getBoundingClientRect())")
        return x + part * width, y + height / 2

    def press(self, key: str) -> None:
        """Press a key without a character, as `ArrowRight`."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def take(self, event: str, facts: Mapping[str, Any]) -> None:
        """Take an event of this tab; keep it if it reports a problem."""
        match event:
            case "Runtime.exceptionThrown":
                self.problems.append(str(facts["exceptionDetails"].get("exception", facts["exceptionDetails"])))
            case "Log.entryAdded" if facts["entry"]["level"] == "error":
                self.problems.append(f"{facts['entry']['text']} {facts['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if facts["type"] == "error":
                self.problems.append(str(facts["args"]))
            case _:
                pass
