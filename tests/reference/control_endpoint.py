"""The table of requests in docs/reference/control-endpoint.md, generated from `bridge.api.control_routes`."""

import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from bridge.api.control_routes import ROUTES, Route

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "control-endpoint.md"
HEAD = "| request | effect | body | reply |\n|---|---|---|---|\n"
_TABLE = re.compile(f"(?<={re.escape(HEAD)})(?:\\|.*\n)+")


def page() -> str:
    """Return the document with its current table; the other parts are written by hand."""
    rows = "".join(map(_row, ROUTES.values()))
    return _TABLE.sub(lambda _: rows, DOCUMENT.read_text(encoding="utf-8"), count=1)


def _row(route: Route[Any]) -> str:
    body = "" if route.body is None else f"{_link(route.body)}{' or none' if route.empty else ''}"
    answer = route.content or _link(route.answer)
    return f"| `{route.method} {route.path}` | {route.meaning} | {body} | {answer} |\n"


def _link(kind: type[Struct]) -> str:
    return f"[{kind.__name__}](json.md#{kind.__name__.lower()})"
