r"""Makes texts of other machines harmless for a terminal and a log file: it shows invisible characters as escapes.

    node, ESC, [2J  ─▶  node\x1b[2J          evil, an override, gnp.exe  ─▶  evil\u202egnp.exe

Names, request ids, versions, reasons and entries come from other machines. A control character in them moves the cursor
or forges a line. A direction override reverses text, and an invisible character makes two names look alike. So all
characters of Unicode's categories other and separator are escaped, except the ordinary space. The few letters and marks
without a visible shape are also escaped.

Each output escapes its own texts: `bridge.cli.printing` for terminals and logs, `bridge.tui.layout` for the live view,
`bridge.node.control.metrics` for labels, `pipeline.serve.printing` for the pipeline. JSON stays exact: there these
characters are JSON's own escapes (`bridge.cli.printing.json_text`).

The module also formats durations, moments and addresses as short texts, and fits lines and tables to a terminal.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import Final

_INVISIBLE: Final = frozenset(
    [
        0x034F,  # combining grapheme joiner
        *(0x115F, 0x1160, 0x3164, 0xFFA0),  # Hangul fillers
        *(0x17B4, 0x17B5),  # Khmer inherent vowels
        *range(0x180B, 0x1810),  # Mongolian variation selectors
        0x2800,  # an empty Braille pattern
        *range(0xFE00, 0xFE10),  # variation selectors
        *range(0xE0100, 0xE01F0),  # more of them
    ]
)
_BYTE, _SHORT = 0x100, 0x10000
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
LATEST_MS = 253_402_300_799_000
"""The last second that a year of four digits can represent."""
B32_SUFFIX = ".b32.i2p"
GAP: Final = "  "
"""The space between two columns of a table."""
_HANG: Final = 2
"""Indentation of a continued line, in columns."""
_CONTINUED: Final = " " * 4
"""The indentation of further lines of a row."""
_LAST_LEAST: Final = 30
"""Width in characters above which the last column of a table may be wrapped."""
_LINES_MAX: Final = 3
"""Limit for the lines of a row; more of them are hard to compare with their headings."""
_WHOLE: Final = re.compile(r"`[^`]*`|(?<=:  ).+")
"""A command in backticks, or after a colon and two blanks."""
_BLANK: Final = "\0"
"""A blank that does not end a line; printable texts lack this letter."""


def printable(text: str) -> str:
    """Return the text in one line, with an escape for each invisible letter."""
    if text.isprintable() and (text.isascii() or not any(ord(letter) in _INVISIBLE for letter in text)):
        return text
    return "".join(letter if is_printable(letter) else _escape(ord(letter)) for letter in text)


def wrapped(text: str, columns: int, taken: int = 0) -> list[str]:
    """Return the lines of a printable text, broken at words.

    A command, and a word longer than a line, stay whole, so that a user can copy them from the terminal.

    `taken`: the number of columns before the text in the first line; further lines begin below the text.
    """
    if taken + len(text) <= columns:
        return [text]
    indent = min((taken or _HANG) + len(text) - len(text.lstrip()), columns * 3 // 4)
    lines = wrap(
        _WHOLE.sub(lambda found: found[0].replace(" ", _BLANK), text),
        max(1, columns),
        initial_indent=" " * taken,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    first, *others = (line.replace(_BLANK, " ") for line in lines or [""])
    return [first[taken:], *others]


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None
) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a table, and True for headings. Each column is as wide as its widest cell.

    A row that is wider than `columns` continues in further lines, up to `_LINES_MAX`. If they are too few, each value
    is in a separate line with its heading. Long values in the last column are wrapped. `columns` None: rows may have
    any width.
    """
    shown = [[printable(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    if not columns:
        columns = sys.maxsize
    slices = _columns_of_lines([*widths[:-1], min(widths[-1], _LAST_LEAST)], columns)
    if rows and len(slices) > _LINES_MAX:
        yield from ((line, False) for line in _lines_of_values(shown[0], shown[1:], columns))
        return
    for number, row in enumerate(shown):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        for place, each in enumerate(slices):
            *before, last = cells[each]
            start = "".join(cell + GAP for cell in before)
            indent = _CONTINUED if place else ""
            first, *more = wrapped(last.rstrip(), columns - len(indent), len(start))
            line = (start + first).rstrip()
            if line or not place:
                yield indent + line, number == 0
            yield from ((indent + line, number == 0) for line in more)


def _columns_of_lines(widths: Sequence[int], columns: int) -> list[slice]:
    """Return the columns of a table that each line of a row contains."""
    starts, end = [0], -len(GAP)
    for number, width in enumerate(widths):
        end += len(GAP) + width
        if number and end > columns:
            starts.append(number)
            end = len(_CONTINUED) + width
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(widths)], strict=True)]


def _lines_of_values(headings: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> Iterator[str]:
    width = max(map(len, headings))
    for number, row in enumerate(rows):
        if number:
            yield ""
        for heading, cell in zip(headings, row, strict=True):
            name = heading.ljust(width) + GAP
            first, *more = wrapped(cell, columns, len(name))
            yield (name + first).rstrip()
            yield from more


def one_line(text: str, limit: int) -> str:
    """Return at most `limit` characters of the text, with a question mark for each invisible letter."""
    shown = "".join(letter if is_printable(letter) else "?" for letter in text[:limit])
    return shown if len(text) <= limit else f"{shown[:-1]}…"


def is_printable(letter: str) -> bool:
    """Return True if one letter is drawn as itself."""
    return letter.isprintable() and ord(letter) not in _INVISIBLE


def _escape(point: int) -> str:
    if point < _BYTE:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < _SHORT else f"\\U{point:08x}"


def duration(milliseconds: float) -> str:
    """Return a length of time in its two leading units; a past time is negative."""
    if milliseconds < 0:
        return f"-{duration(-milliseconds)}"
    whole = int(milliseconds)
    if whole < SECOND_MS:
        return f"{whole}ms"
    for unit_ms, unit, part_ms, part in (
        (DAY_MS, "d", HOUR_MS, "h"),
        (HOUR_MS, "h", MINUTE_MS, "m"),
        (MINUTE_MS, "m", SECOND_MS, "s"),
    ):
        if whole >= unit_ms:
            return f"{whole // unit_ms}{unit}{whole % unit_ms // part_ms:02}{part}"
    return f"{whole // SECOND_MS}s"


def milliseconds_text(value: float | None) -> str:
    """Return a round-trip time with the measured digits only: gossip counts in whole milliseconds."""
    if value is None:
        return "-"
    if value == 0:
        return "<1ms"
    whole = value == int(value) or value >= 10  # noqa: PLR2004 -- two digits that say something
    return f"{value:.0f}ms" if whole else f"{value:.2f}ms"


def clock_text(time_ms: int, *, dated: bool = False) -> str:
    """Return a moment in UTC."""
    if not 0 <= time_ms <= LATEST_MS:
        return str(time_ms)
    moment = datetime.fromtimestamp(time_ms / SECOND_MS, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC" if dated else "%H:%M:%S")


def time_of_day(second: object) -> str:
    """Return a second since the epoch as a time of day in UTC; any other value as text."""
    if not isinstance(second, int) or not 0 <= second <= LATEST_MS // SECOND_MS:
        return str(second)
    return clock_text(second * SECOND_MS)


def short_address(address: str, letters: int = 12) -> str:
    """Return a short form of a destination's address."""
    head = address.removesuffix(B32_SUFFIX)
    return address if len(head) <= letters else f"{head[:letters]}…{B32_SUFFIX}"


def known(value: object) -> str:
    """Return a value as text, and None as a dash."""
    return "-" if value is None else str(value)
