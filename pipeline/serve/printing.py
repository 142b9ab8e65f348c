"""The pipeline's output for people: entries and reports are other machines' text, so it is escaped here.

The rule is the farm's own (`bridge.api.printable`); a test checks that the pipeline prints only through this module.
"""

import csv
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from bridge.api.printable import printable, table_lines, wrapped

__all__ = [
    "echo", "echo_whole", "is_terminal", "overwrite_line", "print_csv", "print_json", "print_table", "printable",
    "span",
]  # fmt: skip


def echo(text: str, *, err: bool = False, bold: bool = False, mark: str = "") -> None:
    """Print one line, and `mark` before it; a terminal gets it wrapped at words."""
    shown = printable(text)
    if (sys.stderr if err else sys.stdout).isatty():
        shown = "\n".join(wrapped(shown, terminal_columns(), len(mark)))
    click.echo(click.style(mark + shown, bold=True) if bold else mark + shown, err=err)


def echo_whole(text: str, *, bold: bool = False) -> None:
    """Print one line that a terminal may break within a word."""
    click.echo(click.style(printable(text), bold=True) if bold else printable(text))


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
    """Print aligned columns that are never cut; on a narrower terminal, in several lines."""
    for line, is_heading in table_lines(headings, rows, terminal_columns() if is_terminal() else None):
        echo_whole(line, bold=is_heading)


def is_terminal() -> bool:
    """Return True if stdout is a terminal."""
    return sys.stdout.isatty()


def terminal_columns() -> int:
    """Return the width of the terminal."""
    return shutil.get_terminal_size().columns


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
