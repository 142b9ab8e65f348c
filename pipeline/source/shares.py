"""How one micro-batch is shared among many farms, and how its entries become few tasks.

*Shares.* A stream's admission limit is divided max-min fairly: a farm that has less than an equal share gives all that
it has, and what it leaves is divided among the others in the same way. So a farm with a backlog of millions takes what
is left and holds up none of those that report every half minute.

*Tasks.* A task costs Spark more than reading a thousand entries, and a farm that reports twice a minute has a handful.
So the ranges of many farms are packed into few tasks, and a long range is cut into several: the largest piece goes
first, each to the task that has least so far.

A module of its own: it is arithmetic on numbers alone, which is tried on any, and the source asks farms over a network.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

TASKS_MAX = 16
FARMS_PER_TASK = 32
"""How many farms one task reads, while there are fewer tasks than the most: each costs a connection."""


class Span(NamedTuple):
    """Entries of one farm with first <= index < end."""

    farm: str
    first: int
    end: int


def fair_shares(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many entries each farm may give of what it has, `limit` in all; the order of the mapping breaks ties."""
    shares: dict[str, int] = {}
    left = limit
    for number, (farm, count) in enumerate(sorted(wanted.items(), key=lambda each: each[1])):
        # What does not divide goes to those that want most, who come last.
        shares[farm] = min(count, left // (len(wanted) - number))
        left -= shares[farm]
    return shares


def packed(spans: Sequence[Span], entries_per_task: int) -> list[list[Span]]:
    """The spans in at most `TASKS_MAX` tasks of about equal size, each in order of farm and index."""
    total = sum(span.end - span.first for span in spans)
    by_size, by_farms = -(-total // entries_per_task), -(-len(spans) // FARMS_PER_TASK)
    count = min(max(by_size, by_farms), TASKS_MAX)
    if not count:
        return []
    size = max(entries_per_task, -(-total // count)) if len(spans) == 1 else -(-total // count)
    pieces = [
        Span(span.farm, first, min(first + size, span.end))
        for span in spans
        for first in range(span.first, span.end, size)
    ]
    tasks: list[tuple[int, int, list[Span]]] = [(0, number, []) for number in range(count)]
    heapify(tasks)
    for piece in sorted(pieces, key=lambda each: each.first - each.end):
        load, number, taken = tasks[0]
        heapreplace(tasks, (load + piece.end - piece.first, number, [*taken, piece]))
    in_order = (sorted(taken) for _, _, taken in tasks if taken)
    return sorted(in_order)
