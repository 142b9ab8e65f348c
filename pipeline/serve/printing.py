"""The pipeline's output for people: entries and reports are other machines' text, so it is escaped here.

The rule is the farm's own (`bridge.api.printable`); a test checks that the pipeline prints only through this module.
"""

import csv
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from bridge.api.printable import printable

__all__ = ["echo", "overwrite_line", "print_csv", "print_json", "print_table", "printable", "span"]

GAP = "  "


def echo(text: str, *, err: bool = False, bold: bool = False) -> None:
    """Print one line."""
    click.echo(click.style(printable(text), bold=True) if bold else printable(text), err=err)


def print_json(text: str) -> None:
    """Print JSON whose strings are ASCII, as `json.dumps` makes them."""
    if not text.isascii():
        raise ValueError("JSON for a terminal must be ASCII")
    click.echo(text)


def print_csv(rows: Iterable[Sequence[Any]]) -> None:
    """Print rows as CSV, with escaped text."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in rows:
        writer.writerow([printable(cell) if isinstance(cell, str) else cell for cell in row])


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns that are never cut; on a terminal that is too narrow, one value per line."""
    shown = [[printable(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    if sys.stdout.isatty() and sum(widths) + len(GAP) * (len(widths) - 1) > shutil.get_terminal_size().columns:
        width = max(map(len, shown[0]))
        for number, row in enumerate(shown[1:], 1):
            echo(f"row {number}", bold=True)
            for heading, cell in zip(shown[0], row, strict=True):
                echo(f"{heading.ljust(width)}{GAP}{cell}".rstrip())
        return
    for number, row in enumerate(shown):
        text = GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        echo(text, bold=number == 0)


def overwrite_line(text: str) -> None:
    """Write `text` over the last line of a terminal."""
    sys.stderr.write("\r" + printable(text))
    sys.stderr.flush()


def span(milliseconds: int) -> str:
    """Return a duration in its two largest units."""
    left, parts = milliseconds // 1000, []
    for name, seconds in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        number, left = divmod(left, seconds)
        parts += [f"{number:,} {name}"] if number else []
    return " ".join(parts[:2]) or "0 s"
