"""The choices of an operator in the live view, and the effect of a key: pure, so that a test can type like an operator.

    update(state, key, farm) ─▶ state, and an order if a question was answered with yes

    farm ◀──Esc── detail, events, log, publishing, help        f e l p ?  lead from everywhere to everywhere
      │ Enter: detail of the chosen member
      │ / : a filter, typed until Enter (Esc takes it back)    s, S: column and direction
      ├ T X L: a question; y carries it out, every other key takes it back
      └ V: a question; the name of the member, typed in full, carries it out; Esc takes it back

An action is never carried out by one key: a question that names the member comes first. An eviction cannot be undone,
so a slip of two keys must not be enough. This module does not carry out orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from bridge.api.view import FarmView, MemberView
from bridge.api.words import by_name


class Pane(Enum):
    """The shown pane."""

    FARM = "farm"
    DETAIL = "detail"
    EVENTS = "events"
    LOG = "log"
    PUBLISHING = "publishing"
    HELP = "help"


class Sort(Enum):
    """The column that sorts the members."""

    NAME = "name"
    STATUS = "status"
    RTT = "rtt"
    LAG = "lag"
    RAFT = "raft"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Leadership goes to a member."""

    name: str


@dataclass(frozen=True, slots=True)
class Exclude:
    """Leaves are kept out of every structure, or no longer."""

    destinations: tuple[str, ...]
    excluded: bool


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict an identity permanently, and replace all keys."""

    node_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Make the contacted node leave the farm and stop."""

    name: str


@dataclass(frozen=True, slots=True)
class Quit:
    """The view ends."""


Order: TypeAlias = Transfer | Exclude | Evict | Leave | Quit


@dataclass(frozen=True, slots=True)
class Question:
    """The effect of an order, and the order."""

    text: str
    order: Order
    name: str = ""
    """The name that carries the order out, typed in full; empty: y does."""


@dataclass(frozen=True, slots=True)
class ViewState:
    """The choices of an operator.

    `editing` is the filter while it is typed; `offset` counts lines back from the newest.
    """

    pane: Pane = Pane.FARM
    selected: str | None = None
    """The NodeId of the chosen member; None: the first."""
    sort: Sort = Sort.NAME
    descending: bool = False
    filter: str = ""
    editing: str | None = None
    offset: int = 0
    question: Question | None = None
    answer: str = ""
    """The typed part of the name that a question requires."""
    notice: str = ""
    """The result of the last order, or the reason why there was none."""
    quit_question: str = ""
    """The question before the view ends; empty: it ends immediately."""


PANE_KEYS: Final = {
    "f": Pane.FARM,
    "e": Pane.EVENTS,
    "l": Pane.LOG,
    "p": Pane.PUBLISHING,
    "?": Pane.HELP,
    "h": Pane.HELP,
}
_TABS: Final = (Pane.FARM, Pane.EVENTS, Pane.LOG, Pane.PUBLISHING, Pane.HELP)
_SCROLLING: Final = frozenset({Pane.EVENTS, Pane.LOG, Pane.PUBLISHING, Pane.HELP})
PAGE_LINES: Final = 10
FILTER_CHARACTERS: Final = 60
_MOVES: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -PAGE_LINES, "page-down": PAGE_LINES}


def update(state: ViewState, key: str, farm: FarmView | None) -> tuple[ViewState, Order | None]:
    """Return the state after a key, and the order that it gives."""
    if key in ("ctrl-c", "ctrl-d"):
        return state, Quit()
    if state.question is not None:
        return _answer(state, state.question, key)
    if state.editing is not None:
        return _edit(state, state.editing, key), None
    state = replace(state, notice="")
    if key in ("q", "Q"):
        if state.quit_question:
            return replace(state, question=Question(state.quit_question, Quit())), None
        return state, Quit()
    return _navigate(state, key, farm), None


def _answer(state: ViewState, question: Question, key: str) -> tuple[ViewState, Order | None]:
    """Return the state after a key that answers a question, and the order if the answer carries it out."""
    ended = replace(state, question=None, answer="")
    refused = replace(ended, notice="Nothing was done.")
    if not question.name:
        return (ended, question.order) if key in ("y", "Y") else (refused, None)
    if key == "enter" and state.answer == question.name:
        return ended, question.order
    match key:
        case "enter":
            state = replace(refused, notice=f"Nothing was done: the answer was not {question.name}.")
        case "escape":
            state = refused
        case "backspace":
            state = replace(state, answer=state.answer[:-1])
        case _ if len(key) == 1 and len(state.answer) < FILTER_CHARACTERS:
            state = replace(state, answer=state.answer + key)
        case _:
            pass
    return state, None


def _edit(state: ViewState, text: str, key: str) -> ViewState:
    match key:
        case "enter":
            return replace(state, filter=text, editing=None, offset=0)
        case "escape":
            return replace(state, filter="", editing=None, offset=0)
        case "backspace":
            return replace(state, editing=text[:-1])
        case _ if len(key) == 1 and len(text) < FILTER_CHARACTERS:
            return replace(state, editing=text + key)
        case _:
            return state


def _navigate(state: ViewState, key: str, farm: FarmView | None) -> ViewState:
    if key in PANE_KEYS:
        return replace(state, pane=PANE_KEYS[key], offset=0)
    if key in _MOVES or key in ("home", "end"):
        return _moved(state, key, farm)
    if key in _QUESTIONS:
        return _with_question(state, key, farm)
    changed = state
    match key:
        case "escape":
            changed = replace(state, pane=Pane.FARM, filter="", offset=0)
        case "tab" | "right" | "left":
            changed = _turned(state, -1 if key == "left" else 1)
        case "/":
            changed = replace(state, editing="")
        case "s":
            orders = list(Sort)
            changed = replace(state, sort=orders[(orders.index(state.sort) + 1) % len(orders)])
        case "S":
            changed = replace(state, descending=not state.descending)
        case "enter":
            chosen = selected_member(state, farm)
            changed = state if chosen is None else replace(state, pane=Pane.DETAIL, selected=chosen.node_id)
        case _:
            pass
    return changed


def _turned(state: ViewState, by: int) -> ViewState:
    at = _TABS.index(state.pane) if state.pane in _TABS else 0
    return replace(state, pane=_TABS[(at + by) % len(_TABS)], offset=0)


def _moved(state: ViewState, key: str, farm: FarmView | None) -> ViewState:
    by = _MOVES.get(key, 0)
    if state.pane in _SCROLLING:
        # The newest is last in the log and first elsewhere: down always means further down the screen.
        offset = 0 if key == "home" else 10**6 if key == "end" else max(0, state.offset + by)
        return replace(state, offset=offset)
    members = shown_members(state, farm)
    if not members:
        return state
    at = next((place for place, each in enumerate(members) if each.node_id == state.selected), 0)
    to = 0 if key == "home" else len(members) - 1 if key == "end" else min(max(0, at + by), len(members) - 1)
    return replace(state, selected=members[to].node_id)


def _with_question(state: ViewState, key: str, farm: FarmView | None) -> ViewState:
    chosen = selected_member(state, farm)
    if farm is None or chosen is None:
        return replace(state, notice="Choose a member first.")
    question = _QUESTIONS[key](farm, chosen)
    return replace(state, question=question) if isinstance(question, Question) else replace(state, notice=question)


def _transfer(farm: FarmView, member: MemberView) -> Question | str:
    if member.raft_id is None or member.raft_id not in {voter.raft_id for voter in farm.raft.voters}:
        return f"{member.name} does not vote, so it cannot lead."
    if member.raft_id == farm.raft.leader_id:
        return f"{member.name} already leads."
    return Question(f"Hand leadership to {member.name}?", Transfer(member.name))


def _exclude(farm: FarmView, member: MemberView) -> Question | str:
    report = next((each for each in farm.reports if each.raft_id == member.raft_id), None)
    if report is None or not report.leaves:
        return f"{member.name} does not report a leaf."
    destinations = tuple(leaf.destination for leaf in report.leaves)
    if all(leaf.excluded for leaf in report.leaves):
        return Question(f"Include the leaves of {member.name} again?", Exclude(destinations, excluded=False))
    return Question(f"Exclude the leaves of {member.name} from every structure?", Exclude(destinations, excluded=True))


def _evict(_farm: FarmView, member: MemberView) -> Question | str:
    if member.evicted:
        return f"{member.name} is already evicted."
    if member.is_self:
        return f"{member.name} cannot evict itself: watch another node."
    return Question(
        f"Evict {member.name} permanently, and replace all keys of the farm? Its identity can never rejoin.",
        Evict(member.node_id, member.name),
        member.name,
    )


def _leave(_farm: FarmView, member: MemberView) -> Question | str:
    if not member.is_self:
        return f"Only the watched node can be made to leave: watch {member.name} (garlicfarm top --node …)."
    return Question(f"Make {member.name} leave the farm and stop?", Leave(member.name))


_QUESTIONS: Final[dict[str, Callable[[FarmView, MemberView], Question | str]]] = {
    "T": _transfer,
    "X": _exclude,
    "V": _evict,
    "L": _leave,
}


def shown_members(state: ViewState, farm: FarmView | None) -> list[MemberView]:
    """Return the members that pass the filter, sorted."""
    if farm is None:
        return []
    pattern = (state.filter if state.editing is None else state.editing).lower()
    lags = {each.raft_id: each.lag_entries for each in farm.raft.followers}
    members = [each for each in by_name(farm.members) if pattern in _searched(each)]
    match state.sort:
        case Sort.NAME:
            pass
        case Sort.STATUS:
            members.sort(key=lambda each: each.status.value)
        case Sort.RTT:
            members.sort(key=lambda each: _last_if_unknown(each.rtt_ms))
        case Sort.LAG:
            members.sort(key=lambda each: _last_if_unknown(None if each.raft_id is None else lags.get(each.raft_id)))
        case Sort.RAFT:
            members.sort(key=lambda each: (each.raft_id != farm.raft.leader_id, _last_if_unknown(each.raft_id)))
    members = members[::-1] if state.descending else members
    return sorted(members, key=lambda each: each.evicted)


def selected_member(state: ViewState, farm: FarmView | None) -> MemberView | None:
    """Return the chosen member; the first one without a choice."""
    members = shown_members(state, farm)
    found = next((each for each in members if each.node_id == state.selected), None)
    return found or (members[0] if members else None)


def _searched(member: MemberView) -> str:
    fields: Sequence[object] = (
        member.name,
        member.node_id,
        member.status.value,
        member.server_role.value,
        member.address,
    )
    return " ".join(str(each) for each in fields if each is not None).lower()


def _last_if_unknown(value: float | None) -> float:
    return float("inf") if value is None else value
