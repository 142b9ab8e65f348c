"""The division of a micro-batch among many farms, and of its entries into few tasks.

*Shares.* The admission limit of a stream (the entries in one micro-batch) is divided max-min fairly. A farm with fewer
entries than an equal share gives all its entries. The other farms divide its remaining share in the same way. So a farm
with a backlog of millions takes the remaining share and does not delay farms that report every half minute. If there
are too many farms for a share of `SHARE_LEAST` entries each, they take turns. A share has this minimum, because each
farm in a batch costs a request and a change of its state.

*Tasks.* A task costs Spark more than reading a thousand entries. A farm that reports twice a minute has only a few
entries in a batch. So the ranges of many farms are packed into few tasks, and a long range is cut into several. The
largest piece goes first, and each piece goes to the task with the fewest entries so far.

This module is separate from the source, which needs a network: tests call this arithmetic with any numbers.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import NamedTuple

SHARE_LEAST = 32
TASKS_MAX = 16
FARMS_PER_TASK = 32
"""The number of farms per task while there are fewer tasks than the maximum. Each farm costs a connection."""


class Span(NamedTuple):
    """Entries of one farm with first <= index < end."""

    farm: str
    first: int
    end: int


def fitting_demands(demands: Mapping[str, int], limit: int, after: str) -> dict[str, int]:
    """Return all demands; if there are too many, the demands that fit, in circular order after `after`."""
    # With many farms, the sum exceeds the limit early.
    if all(total <= limit for total in accumulate(min(count, SHARE_LEAST) for count in demands.values())):
        return {**demands}
    in_order = sorted(demands)
    first = bisect_right(in_order, after)
    chosen: dict[str, int] = {}
    for farm in (*in_order[first:], *in_order[:first]):
        if limit <= 0:
            break
        chosen[farm] = demands[farm]
        limit -= min(demands[farm], SHARE_LEAST)
    return chosen


def fair_shares(demands: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return the number of entries that each farm may give, at most `limit` in all; the mapping's order breaks ties."""
    if sum(demands.values()) <= limit:
        return {**demands}
    shares: dict[str, int] = {}
    left = limit
    for number, (farm, count) in enumerate(sorted(demands.items(), key=lambda each: each[1])):
        # The remainder of the division goes to the largest farms, which come last.
        shares[farm] = min(count, left // (len(demands) - number))
        left -= shares[farm]
    return shares


def packed(spans: Sequence[Span], entries_per_task: int) -> list[list[Span]]:
    """Return the spans in at most `TASKS_MAX` tasks of about equal size, each in order of farm and index."""
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
        taken.append(piece)
        heapreplace(tasks, (load + piece.end - piece.first, number, taken))
    in_order = (sorted(taken) for _, _, taken in tasks if taken)
    return sorted(in_order)
