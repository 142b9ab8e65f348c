"""The last take-over (change of the leader or a publisher): its steps until the publication, from one node's trace.

    events of the trace ─▶ last_take_over ─▶ steps ─▶ `top`, `up`, and the page (`/v1/stream`)

`top` and the page show the same steps because both take them from here. A list of the last twelve events of some kinds
would be simpler. But it would mix later changes of the verdict and returning members into an earlier take-over.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bridge.api.events import (
    ELECTION_STARTED,
    LEADER_ELECTED,
    LEADER_FOLLOWED,
    LEADER_UNKNOWN,
    MEMBER_DEAD,
    MEMBER_SUSPECT,
    NODE_STARTED,
    PUBLICATION_ACCEPTED,
    PUBLISHED,
    PUBLISHER_CHOSEN,
    event_sentence,
    is_of_farm,
)
from bridge.api.json import Record
from bridge.api.trace import Scalar, TraceEvent

APART_MS: Final = 15_000
"""Longest time between two steps; earlier events belong to another change."""
REPLAYED_MS: Final = 60_000
"""Age of a choice of a publisher, in milliseconds, above which it belongs to the log that a new node reads. Clocks and
log time differ by less."""


class Step(Record, frozen=True):
    """One step of a take-over."""

    time_ms: int
    """By the clock of the node, milliseconds since the epoch."""
    what: str
    """The kind of the step."""
    detail: str
    """The event as text."""


class TakeOver(Record, frozen=True):
    """The last take-over that a node has seen; without steps if it has not seen any."""

    steps: tuple[Step, ...] = ()
    """In the order of their times."""


def changes_take_over(events: Iterable[TraceEvent]) -> bool:
    """Return True if one of these events can be a step."""
    return any(each.kind in _STEPS or each.kind in _OVER for each in events)


def last_take_over(events: Sequence[TraceEvent]) -> tuple[Step, ...]:
    """Return the steps of the last change of leader or publisher, from the first suspicion to the publication.

    The steps are in the order of their time; empty without a change. A publication ends a take-over. So the steps begin
    after the last publication before the change, and a suspicion after the next publication is not a step.
    """
    ordered = sorted(events, key=lambda event: event.time_ms)
    core = list(_steps_once(ordered))
    turn = max((at for at, event in enumerate(core) if event.kind in _TURNS), default=None)
    if turn is None:
        return ()
    begin = end = turn
    over_ms = max(
        (each.time_ms for each in ordered if each.kind in _OVER and each.time_ms < core[turn].time_ms), default=0
    )
    while begin > 0 and core[begin - 1].time_ms > max(over_ms, core[begin].time_ms - APART_MS - 1):
        begin -= 1
    over = [each.time_ms for each in ordered if each.kind in _OVER and each.time_ms >= core[turn].time_ms]
    while end + 1 < len(core) and core[end + 1].time_ms - core[end].time_ms <= APART_MS:
        if core[end + 1].kind == MEMBER_SUSPECT.kind and over and core[end + 1].time_ms > over[0]:
            break
        end += 1
    steps: dict[str, Step] = {}
    for event in core[begin : end + 1]:
        what = _STEPS[event.kind]
        if event.kind in _LAST_COUNTS:
            steps.pop(what, None)
        steps.setdefault(what, _step(event, what))
    for kind, what in _OVER.items() if steps.keys() & _LEADS_TO_A_STRUCTURE else ():
        done = next((each for each in ordered if each.kind == kind and each.time_ms >= core[turn].time_ms), None)
        if done is not None and done.time_ms - core[turn].time_ms <= APART_MS:
            steps[what] = _step(done, what)
            break
    return tuple(sorted(steps.values(), key=lambda step: step.time_ms))


def _steps_once(ordered: Iterable[TraceEvent]) -> Iterator[TraceEvent]:
    """Yield the possible steps; skip steps that a started node repeats.

    A started node begins to follow a leader that led before, and applies entries with earlier choices of publishers.
    """
    started, choices = set[str](), set[tuple[int, Scalar]]()
    for event in ordered:
        if event.kind == NODE_STARTED.kind:
            started.add(event.node)
        elif event.kind == PUBLISHER_CHOSEN.kind and event.log_time_ms is not None:
            if event.time_ms - event.log_time_ms > REPLAYED_MS:
                continue
            choice = (event.log_time_ms, event.data.get("server"))
            if choice not in choices:
                choices.add(choice)
                yield event
        elif event.kind in _STEPS:
            if event.kind != LEADER_FOLLOWED.kind or event.node not in started:
                yield event
            if event.kind in _LEADER_STEPS:
                started.discard(event.node)


_STEPS: Final = {
    MEMBER_SUSPECT.kind: "suspected",
    MEMBER_DEAD.kind: "dead",
    LEADER_UNKNOWN.kind: "without a leader",
    ELECTION_STARTED.kind: "election",
    LEADER_ELECTED.kind: "elected",
    LEADER_FOLLOWED.kind: "elected",
    PUBLISHER_CHOSEN.kind: "publisher chosen",
}
_LEADER_STEPS: Final = frozenset(
    {LEADER_UNKNOWN.kind, ELECTION_STARTED.kind, LEADER_ELECTED.kind, LEADER_FOLLOWED.kind}
)
_TURNS: Final = frozenset({LEADER_ELECTED.kind, LEADER_FOLLOWED.kind, PUBLISHER_CHOSEN.kind})
_OVER: Final = {PUBLISHED.kind: "handed over", PUBLICATION_ACCEPTED.kind: "accepted"}
"""The end of a take-over. Other servers record only that the log permits the publication; only the publisher records
that its router accepted the structure."""
_LEADS_TO_A_STRUCTURE: Final = frozenset({"dead", "publisher chosen"})
"""Steps that lead to a publication. A structure published after a mere change of the leader has another cause."""
_LAST_COUNTS: Final = frozenset({PUBLISHER_CHOSEN.kind})
"""Only the last event of these kinds is a step: while reports become stale and return, several servers are chosen."""


def _step(event: TraceEvent, what: str) -> Step:
    sentence = event_sentence(event)
    if not sentence or not is_of_farm(event):
        sentence = f"{event.node}: {sentence or what}"
    return Step(event.time_ms, what, sentence)
