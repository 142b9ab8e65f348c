"""Shares of a table: in a full table the author with the most rows gives way, never an author with few.

    rows of X  ████████████  ──▶ one more of Y ──▶ X loses a row     one more of X ──▶ X loses a row
    rows of Y  ██

A total limit alone gives the table to the author that writes fastest: it could displace all others. With these
rules an author keeps at least as many rows as its equal part of the table has. Ties go to the lesser author, so all
servers choose the same rows, in whichever order a table was built or restored.

`docs/reference/limits.md` lists every table of the replicated state with its authors, their shares and how a place
becomes free; a test walks over the state and requires such a declaration of each table.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Row = TypeVar("Row")
Name = TypeVar("Name", str, bytes)


def largest_holder(rows: Iterable[Row], author_of: Callable[[Row], Name]) -> list[Row]:
    """The rows of the author that has the most."""
    authors = [(author_of(row), row) for row in rows]
    holder = _most(author for author, _ in authors)
    return [row for author, row in authors if author == holder]


def newest_of_each(rows: Sequence[int], authors: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The rows without the older half of those of the author that has the most. `authors` has one for each row."""
    holder = _most(authors)
    given_up = (authors.count(holder) + 1) // 2
    kept: list[tuple[int, str]] = []
    for row, author in zip(rows, authors, strict=True):
        if author == holder and given_up:
            given_up -= 1
        else:
            kept.append((row, author))
    return tuple(row for row, _ in kept), tuple(author for _, author in kept)


def _most(authors: Iterable[Name]) -> Name:
    counted = Counter(authors)
    return min(counted, key=lambda each: (-counted[each], each))
