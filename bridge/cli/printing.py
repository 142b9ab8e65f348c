"""Tables for people and for pipes: aligned columns that are never wrapped or cut, whatever the terminal's width."""

from collections.abc import Sequence

import click

from bridge.tui.words import printable

GAP = "  "


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their headings, each column as wide as its widest cell."""
    shown = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[number]) for row in shown) for number in range(len(headings))]
    for number, row in enumerate(shown):
        text = GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(click.style(text, bold=True) if number == 0 else text)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print named facts; a fact without a name goes on with the previous one."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, text in facts:
        click.echo(f"{click.style(name.ljust(width), bold=True)}{GAP}{printable(text)}")
