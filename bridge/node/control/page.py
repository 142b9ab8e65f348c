"""A page for browsers that shows the farm and changes nothing: one file, `page.html` beside this module.

    browser ──GET /──▶ the page, which holds no data           no token is needed for it
            ──GET /v1/stream, with a token──▶ view and trace    the operator gives the token to the page

A browser sends no token of its own with the address of a page, and a token in an address would stay in histories and
logs of proxies. So the page is open to all and empty. It asks for the token, or takes it from behind the `#` of its
address, which browsers keep to themselves; it keeps it for as long as the tab lives, and sends it as every client does.

The policy that comes with it (CSP) permits the one script and the one style in it, named by their SHA-256, and
connections to this endpoint; no other resource, no frame, no form. Whatever a node, a router or a client has named is
put into the page as text, never as HTML.

A module of its own: it makes the policy out of the file beside it, and the routes know nothing of pages.
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
"""Its place in the script takes the words that other surfaces use."""
_INLINE: Final = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


async def show_page(_: Call[None]) -> Answer:
    """The page."""
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
