"""The choices of an operator in the live view, and the effect of a key or a click. Tests do not need a terminal.

    update(state, key, farm, history) ─▶ state, and an order if a question was answered with yes
    click(state, target, …), wheel(state, by, …) ─▶ the same for the mouse

    farm ◀──Esc── detail, events, log, publishing, timeline, help    f e l p t ?  lead from everywhere to everywhere
      │ Enter, double click: detail of the chosen member       events: Enter ─▶ its member, o ─▶ the log at its time
      │ / : a filter, typed until Enter (Esc takes it back)    s, S, click on a heading: column and direction
      ├ T X L: a question; y carries it out, every other key takes it back
      └ V: a question; the name of the member, typed in full, carries it out; Esc takes it back

A single key never carries out an action: a question that names the member comes first. An eviction cannot be undone, so
two wrong keys must not be enough for it.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, TypeAlias, TypeVar, assert_never

from msgspec import Struct
from msgspec.structs import replace

from bridge.api.view import FarmView, MemberView
from bridge.api.words import by_name
from bridge.tui.history import ENTRIES, EntryLine, History
from bridge.tui.story import StoryLine
from bridge.tui.targets import OnEntry, OnEvent, OnFarm, OnHeading, OnKey, OnMember, Sort, Target


class Pane(Enum):
    """The shown pane."""

    FARM = "farm"
    DETAIL = "detail"
    EVENTS = "events"
    LOG = "log"
    PUBLISHING = "publishing"
    TIMELINE = "timeline"
    HELP = "help"


class Transfer(Struct, frozen=True):
    """Transfer leadership to a member."""

    name: str


class Exclude(Struct, frozen=True):
    """Exclude leaves from every structure, or include them again."""

    destinations: tuple[str, ...]
    excluded: bool


class Evict(Struct, frozen=True):
    """Evict an identity permanently, and replace all keys."""

    node_id: str
    name: str


class Leave(Struct, frozen=True):
    """Make the contacted node leave the farm and stop."""

    name: str


class Quit(Struct, frozen=True):
    """The view ends."""


Order: TypeAlias = Transfer | Exclude | Evict | Leave | Quit


class Question(Struct, frozen=True):
    """The effect of an order, and the order."""

    text: str
    order: Order
    name: str = ""
    """The name that the operator must type in full; if empty, `y` carries the order out."""


class ViewState(Struct, frozen=True):
    """The choices of an operator.

    `editing` is the filter while it is typed; `offset` is the number of hidden lines above a text.
    """

    pane: Pane = Pane.FARM
    selected: str | None = None
    """The NodeId of the chosen member; None: the first."""
    sort: Sort = Sort.NAME
    descending: bool = False
    filter: str = ""
    editing: str | None = None
    offset: int = 0
    event: int | None = None
    """The number of the chosen event; None: the newest."""
    entry: int | None = None
    """The index of the chosen entry of the log; None: the newest."""
    top: int | None = None
    """The first shown event or entry; None: the newest."""
    log_from: int | None = None
    """The first entry of the shown part of the log; None: its end, which grows."""
    log_at_ms: int | None = None
    """Log time of an entry that will be chosen when it is found."""
    hours: int = 24
    """Length of the timeline."""
    mouse: bool = True
    """True if the view receives the mouse; otherwise the terminal selects text with it."""
    question: Question | None = None
    answer: str = ""
    """The typed part of the name that a question requires."""
    notice: str = ""
    """The result of the last order, or the reason why it was not carried out."""
    quit_question: str = ""
    """The question before the view ends; empty: it ends immediately."""


PANE_KEYS: Final = {
    "f": Pane.FARM,
    "e": Pane.EVENTS,
    "l": Pane.LOG,
    "p": Pane.PUBLISHING,
    "t": Pane.TIMELINE,
    "?": Pane.HELP,
    "h": Pane.HELP,
}
_TABS: Final = (Pane.FARM, Pane.EVENTS, Pane.LOG, Pane.PUBLISHING, Pane.TIMELINE, Pane.HELP)
PAGE_LINES: Final = 10
FILTER_CHARACTERS: Final = 60
HOURS: Final = (1, 6, 24)
"""Lengths of the timeline."""
WHEEL_LINES: Final = 3
ALL_LINES: Final = 10**6
MOVES: Final = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page-up": -PAGE_LINES,
    "page-down": PAGE_LINES,
    "home": -ALL_LINES,
    "end": ALL_LINES,
}
"""Number of lines down the screen."""
_TURNS: Final = {"tab": 1, "right": 1, "left": -1, "back-tab": -1}
"""Number of panes to the right."""


def update(
    state: ViewState, key: str, farm: FarmView | None, history: History | None = None
) -> tuple[ViewState, Order | None]:
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
    return _navigate(state, key, farm, history or History()), None


def click(
    state: ViewState, target: Target, farm: FarmView | None, history: History, *, double: bool = False
) -> tuple[ViewState, Order | None]:
    """Return the state after a click on a target. A click chooses the target; a double click opens it."""
    if isinstance(target, OnKey):
        return update(state, target.key, farm, history)
    if state.question is not None:
        return state, None
    if state.editing is not None:
        state = _edit(state, state.editing, "enter")
    state = replace(state, notice="")
    match target:
        case OnMember(node_id):
            state = replace(state, selected=node_id)
        case OnEvent(number):
            state = replace(state, pane=Pane.EVENTS, event=number)
        case OnEntry(index):
            state = replace(state, entry=index)
        case OnHeading(sort):
            return replace(state, sort=sort, descending=sort is state.sort and not state.descending), None
        case OnFarm():
            return state, None
        case _:
            assert_never(target)
    return update(state, "enter", farm, history) if double else (state, None)


def wheel(state: ViewState, by: int, farm: FarmView | None, history: History) -> ViewState:
    """Return the state after steps of the wheel: `by` lines down."""
    return state if state.question is not None else _moved_by(state, by, farm, history)


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
            return replace(state, filter=text, editing=None, offset=0, top=None)
        case "escape":
            return replace(state, filter="", editing=None, offset=0, top=None)
        case "backspace":
            return replace(state, editing=text[:-1])
        case _ if len(key) == 1 and len(text) < FILTER_CHARACTERS:
            return replace(state, editing=text + key)
        case _:
            return state


def _navigate(state: ViewState, key: str, farm: FarmView | None, history: History) -> ViewState:
    changed = state
    match key:
        case _ if key in PANE_KEYS:
            changed = _opened(state, PANE_KEYS[key])
        case _ if key in MOVES:
            changed = _moved_by(state, MOVES[key], farm, history)
        case _ if key in _QUESTIONS:
            changed = _with_question(state, key, farm)
        case _ if key in _CHOICES:
            changed = _CHOICES[key](state)
        case "escape":
            changed = replace(_opened(state, Pane.FARM), filter="")
        case _ if key in _TURNS:
            changed = _turned(state, _TURNS[key])
        case "enter" | "o":
            changed = _followed(state, key, farm, history)
        case _:
            pass
    return changed


def _next_sort(state: ViewState) -> ViewState:
    orders = list(Sort)
    return replace(state, sort=orders[(orders.index(state.sort) + 1) % len(orders)])


def _next_hours(state: ViewState) -> ViewState:
    if state.pane is not Pane.TIMELINE:
        return state
    return replace(state, hours=HOURS[(HOURS.index(state.hours) + 1) % len(HOURS)], offset=0)


def _other_mouse(state: ViewState) -> ViewState:
    words = "The mouse selects text; m returns it to the view." if state.mouse else "The view receives the mouse."
    return replace(state, mouse=not state.mouse, notice=words)


_CHOICES: Final[dict[str, Callable[[ViewState], ViewState]]] = {
    "/": lambda state: replace(state, editing=""),
    "s": _next_sort,
    "S": lambda state: replace(state, descending=not state.descending),
    "m": _other_mouse,
    "w": _next_hours,
}


def _followed(state: ViewState, key: str, farm: FarmView | None, history: History) -> ViewState:
    """Return the state that a chosen row leads to."""
    match state.pane, key:
        case Pane.EVENTS, "enter":
            return _with_member_of_event(state, farm, history)
        case Pane.EVENTS, _:
            return _with_entry_of_event(state, history)
        case ((Pane.FARM | Pane.DETAIL | Pane.TIMELINE), "enter"):
            chosen = selected_member(state, farm)
            return state if chosen is None else replace(state, pane=Pane.DETAIL, selected=chosen.node_id)
        case _:
            return state


def is_home(state: ViewState) -> bool:
    """Return True if the first pane is shown, without a filter or a question that Esc would end."""
    is_typed = state.editing is not None or state.question is not None
    return state.pane is Pane.FARM and not state.filter and not is_typed


def _opened(state: ViewState, pane: Pane) -> ViewState:
    """Return the state with a pane at its beginning; the chosen member, event and entry stay."""
    return replace(state, pane=pane, offset=0, top=None, log_at_ms=None)


def _turned(state: ViewState, by: int) -> ViewState:
    at = _TABS.index(state.pane) if state.pane in _TABS else 0
    return _opened(state, _TABS[(at + by) % len(_TABS)])


def _moved_by(state: ViewState, by: int, farm: FarmView | None, history: History) -> ViewState:
    match state.pane:
        case Pane.FARM | Pane.DETAIL:
            members = [each.node_id for each in shown_members(state, farm)]
            member = _neighbor(members, state.selected, by)
            return state if member is None else replace(state, selected=member)
        case Pane.EVENTS:
            events = [each.number for each in shown_events(state, history)]
            to = _neighbor(events, state.event, by)
            # While the newest event is chosen, the choice moves to newer events.
            return state if to is None else replace(state, event=None if to == events[0] else to)
        case Pane.LOG:
            return _moved_in_log(state, by, history)
        case Pane.PUBLISHING | Pane.TIMELINE | Pane.HELP:
            return replace(state, offset=min(max(0, state.offset + by), ALL_LINES))
        case _:
            assert_never(state.pane)


def _moved_in_log(state: ViewState, by: int, history: History) -> ViewState:
    """Return the state with another entry; at an end of the loaded part, the next part is loaded."""
    entries = [each.index for each in shown_entries(state, history)]
    to = _neighbor(entries, state.entry, by)
    if to is None:
        return state
    if by <= -ALL_LINES:
        return replace(state, entry=None, top=None, log_from=None)
    oldest, newest = history.entries[0].index, history.entries[-1].index
    state = replace(state, entry=None if to == newest and state.log_from is None else to)
    if by > 0 and to == entries[-1] and oldest > 1:
        return replace(state, entry=to, log_from=max(1, oldest - ENTRIES // 2))
    if by < 0 and to == entries[0] and state.log_from is not None:
        return replace(state, log_from=state.log_from + ENTRIES // 2)
    return state


T = TypeVar("T")


def _neighbor(items: Sequence[T], chosen: T | None, by: int) -> T | None:
    """Return the item `by` places after the chosen one, or the last in that direction; None without items."""
    if not items:
        return None
    at = items.index(chosen) if chosen in items else 0
    return items[min(max(0, at + by), len(items) - 1)]


def _with_member_of_event(state: ViewState, farm: FarmView | None, history: History) -> ViewState:
    event = selected_event(state, history)
    if event is None or farm is None:
        return state
    member = next((each for each in by_name(farm.members) if each.name == event.member), None)
    if member is None:
        return replace(state, notice=f"{event.member} is not a member now.")
    return replace(_opened(state, Pane.DETAIL), selected=member.node_id)


def _with_entry_of_event(state: ViewState, history: History) -> ViewState:
    event = selected_event(state, history)
    if event is None:
        return state
    if event.log_time_ms is None:
        return replace(state, notice="This event does not come from the log.")
    return replace(_opened(state, Pane.LOG), filter="", log_at_ms=event.log_time_ms)


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
    excluded = not all(leaf.excluded for leaf in report.leaves)
    order = Exclude(tuple(leaf.destination for leaf in report.leaves if leaf.excluded != excluded), excluded=excluded)
    number = len(order.destinations)
    leaves = f"the leaf of {member.name}" if number == 1 else f"{number} leaves of {member.name}"
    return Question(f"Exclude {leaves} from every structure?" if excluded else f"Include {leaves} again?", order)


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
    return Question(
        f"Make {member.name} leave the farm and stop? To join again, it must be started on its machine.",
        Leave(member.name),
    )


_QUESTIONS: Final[dict[str, Callable[[FarmView, MemberView], Question | str]]] = {
    "T": _transfer,
    "X": _exclude,
    "V": _evict,
    "L": _leave,
}


def shown_events(state: ViewState, history: History) -> list[StoryLine]:
    """Return the events that pass the filter, the newest first."""
    pattern = pattern_of(state)
    return [each for each in reversed(history.story.lines) if pattern in each.text.lower()]


def selected_event(state: ViewState, history: History) -> StoryLine | None:
    """Return the chosen event; the newest without a choice."""
    events = shown_events(state, history)
    return next((each for each in events if each.number == state.event), events[0] if events else None)


def shown_entries(state: ViewState, history: History) -> list[EntryLine]:
    """Return the loaded entries that pass the filter, the newest first."""
    pattern = pattern_of(state)
    return [each for each in reversed(history.entries) if pattern in f"{each.type} {each.text}".lower()]


def selected_entry(state: ViewState, history: History) -> EntryLine | None:
    """Return the chosen entry; the newest without a choice."""
    entries = shown_entries(state, history)
    return next((each for each in entries if each.index == state.entry), entries[0] if entries else None)


def pattern_of(state: ViewState) -> str:
    """Return the text that shown rows contain."""
    return (state.filter if state.editing is None else state.editing).lower()


def shown_members(state: ViewState, farm: FarmView | None) -> list[MemberView]:
    """Return the members that pass the filter, sorted."""
    if farm is None:
        return []
    pattern = pattern_of(state)
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
