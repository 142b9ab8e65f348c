"""Lines that fit: columns of chosen widths, and the division of a screen's height among its sections.

The screen is a list of `Text` lines. Each is cut to the width, and their number does not exceed the height. A line that
wraps, or an additional line, would scroll the screen, and the picture would jump.

    share(height, wants)      each section gets its minimum, in the order of its importance, then its wanted lines
    rows(lines, limit)        a cut section shows the number of omitted lines; the chosen line stays
    widened(columns, width)   names get the room that other columns do not need
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text

from bridge.api.printable import printable
from bridge.tui.targets import OnHeading, Sort, Target, aimed_style, targets_of

GAP = 1
WIDE = 100
LEAST_WIDTH = 20


Part = str | tuple[str, str] | tuple[str, str, Target]
"""A text, its style, and the target of a click."""


class Palette(Struct, frozen=True):
    """Styles by meaning."""

    title: str = "bold"
    good: str = ""
    doubtful: str = ""
    bad: str = ""
    dim: str = ""
    accent: str = ""


COLORS = Palette("bold", "green", "yellow", "red", "bright_black", "cyan")
MONOCHROME = Palette()


class Column(Struct, frozen=True):
    """A column: its heading, its width, the side of its text, and the order that a click on its heading gives."""

    heading: str
    width: int
    right: bool = False
    sort: Sort | None = None


class Height(Struct, frozen=True):
    """Lines of a section: the useful minimum, and the maximum."""

    least: int
    most: int


class Canvas(Struct, frozen=True):
    """The width of each line, and the styles."""

    width: int
    palette: Palette

    @property
    def is_wide(self) -> bool:
        """True if there is room for texts in full."""
        return self.width >= WIDE

    def line(self, *parts: Part) -> Text:
        """Return texts one after another, cut to the width."""
        text = _text()
        for part in parts:
            text.append_text(_part(part))
        text.truncate(self.width, overflow="ellipsis")
        return text

    def row(self, columns: Sequence[Column], parts: Sequence[Part]) -> Text:
        """Return one row of a table; the last column takes the remaining width."""
        text = _text()
        for column, part in zip(columns, parts, strict=True):
            last = column is columns[-1]
            room = self.width - text.cell_len
            if room <= 0:
                break
            text.append_text(_fitted(part, room if last else min(column.width, room), right=column.right and not last))
            if not last:
                text.append(" " * GAP)
        text.truncate(self.width, overflow="crop")
        return text

    def heading(self, columns: Sequence[Column], style: str) -> Text:
        """Return the headings of a table."""
        return self.row(
            columns,
            [
                (column.heading, style) if column.sort is None else (column.heading, style, OnHeading(column.sort))
                for column in columns
            ],
        )

    def marked(self, line: Text) -> Text:
        """Return the chosen line, reversed without colors: some reversed colors would be unreadable."""
        line = dimmed(line, "reverse")
        line.pad_right(max(0, self.width - line.cell_len))
        return line


def dimmed(line: Text, style: str) -> Text:
    """Return a line in one style, for an outdated picture, whose colors would describe the past."""
    plain = _text(line.plain, style)
    plain.spans = targets_of(line)
    return plain


def _text(content: str = "", style: str = "") -> Text:
    return Text(content, style=style, no_wrap=True, overflow="ellipsis", end="")


def _part(part: Part) -> Text:
    content, style, *targets = (part, "") if isinstance(part, str) else part
    text = _text(printable(content), style)
    for target in targets:
        text.stylize(aimed_style(target))
    return text


def _fitted(part: Part, width: int, *, right: bool) -> Text:
    text = _part(part)
    text.truncate(width, overflow="ellipsis")
    padding = width - text.cell_len
    if right:
        text.pad_left(padding)
    else:
        text.pad_right(padding)
    return text


def share(height: int, requests: Sequence[Height]) -> list[int]:
    """Return the lines for each section: minimums first, in order; then the wanted lines, in order."""
    shares = [0] * len(requests)
    left = max(0, height)
    for number, request in enumerate(requests):
        shares[number] = min(request.least, left)
        left -= shares[number]
    for number, request in enumerate(requests):
        more = min(request.most - shares[number], left) if shares[number] == request.least else 0
        shares[number] += max(0, more)
        left -= max(0, more)
    return shares


def rows(lines: list[Text], limit: int, style: str, keep: int = 0) -> list[Text]:
    """Return at most `limit` lines, line `keep` among them; one line shows the number of omitted lines."""
    if len(lines) <= limit:
        return lines
    if limit <= 0:
        return []
    shown = limit - 1
    above = max(0, min(keep - shown + 1, len(lines) - shown))
    below = len(lines) - shown - above
    if above and not below and shown:
        return [_hidden(f"… {above} more above", style, lines), *lines[above:]]
    text = f"… {above} more above, {below} below" if above and shown else f"… {above + below} more"
    return [*lines[above : above + shown], _hidden(text, style, lines)]


def _hidden(content: str, style: str, lines: Sequence[Text]) -> Text:
    text = _text(content, style)
    text.truncate(max(line.cell_len for line in lines), overflow="ellipsis")
    return text


def widened(columns: Sequence[Column], width: int, width_max: int) -> list[Column]:
    """Return the columns; the first one grows up to `width_max` cells if a line of `width` has room."""
    first, *others = columns
    needed = sum(column.width + GAP for column in columns) - GAP
    return [replace(first, width=max(first.width, min(width_max, first.width + width - needed))), *others]


def shortened(content: str, cells: int) -> str:
    """Return a name or another text from outside, cut to this number of cells."""
    text = _text(printable(content))
    text.truncate(cells, overflow="ellipsis")
    return text.plain
