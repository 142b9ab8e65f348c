"""Whether a history of reads and writes is one that a single store could have shown (Herlihy and Wing 1990).

Each key is judged on its own, for linearizability is local. A write says which value it found, so one that was applied
twice, or lost, is seen by the next. The search is Wing and Gong's with the memory of Lowe's: take any operation that
no other has ended before, apply it, go on with the rest; back up where an operation that has ended was not taken. Which
operations were taken and what value that left is remembered, so no such place is searched twice.

An operation without an answer may have taken effect at any time after its call, or never. If its value was never seen
it may as well come last, so it is left out; the others stay open to the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

NOTHING = 0
"""The value of a key that was never written."""


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
    """What the search says."""

    LINEARIZABLE = "linearizable"
    CONTRADICTORY = "contradictory"
    UNDECIDED = "undecided"
    """The search was given up at its bound."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a history, and the key that it is about unless all is well."""

    verdict: Verdict
    key: int | None = None


def judge(operations: Iterable[Operation], steps_max: int = 300_000) -> Judgement:
    """Judge every key; a contradiction outweighs a search that was given up."""
    by_key: dict[int, list[Operation]] = {}
    for operation in operations:
        by_key.setdefault(operation.key, []).append(operation)
    undecided = None
    for key, history in sorted(by_key.items()):
        verdict = judge_key(history, steps_max)
        if verdict is Verdict.CONTRADICTORY:
            return Judgement(verdict, key)
        if verdict is Verdict.UNDECIDED:
            undecided = key
    return Judgement(Verdict.LINEARIZABLE if undecided is None else Verdict.UNDECIDED, undecided)


def judge_key(history: Sequence[Operation], steps_max: int) -> Verdict:
    """Judge the operations of one key."""
    seen = {operation.found for operation in history}
    relevant = [operation for operation in history if operation.answered is not None or operation.written in seen]
    relevant = [operation for operation in relevant if operation.answered is not None or operation.written is not None]
    return _Search(relevant).run(steps_max)


class _Search:
    """The list of calls and answers in the order of time, from which what is taken is lifted out and put back."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        moments = [(operation.called, number, True) for number, operation in enumerate(operations)]
        moments += [(operation.answered or 2**62, number, False) for number, operation in enumerate(operations)]
        moments.sort()
        # Place 0 is the head of the list and the last one its end.
        self._places = [(-1, False), *((number, calls) for _, number, calls in moments), (-1, False)]
        self._end = len(self._places) - 1
        self._next = [*range(1, len(self._places)), 0]
        self._before = [0, *range(len(self._places) - 1)]
        self._answer_of = {number: place for place, (number, calls) in enumerate(self._places) if not calls}

    def run(self, steps_max: int) -> Verdict:
        """Search."""
        value, done = NOTHING, 0
        taken: list[tuple[int, int]] = []
        known: set[tuple[int, int]] = set()
        place = self._next[0]
        for _ in range(steps_max):
            if self._next[0] == self._end:
                return Verdict.LINEARIZABLE
            number, calls = self._places[place]
            if calls:
                operation = self._operations[number]
                after = value if operation.written is None else operation.written
                state = (done | 1 << number, after)
                if operation.found in (None, value) and state not in known:
                    known.add(state)
                    taken.append((place, value))
                    done, value = state
                    self._lift(place, number)
                    place = self._next[0]
                else:
                    place = self._next[place]
            elif taken:
                place, value = taken.pop()
                number, _ = self._places[place]
                done &= ~(1 << number)
                self._put_back(place, number)
                place = self._next[place]
            else:
                return Verdict.CONTRADICTORY
        return Verdict.UNDECIDED

    def _lift(self, place: int, number: int) -> None:
        for gone in (place, self._answer_of[number]):
            self._next[self._before[gone]] = self._next[gone]
            self._before[self._next[gone]] = self._before[gone]

    def _put_back(self, place: int, number: int) -> None:
        for back in (self._answer_of[number], place):
            self._next[self._before[back]] = back
            self._before[self._next[back]] = back
