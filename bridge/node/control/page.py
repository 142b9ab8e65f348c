"""A page for browsers that shows the farm and does not change it: one file, joined from the parts in `page_source`.

    browser ──GET /──▶ the page, without data                   without a token
            ──GET /v1/stream, with a token──▶ view, trace, log  the operator gives the token to the page
            ──GET /v1/history, /v1/views──▶ the last hours, and which node sees what

    page.html    the cards, empty     elements.js  elements, formats, explanations    charts.js  timeline and charts
    style.css    light, dark, phone   cards.js     the view as elements               live.js    the stream, the user

A browser does not send a token with the address of a page. A token in an address would remain in the browser's history
and in logs of proxies. So the page itself does not need a token or contain data. It requests the token from the user,
or takes it from the part after `#` of its address, which browsers do not send. It keeps the token until the tab is
closed, or on request until the user removes it, and sends it as every client does.

The page's policy (CSP) permits its one script and one style, by their SHA-256, `data:` images, and connections to this
endpoint. It forbids other resources, frames and forms. Names from nodes, routers or clients are put into the page as
text, never as HTML. Charts are plain SVG, because a library would be larger than the whole script.
"""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

import trio
from msgspec.json import encode

from bridge import document
from bridge.api.view import SHOWN, ReportView
from bridge.api.words import CONDITION_NAMES, FAULT_WORDS, MEMBER_COLUMNS
from bridge.core.log.records import LeafFault
from bridge.node.control.routes import Answer, Call

PAGE_TYPE: Final = "text/html; charset=utf-8"
SCRIPTS: Final = ("elements.js", "charts.js", "cards.js", "live.js")
_SHARED: Final = "const SHARED = {};"
"""The place in the script for texts that other surfaces also use."""
_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_WORD: Final = re.compile(r"^\| \*\*([^*|\n]+)\*\* \|(?:[^|\n]*\|)*? ([^|\n]+) \|$", re.MULTILINE)
_LINK: Final = re.compile(r" ?\[[^\]]+\]\([^)]+\)")
_CONDITION_WORDS: Final = {LeafFault.LEASE_SET.value: "leaseset2", LeafFault.SERVICE.value: "probe"}
"""The words of the glossary that explain conditions under other names."""
_OTHER_PROTOCOLS: Final = "\n## Kafka"


async def show_page(_: Call[None]) -> Answer:
    """Return the page."""
    return await trio.to_thread.run_sync(_page)


def joined() -> str:
    """Return the page: its parts, and the texts that other surfaces use, in one file."""
    script = "".join(map(_part, SCRIPTS))
    # Escaped, so that no text can end the script element.
    conditions = [(kind, name, _CONDITION_WORDS.get(kind, name)) for kind, name in CONDITION_NAMES.items()]
    keys = dict(zip(ReportView.__struct_fields__, ReportView.__struct_encode_fields__, strict=True))
    figures = [(keys[each.name], each.label, each.unit.value) for each in SHOWN]
    texts = {"words": glossary_words(), "faults": FAULT_WORDS, "conditions": conditions, "figures": figures}
    texts |= {"members": {key: (each.title, each.word) for key, each in MEMBER_COLUMNS.items()}}
    shared = encode(texts).decode().replace("<", "\\u003c")
    script = script.replace(_SHARED, f"const SHARED = {shared};")
    page = _part("page.html").replace("<style></style>", f"<style>\n{_part('style.css')}</style>")
    return page.replace("<script></script>", f"<script>\n{script}</script>")


def glossary_words() -> dict[str, str]:
    """Return the meaning of each word of the farm and of Raft; empty if this installation lacks the documents."""
    rows = _WORD.findall((document("glossary.md") or "").partition(_OTHER_PROTOCOLS)[0])
    return {word.casefold(): re.sub(r"[`*]", "", _LINK.sub("", meaning)) for word, meaning in rows}


def _part(name: str) -> str:
    return files("bridge.node.control").joinpath("page_source", name).read_text(encoding="utf-8")


@cache
def _page() -> Answer:
    body = joined()
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(body):
        allowed[kind].append(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'")
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
            "trusted-types 'none'",
        )
    )
    headers = (
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )
    return Answer(200, body.encode(), PAGE_TYPE, headers)
