"""Lines that fit: columns of chosen widths, and the division of a screen's height among its sections.

Everything that is drawn is a list of `Text` lines, each cut to the width, and never more of them than the height. A
renderable that wraps or grows by one line scrolls an alternate screen and the picture jumps; here nothing can wrap.

    share(height, wants)      each section gets its minimum, in the order of its importance, then what it wants
    rows(lines, limit)        a section that got less than it wanted says how much it leaves out
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from bridge.api.printable import printable

GAP = 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, its width, and on which side its text lies."""

    heading: str
    width: int
    right: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Want:
    """How many lines a section needs to say anything, and how many it could use."""

    least: int
    most: int


def fitted(cell: Cell, width: int, *, right: bool = False) -> Text:
    """A cell of exactly `width` columns."""
    text = Text(printable(cell.text), style=cell.style, no_wrap=True, overflow="ellipsis", end="")
    text.truncate(width, overflow="ellipsis")
    padding = width - text.cell_len
    if right:
        text.pad_left(padding)
    else:
        text.pad_right(padding)
    return text


def line(cells: Sequence[Cell], width: int) -> Text:
    """Cells behind one another, cut to `width`."""
    text = Text(no_wrap=True, overflow="ellipsis", end="")
    for cell in cells:
        text.append(printable(cell.text), cell.style)
    text.truncate(width, overflow="ellipsis")
    return text


def row(columns: Sequence[Column], cells: Sequence[Cell], width: int) -> Text:
    """One row of a table; the last column takes what is left of the width."""
    text = Text(no_wrap=True, overflow="ellipsis", end="")
    for column, cell in zip(columns, cells, strict=True):
        last = column is columns[-1]
        room = width - text.cell_len
        if room <= 0:
            break
        text.append_text(fitted(cell, room if last else min(column.width, room), right=column.right and not last))
        if not last:
            text.append(" " * GAP)
    text.truncate(width, overflow="crop")
    return text


def heading(columns: Sequence[Column], width: int, style: str) -> Text:
    """The headings of a table."""
    return row(columns, [Cell(column.heading, style) for column in columns], width)


def share(height: int, wants: Sequence[Want]) -> list[int]:
    """Lines for each section: minimums first, in order; then what they want, in order."""
    shares = [0] * len(wants)
    left = max(0, height)
    for number, want in enumerate(wants):
        shares[number] = min(want.least, left)
        left -= shares[number]
    for number, want in enumerate(wants):
        more = min(want.most - shares[number], left) if shares[number] == want.least else 0
        shares[number] += max(0, more)
        left -= max(0, more)
    return shares


def rows(lines: list[Text], limit: int, style: str) -> list[Text]:
    """At most `limit` lines; if that leaves any out, the last one says how many."""
    if len(lines) <= limit:
        return lines
    if limit <= 0:
        return []
    hidden = len(lines) - limit + 1
    return [*lines[: limit - 1], Text(f"… {hidden} more", style=style, no_wrap=True, end="")]
