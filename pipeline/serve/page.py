"""The building blocks of the report's page: its style, sections and tables.

Text from the tables enters a page through `table` and the functions below, which escape it. On a narrow screen a table
becomes a list of cells, each after its column's name. So a page of 390 pixels does not scroll sideways.
"""

from collections.abc import Callable, Sequence
from html import escape
from itertools import zip_longest
from typing import Any

from pipeline.serve.charts import nothing
from pipeline.serve.printing import printable

ROWS_OPEN = 30
"""The number of visible rows of a long table."""
CELL_LETTERS = 30
"""The limit of letters above which a cell is broken into lines."""
_LIGHT = """--text: #1c1e21; --soft: #595f69; --line: #d5d8dd; --ground: #fff; --raised: #f5f6f8; --good: #1a7f4b;
--bad: #b3202c; --warn: #8a5a00; --level-0: #3a9d68; --level-1: #a8c94a; --level-2: #f0b93a; --level-3: #e0702e;
--level-4: #b3202c; --shade-0: #1f77b4; --shade-1: #d95f02; --shade-2: #2ca02c; --shade-3: #9467bd; --shade-4: #d6277e;
--shade-5: #8c564b; --shade-6: #0e8c9d; --shade-7: #6f6f6f"""
_DARK = """--text: #e3e5e8; --soft: #a5abb5; --line: #43474e; --ground: #15171a; --raised: #1f2226; --good: #5fcf94;
--bad: #ff8087; --warn: #f0bf5a; --level-0: #3a9d68; --level-1: #a8c94a; --level-2: #f0b93a; --level-3: #e0702e;
--level-4: #d8404c; --shade-0: #5aa9e6; --shade-1: #ff9950; --shade-2: #66cc66; --shade-3: #c2a0e8; --shade-4: #ff85bb;
--shade-5: #d3a094; --shade-6: #4fd0e0; --shade-7: #b0b0b0"""
STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 960px; margin: 1.5em auto; padding: 0 1.2em;
color: var(--text); background: var(--ground); overflow-wrap: anywhere }}
h1 {{ font-size: 1.4em; margin: 0 }} h2 {{ font-size: 1.15em; margin: 2em 0 .2em }}
h3 {{ font-size: 1em; font-weight: normal; margin: .8em 0 .2em }} p {{ margin: .4em 0 }} figure {{ margin: .6em 0 }}
.how, .none {{ color: var(--soft); font-size: .9em }}
.verdict {{ background: var(--raised); border-left: .4em solid var(--soft); padding: .7em 1em; margin: 1em 0 }}
.verdict strong {{ font-size: 1.25em; display: block }} .verdict.good {{ border-color: var(--good) }}
.verdict.bad {{ border-color: var(--bad) }} .verdict.warn {{ border-color: var(--warn) }}
svg {{ display: block; max-width: 100%; height: auto; overflow: visible }}
svg text {{ font-family: system-ui, sans-serif }}
.narrow {{ display: none }} summary {{ cursor: pointer; padding: .4em 0; color: var(--soft) }}
table {{ border-collapse: collapse; font-size: .9em; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .25em .8em .25em 0; border-bottom: 1px solid var(--line) }}
th {{ color: var(--soft); font-weight: normal; overflow-wrap: normal }} td {{ white-space: nowrap }}
td.long {{ white-space: normal; min-width: 8em }}
.bad > td:nth-child(2) {{ color: var(--bad); font-weight: 600 }}
.warn > td:nth-child(2) {{ color: var(--warn); font-weight: 600 }}
@media (max-width: 700px) {{ body {{ padding: 0 .8em; margin: 1em auto }} .wide {{ display: none }}
.narrow {{ display: block }} thead {{ display: none }} table, tbody, tr {{ display: block }}
tr {{ padding: .35em 0; border-bottom: 1px solid var(--line) }}
td {{ display: inline-block; border: 0; padding: 0 .7em 0 0; white-space: normal }} td.long {{ display: inline }}
td:empty {{ display: none }}
td:not(:first-child)::before {{ content: attr(data-name) " "; color: var(--soft); font-weight: normal }} }}
"""


def section(title: str, how: str, content: str) -> str:
    """Return a heading, an explanation of its figures, and its content."""
    return f'<section><h2>{escape(title)}</h2><p class="how">{escape(how)}</p>{content}</section>'


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], kinds: Sequence[str] = ()) -> str:
    """Return a table, folded after `ROWS_OPEN` rows; `kinds` are the rows' classes.

    On a narrow screen each row is a paragraph, with a column's name before each cell.
    """
    if not rows:
        return nothing()
    body = []
    for row, kind in zip_longest(rows, kinds, fillvalue=""):
        cells = (
            f'<td data-name="{escape(heading)}"{_long(cell)}>{_cell(cell)}</td>'
            for heading, cell in zip(headings, row, strict=True)
        )
        body.append(f"<tr{f' class={kind}' if kind else ''}>{''.join(cells)}</tr>")
    first, more = _rows(headings, body[:ROWS_OPEN]), body[ROWS_OPEN:]
    if not more:
        return first
    return f"{first}<details><summary>{len(more):,} more rows</summary>{_rows(headings, more)}</details>"


def _rows(headings: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(cell: object) -> str:
    return "" if cell is None else escape(printable(str(cell)))


def _long(cell: object) -> str:
    return ' class="long"' if len(str(cell)) > CELL_LETTERS else ""


def cut(shown: int, total: int, what: str, which: str) -> str:
    """Return a note about the omitted rows of a section, if there are any."""
    return f'<p class="how">{shown:,} of {total:,} {escape(what)} shown, {escape(which)}.</p>' if total > shown else ""


def maybe(value: Any, text_of: Callable[[Any], str]) -> str | None:
    """Return the text of a value, or None without a value."""
    return None if value is None else text_of(value)
