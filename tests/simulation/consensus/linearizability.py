"""Decides if a single store could have produced a history of reads and writes (Herlihy and Wing 1990).

Linearizability is local, so each key is judged separately. All written values differ, and each answered write returns
the value that it replaced. The decision is therefore exact, without a search. Its time grows at most with the square
of the history (Gibbons and Korach 1997, "Testing shared memories", for registers whose values differ).

    span      the time when the key had one value: its write, then every read of it, in any order that their times
              permit. `ended` is the first answer among them, `last_call` the last call. A span can precede another one
              only if none of its calls comes after an answer of the other
    chain     consecutive spans: each write found the value of the previous span

An order of all operations exists exactly if an order of the chains exists. Within a chain, each span must be able to
precede the next one. Across chains, the required precedences must not form a cycle.

An operation without an answer may have taken effect at any time after its call, or never. If no other operation found
its value, it may have been the last one, so it is ignored. Otherwise it remains open until the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from graphlib import CycleError, TopologicalSorter

NOTHING = 0
"""The value of a key before its first write."""
_EVER = 2**62
"""A moment after the end of every history."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client on one key. All moments of a history differ."""

    key: int
    written: int | None
    """The written value, unique among all operations; None: a read."""
    found: int | None
    """The value before the write, or the read value; None without an answer."""
    called: int
    answered: int | None


class Verdict(Enum):
    """The result for a history or a key."""

    LINEARIZABLE = "linearizable"
    CONTRADICTORY = "contradictory"


@dataclass(frozen=True, slots=True)
class Judgment:
    """The verdict on a history, and the contradictory key, if any."""

    verdict: Verdict
    key: int | None = None


@dataclass(slots=True)
class _Span:
    """The time when the key had one value."""

    written: int
    """Time of the call of its write."""
    ended: int
    """Time of the first answer among its operations."""
    last_call: int
    """Time of the last call among its operations."""

    def add(self, operation: Operation) -> None:
        self.ended = min(self.ended, operation.answered or _EVER)
        self.last_call = max(self.last_call, operation.called)


def judge(operations: Iterable[Operation]) -> Judgment:
    by_key: dict[int, list[Operation]] = {}
    for operation in operations:
        by_key.setdefault(operation.key, []).append(operation)
    for key, history in sorted(by_key.items()):
        if judge_key(history) is Verdict.CONTRADICTORY:
            return Judgment(Verdict.CONTRADICTORY, key)
    return Judgment(Verdict.LINEARIZABLE)


def judge_key(history: Sequence[Operation]) -> Verdict:
    seen = {operation.found for operation in history}
    writes = [
        each for each in history if each.written is not None and (each.answered is not None or each.written in seen)
    ]
    reads = [each for each in history if each.written is None and each.answered is not None]
    spans = {NOTHING: _Span(-1, _EVER, -1)}
    for write in writes:
        value = write.written
        if value is None or value in spans:
            raise ValueError(f"value {value} is written twice: such a history cannot be judged")
        spans[value] = _Span(write.called, write.answered or _EVER, write.called)
    for read in reads:
        span = None if read.found is None else spans.get(read.found)
        if span is None or (read.answered or _EVER) < span.written:
            return Verdict.CONTRADICTORY
        span.add(read)
    chains = _chains(writes, spans)
    return Verdict.LINEARIZABLE if chains is not None and _has_order(chains) else Verdict.CONTRADICTORY


def _chains(writes: Sequence[Operation], spans: dict[int, _Span]) -> list[list[_Span]] | None:
    """Group the spans into chains, first NOTHING's.

    Return None if two writes found the same value, or if a write found a value that was never written. Also return None
    if writes found each other's values in a cycle.
    """
    successors: dict[int, int] = {}
    for write in writes:
        if write.found is not None and write.written is not None:
            if write.found in successors or write.found not in spans:
                return None
            successors[write.found] = write.written
    chains = []
    for value in spans.keys() - set(successors.values()) | {NOTHING}:
        chain = [value]
        while chain[-1] in successors:
            chain.append(successors[chain[-1]])
        chains.append(chain)
    if sum(map(len, chains)) < len(spans):
        return None  # a cycle
    chains.sort(key=lambda chain: chain[0] != NOTHING)
    return [[spans[value] for value in chain] for chain in chains]


def _has_order(chains: Sequence[Sequence[_Span]]) -> bool:
    for chain in chains:
        last_call = -1
        for span in chain:
            if span.ended < last_call:
                return False
            last_call = max(last_call, span.last_call)
    ends = [min(span.ended for span in chain) for chain in chains]
    begins = [max(span.last_call for span in chain) for chain in chains]
    order: TopologicalSorter[int] = TopologicalSorter()
    for number, last_call in enumerate(begins):
        earlier = {other for other, ended in enumerate(ends) if ended < last_call}
        order.add(number, *(earlier | ({0} if number else set())) - {number})
    try:
        order.prepare()
    except CycleError:
        return False
    return True
