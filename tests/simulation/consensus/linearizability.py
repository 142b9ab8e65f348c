"""Whether a history of reads and writes is one that a single store could have shown (Herlihy and Wing 1990).

Each key is judged on its own, for linearizability is local. No value is written twice and each answered write says
which value it found, so nothing has to be searched, and no judgment is ever given up: the decision is exact, in time
that grows at most with the square of the history (Gibbons and Korach 1997, "Testing shared memories", for registers
whose values differ).

    span      the time in which a value was the key's: its write comes first, then every read of it, in any order that
              their times permit. `ended` is the first answer among them, `begun` the last call. It can be over before
              another span begins only if none of its calls comes after an answer of that one.
    chain     spans that follow each other at once, because each one's write found the value of the one before

So one order of all operations exists exactly if one order of the chains does: none may begin before one that must be
over has ended, neither within a chain nor, however many steps around, between chains.

An operation without an answer may have taken effect at any time after its call, or never. If its value was never seen
it may as well come last, so it is left out; the others stay open to the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from graphlib import CycleError, TopologicalSorter

NOTHING = 0
"""The value of a key that was never written."""
_EVER = 2**62
"""Later than every moment of a history."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client on one key. No two moments of a history are equal."""

    key: int
    written: int | None
    """A value that no other operation writes; None: this one reads."""
    found: int | None
    """The value before the write, or the value read; None if no answer came."""
    called: int
    answered: int | None


class Verdict(Enum):
    """What the history is."""

    LINEARIZABLE = "linearizable"
    CONTRADICTORY = "contradictory"


@dataclass(frozen=True, slots=True)
class Judgment:
    """The verdict on a history, and the key that it is about unless all is well."""

    verdict: Verdict
    key: int | None = None


@dataclass(slots=True)
class _Span:
    """The time in which one value was the key's."""

    written: int
    """When its write was called."""
    ended: int
    """The first answer among its operations."""
    begun: int
    """The last call among its operations."""

    def add(self, operation: Operation) -> None:
        self.ended = min(self.ended, operation.answered or _EVER)
        self.begun = max(self.begun, operation.called)


def judge(operations: Iterable[Operation]) -> Judgment:
    """Judge every key."""
    by_key: dict[int, list[Operation]] = {}
    for operation in operations:
        by_key.setdefault(operation.key, []).append(operation)
    for key, history in sorted(by_key.items()):
        if judge_key(history) is Verdict.CONTRADICTORY:
            return Judgment(Verdict.CONTRADICTORY, key)
    return Judgment(Verdict.LINEARIZABLE)


def judge_key(history: Sequence[Operation]) -> Verdict:
    """Judge the operations of one key."""
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
    """The spans by chains, the one of NOTHING first; None if two writes found one value, or one was never written."""
    following: dict[int, int] = {}
    for write in writes:
        if write.found is not None and write.written is not None:
            if write.found in following or write.found not in spans:
                return None
            following[write.found] = write.written
    chains = []
    for value in spans.keys() - set(following.values()) | {NOTHING}:
        chain = [value]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        chains.append(chain)
    if sum(map(len, chains)) < len(spans):
        return None  # writes that found each other's values in a circle
    chains.sort(key=lambda chain: chain[0] != NOTHING)
    return [[spans[value] for value in chain] for chain in chains]


def _has_order(chains: Sequence[Sequence[_Span]]) -> bool:
    for chain in chains:
        begun = -1
        for span in chain:
            if span.ended < begun:
                return False
            begun = max(begun, span.begun)
    ends = [min(span.ended for span in chain) for chain in chains]
    begins = [max(span.begun for span in chain) for chain in chains]
    order: TopologicalSorter[int] = TopologicalSorter()
    for number, begun in enumerate(begins):
        earlier = {other for other, ended in enumerate(ends) if ended < begun}
        order.add(number, *(earlier | ({0} if number else set())) - {number})
    try:
        order.prepare()
    except CycleError:
        return False
    return True
