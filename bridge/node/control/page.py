"""A page for browsers that shows the farm and changes nothing: one file, `page.html` next to this module.

    browser ──GET /──▶ the page, without data                   needs no token
            ──GET /v1/stream, with a token──▶ view and trace    the operator gives the token to the page

A browser does not send a token with the address of a page. A token in an address would stay in histories and proxy
logs. So the page is open to all, without data. It requests the token from the user, or takes it from the part after `#`
of its address, which browsers do not send. It keeps the token until the tab is closed, and sends it as every client
does.

Its policy (CSP) permits its one script and one style, by their SHA-256, and connections to this endpoint; no other
resource, frame or form. Names from nodes, routers or clients are put into the page as text, never as HTML.

A module of its own: it makes the policy from the file next to it, and the routes do not depend on pages.
"""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

import trio
from msgspec.json import encode

from bridge.api.words import FAULT_WORDS
from bridge.node.control.routes import Answer, Call

PAGE_TYPE: Final = "text/html; charset=utf-8"
_FAULTS: Final = b"const FAULTS = {};"
"""The place in the script for the words that other surfaces use."""
_INLINE: Final = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


async def show_page(_: Call[None]) -> Answer:
    """Return the page."""
    return await trio.to_thread.run_sync(_page)


@cache
def _page() -> Answer:
    body = files("bridge.node.control").joinpath("page.html").read_bytes()
    body = body.replace(_FAULTS, b"const FAULTS = %s;" % encode(FAULT_WORDS))
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(body):
        allowed[kind.decode()].append(f"'sha256-{b64encode(sha256(text).digest()).decode()}'")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(allowed['script'])}",
            f"style-src {' '.join(allowed['style'])}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )
    headers = (
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )
    return Answer(200, body, PAGE_TYPE, headers)
