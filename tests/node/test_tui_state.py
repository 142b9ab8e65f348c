"""Keys in the live view: panes, filter, order, selection, and questions before a change."""

import random
from collections.abc import Iterable

import pytest
from msgspec import structs
from msgspec.structs import replace

from bridge.api.entry_words import Names
from bridge.api.log import EntryKind, LogEntryView
from bridge.api.take_over import last_take_over
from bridge.api.trace import TraceEvent
from bridge.api.view import FarmView
from bridge.core.formation.member import MemberStatus
from bridge.tui.charts import figure_text, graph, round_above, sparkline
from bridge.tui.history import SAMPLES, History
from bridge.tui.keys import Button, KeyReader, Mouse
from bridge.tui.panes import ScreenData, draw_lines, settled
from bridge.tui.state import (
    WHEEL_LINES,
    Evict,
    Exclude,
    Leave,
    Order,
    Pane,
    Quit,
    Transfer,
    ViewState,
    click,
    selected_event,
    selected_member,
    shown_members,
    update,
    wheel,
)
from bridge.tui.targets import OnEntry, OnEvent, OnHeading, OnKey, OnMember, Sort, Target, target_at
from tests.effort import IS_SOAK, each_case
from tests.operator_views import farm_view


def typed(
    keys: Iterable[str], farm: FarmView | None = None, state: ViewState | None = None
) -> tuple[ViewState, list[Order]]:
    now, orders = state or ViewState(), []
    for key in keys:
        now, order = update(now, key, farm)
        orders += [] if order is None else [order]
    return now, orders


def event(at_ms: int, kind: str, **data: str | int) -> TraceEvent:
    return TraceEvent(at_ms, at_ms, None, kind, "node-2", data)


def names(state: ViewState, farm: FarmView) -> list[str]:
    return [each.name for each in shown_members(state, farm)]


def test_letters_open_panes_and_escape_returns() -> None:
    for key, pane in (
        ("e", Pane.EVENTS),
        ("l", Pane.LOG),
        ("p", Pane.PUBLISHING),
        ("t", Pane.TIMELINE),
        ("?", Pane.HELP),
        ("f", Pane.FARM),
    ):
        state, _ = typed([key])
        assert state.pane is pane
        assert typed(["escape"], state=state)[0].pane is Pane.FARM
    assert [typed(["tab"] * count)[0].pane for count in range(7)] == [
        *(Pane.FARM, Pane.EVENTS, Pane.LOG, Pane.PUBLISHING, Pane.TIMELINE, Pane.HELP),
        Pane.FARM,
    ]
    assert typed(["left"])[0].pane is Pane.HELP


def test_arrows_select_member_and_enter_shows_it() -> None:
    farm = farm_view()
    state, _ = typed(["down", "down", "up", "enter"], farm)
    chosen = selected_member(state, farm)
    assert chosen is not None
    assert (state.pane, chosen.name) == (Pane.DETAIL, "node-2")
    assert selected_member(typed(["end"], farm)[0], farm) == farm.members[-1]
    assert selected_member(typed(["end", "down", "home", "up"], farm)[0], farm) == farm.members[0]


def test_selection_returns_to_first_after_member_disappears() -> None:
    farm = farm_view()
    state, _ = typed(["end"], farm)
    fewer = replace(farm, members=farm.members[:2])
    chosen = selected_member(state, fewer)
    assert chosen is not None
    assert chosen.name == "node-1"


def test_filter_is_edited_kept_and_cleared() -> None:
    farm = farm_view()
    typing, orders = typed(["/", *"q-susp", "backspace", "p"], farm)
    assert (typing.editing, orders) == ("q-susp", [])
    suspects, _ = typed(["/", *"susp", "enter"], farm)
    assert names(suspects, farm) == ["node-4"]
    assert len(names(typed(["escape"], farm, suspects)[0], farm)) == len(farm.members)


def test_members_are_sorted_by_each_column_both_ways() -> None:
    farm = farm_view()
    orders = {sort: names(typed(["s"] * at, farm)[0], farm) for at, sort in enumerate(Sort)}
    assert orders[Sort.NAME] == sorted(orders[Sort.NAME])
    assert orders[Sort.RTT][0] == "node-2"
    assert orders[Sort.RAFT][0] == "node-1"
    assert orders[Sort.STATUS][-1] == "node-4"
    assert names(typed(["S"], farm)[0], farm) == orders[Sort.NAME][::-1]


@pytest.mark.parametrize(("keys", "order"), [(["down", "T"], Transfer("node-2")), (["L"], Leave("node-1"))])
def test_action_needs_yes_to_its_question(keys: list[str], order: Order) -> None:
    farm = farm_view()
    prompted, orders = typed(keys, farm)
    assert prompted.question is not None
    assert orders == []
    assert typed(["y"], farm, prompted)[1] == [order]
    for other in ("n", "enter", "escape", "q", "T"):
        state, orders = typed([other], farm, prompted)
        assert (state.question, orders, state.notice) == (None, [], "Nothing was done.")


def test_eviction_needs_full_name() -> None:
    farm = farm_view()
    prompted, orders = typed(["down", "V"], farm)
    assert orders == []
    evict = Evict(farm.members[1].node_id, "node-2")
    assert typed([*"node-3", "backspace", "2", "enter"], farm, prompted)[1] == [evict]
    for other in (["y", "enter"], ["enter"], [*"node-2", "escape"], [*"node-1", "enter"]):
        state, orders = typed(other, farm, prompted)
        assert (state.question, state.answer, orders) == (None, "", [])
        assert state.notice.startswith("Nothing was done")
    assert typed(["q", "T", "n"], farm, prompted)[0].question == prompted.question


def test_evicted_member_is_not_evicted_again() -> None:
    farm = farm_view()
    members = (farm.members[0], replace(farm.members[1], evicted=True))
    state, _ = typed(["end", "V"], replace(farm, members=members))
    assert (state.question, state.notice) == (None, "node-2 is already evicted.")


def test_filter_starts_empty() -> None:
    farm = farm_view()
    kept, _ = typed(["/", *"susp", "enter", "/", *"node-2", "enter"], farm)
    assert names(kept, farm) == ["node-2"]


def test_leaves_are_excluded_and_included_again() -> None:
    farm = farm_view()
    (order,) = typed(["X", "y"], farm)[1]
    assert isinstance(order, Exclude)
    assert order.excluded
    report = farm.reports[0]
    excluded = replace(report, leaves=tuple(replace(leaf, excluded=True) for leaf in report.leaves))
    (again,) = typed(["X", "y"], replace(farm, reports=(excluded, *farm.reports[1:])))[1]
    assert again == Exclude(order.destinations, excluded=False)


def test_exclude_key_skips_excluded_leaves() -> None:
    farm = farm_view()
    report = farm.reports[0]
    leaves = tuple(replace(report.leaves[0], destination=each, excluded=each == "a") for each in ("a", "b", "c"))
    farm = replace(farm, reports=(replace(report, leaves=leaves), *farm.reports[1:]))
    state, _ = typed(["X"], farm)
    assert state.question is not None
    assert state.question.text == "Exclude 2 leaves of node-1 from every structure?"
    assert typed(["X", "y"], farm)[1] == [Exclude(("b", "c"), excluded=True)]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [(["T"], "already leads"), (["V"], "cannot evict itself"), (["down", "L"], "Only the watched node")],
)
def test_impossible_action_shows_reason_without_question(keys: list[str], reason: str) -> None:
    state, orders = typed(keys, farm_view())
    assert (state.question, orders) == (None, [])
    assert reason in state.notice


def test_keys_without_view_are_ignored() -> None:
    for key in ("down", "enter", "T", "X", "V", "L"):
        state, orders = typed([key])
        assert (state.question, orders) == (None, [])


def test_q_quits_or_opens_question_before_stopping_farm() -> None:
    assert typed(["q"])[1] == typed(["Q"])[1] == [Quit()]
    with_quit_question = ViewState(quit_question="Stop the whole farm?")
    state, orders = typed(["q"], state=with_quit_question)
    assert orders == []
    assert typed(["n"], state=state)[1] == []
    assert typed(["y"], state=state)[1] == [Quit()]
    assert typed(["ctrl-c"], state=with_quit_question)[1] == [Quit()]


@pytest.mark.search
def test_random_keys_and_clicks_leave_screen_that_fits() -> None:
    seed = random.randrange(2**32)
    rng, farm, history = random.Random(seed), farm_view(), entries(1, 60)
    history.take(farm)
    history.story.add(event(at * 60_000, "user-event", text=f"{at} {'word ' * (at % 50)}") for at in range(90))
    keys = [
        *"felpt?hwsS/TXVLqjkynmo ü",
        "up",
        "down",
        "enter",
        "escape",
        "tab",
        "backspace",
        "page-down",
        "end",
        "delete",
    ]
    state = ViewState(quit_question="Stop?")
    for _ in range(2_000 if IS_SOAK else 200):
        data = ScreenData(rng.choice((farm, None)), rng.choice((history, History())))
        width, height = rng.randint(20, 220), rng.randint(5, 60)
        state = settled(state, data, width, height)
        drawn = draw_lines(state, data, width, height)
        assert len(drawn) == height, seed
        assert max(line.cell_len for line in drawn) <= max(width, 20), seed
        target = target_at(drawn, rng.randrange(width), rng.randrange(height))
        if target is not None and rng.random() < 0.5:
            state, _ = click(state, target, data.farm, data.history, double=rng.random() < 0.5)
        else:
            state, _ = update(state, rng.choice(keys), data.farm, data.history)


def test_terminal_keys_are_named_and_unknown_ones_skipped() -> None:
    assert list(KeyReader().keys_in(b"q\x1b[A\x1bOB\x1b[5~\r\x7f/\xc3\xbc\x1b")) == [
        *("q", "up", "down", "page-up", "enter", "backspace", "/", "ü", "escape")
    ]
    assert list(KeyReader().keys_in(b"\x1b[200~x\x1b[1;5C\x00\xff")) == ["x"]


def test_figures_are_kept_once_a_second_and_states_on_change() -> None:
    farm, history = farm_view(), History()
    for at in range(3 * SAMPLES):
        history.take(replace(farm, taken_at_ms=farm.taken_at_ms + at * 500))
    member = history.members[farm.members[1].node_id]
    assert len(member.rtt_ms) == SAMPLES
    assert [status for _, status in member.states] == [MemberStatus.ALIVE]
    assert (processor := member.figures["cpu_percent"])[-1] is not None
    dead = replace(farm.members[1], status=MemberStatus.DEAD)
    history.take(replace(farm, members=(farm.members[0], dead)))
    assert processor[-1] is None, "the last report of a dead member is not its present state"
    assert [status for _, status in member.states] == [MemberStatus.ALIVE, MemberStatus.DEAD]
    assert len(history.members) == 2


@pytest.mark.parametrize(
    ("value", "text"), [(0.625, "0.625"), (12.34, "12.3"), (999.4, "999"), (999.9, "1000"), (2000, "2000"), (0, "0")]
)
def test_figure_of_chart_lacks_exponent(value: float, text: str) -> None:
    assert figure_text(value) == text


def test_graph_has_highest_value_in_first_line() -> None:
    assert graph([0.0, 5.0, 10.0, None], 5, 2) == ["   █ ", " ▁██ "]
    assert graph([50.0], 1, 2, full=100) == [" ", "█"]
    assert graph([], 2, 2) == ["  ", "  "]


def test_sparkline_scales_to_highest_value() -> None:
    assert sparkline([0.0, 5.0, 10.0, None], 6) == "  ▁▅█ "
    assert sparkline([0.0, 10.0], 2, unicode=False) == ".@"
    assert sparkline([], 3) == "   "
    assert sparkline([18.0, 18.0, 100.0], 3, full=100) == "▂▂█"
    assert sparkline([0.0, 0.0], 2) == "▁▁"


def test_last_takeover_has_ordered_steps() -> None:
    events = [
        event(1_000, "member-suspect", member="node-9"),
        event(200_000, "member-suspect", member="node-1"),
        event(202_000, "member-dead", member="node-1"),
        event(201_000, "election-started"),
        event(201_200, "leader-elected"),
        event(203_000, "publisher-chosen", server="node-2"),
        event(203_100, "published"),
        event(300_000, "user-event"),
    ]
    steps = last_take_over(events)
    assert [(step.what, step.time_ms) for step in steps] == [
        ("suspected", 200_000),
        ("election", 201_000),
        ("elected", 201_200),
        ("dead", 202_000),
        ("publisher chosen", 203_000),
        ("handed over", 203_100),
    ]
    assert "node-1" in steps[0].detail
    assert "node-2" in steps[2].detail
    assert last_take_over(events[:1]) == ()


def test_takeover_seen_by_follower_has_last_chosen_publisher() -> None:
    events = [
        event(1_000, "leader-unknown", term=2),
        event(1_400, "leader-followed", term=3, leader=3, leaderName="node-3"),
        event(1_500, "publisher-chosen", server=2, name="node-2", master="abc.b32.i2p"),
        event(1_600, "publisher-chosen", server=3, name="node-3", master="abc.b32.i2p"),
        event(1_700, "publication-accepted", server=3, name="node-3", second=5),
    ]
    assert [step.detail for step in last_take_over(events)] == [
        "node-2: it does not know a leader in term 2",
        "node-3 leads in term 3",
        "node-3 will publish abc.b32.i2p",
        "node-3 may publish the structure of 00:00:05",
    ]


def test_takeover_ends_with_publication() -> None:
    founding = [
        event(1_000, "leader-elected"),
        event(1_100, "publisher-chosen", server=2, name="node-2", master="abc.b32.i2p"),
        event(1_300, "published", second=1, entries=3),
    ]
    transfer = [event(5_000, "election-started", term=2), event(5_100, "leader-elected")]
    later_publication = [event(11_000, "published", second=11, entries=2)]
    failure = [event(9_000, "member-suspect", member="node-3"), event(11_000, "member-dead", member="node-3")]
    for events in (founding, [*founding, *failure]):
        assert [step.what for step in last_take_over(events)] == ["elected", "publisher chosen", "handed over"]
    steps = last_take_over([*founding, *transfer, *later_publication])
    assert [(step.what, step.time_ms) for step in steps] == [("election", 5_000), ("elected", 5_100)]


def test_restart_of_a_follower_does_not_begin_takeover() -> None:
    chosen: dict[str, str | int] = {"server": 2, "name": "node-2", "master": "abc.b32.i2p"}
    take_over = [
        event(1_000, "node-started"),
        event(1_200, "leader-unknown", term=1),
        event(2_000, "leader-followed", term=2, leader=2, leaderName="node-2"),
        replace(event(2_100, "publisher-chosen", **chosen), log_time_ms=2_000),
        event(2_200, "published", second=2, entries=2),
    ]
    restart = [
        event(50_000, "node-started"),
        event(50_100, "leader-followed", term=2, leader=2, leaderName="node-2"),
        replace(event(50_200, "publisher-chosen", **chosen), log_time_ms=2_000),
        event(50_300, "published", second=50, entries=3),
    ]
    expected = last_take_over(take_over)
    assert [step.time_ms for step in expected] == [1_200, 2_000, 2_100, 2_200]
    assert last_take_over([*take_over, *restart]) == expected


@pytest.mark.parametrize("age_ms", [2_000, 3_000_000])
def test_earlier_choice_in_log_of_new_node_is_not_takeover(age_ms: int) -> None:
    started = event(5_000_000, "node-started")
    chosen = TraceEvent(
        2, 5_001_000, 5_001_000 - age_ms, "publisher-chosen", "node-2", {"server": 1, "reason": "its score"}
    )
    assert bool(last_take_over([started, chosen])) is (age_ms == 2_000)


def test_mouse_reports_are_parsed_and_releases_skipped() -> None:
    assert list(
        KeyReader().keys_in(b"\x1b[<0;3;2M\x1b[<0;3;2m\x1b[<64;1;1M\x1b[<69;1;9M\x1b[<2;1;1M\x1b[<32;1;1Mq")
    ) == [Mouse(2, 1, Button.LEFT), Mouse(0, 0, Button.WHEEL_UP), Mouse(0, 8, Button.WHEEL_DOWN), "q"]


def test_sequence_across_two_reads_is_one_key() -> None:
    reader = KeyReader()
    assert list(reader.keys_in(b"\x1b[<65;10")) == []
    assert list(reader.keys_in(b"2;5Mj\xc3")) == [Mouse(101, 4, Button.WHEEL_DOWN), "j"]
    assert list(reader.keys_in(b"\xbc\x1b[")) == ["ü"]
    assert list(reader.keys_in(b"Z" + b"\x1b[" + b"1" * 99)) == ["back-tab"]
    assert list(reader.keys_in(b"A")) == ["A"]


def clicked(target: Target, state: ViewState, history: History | None = None, *, double: bool = False) -> ViewState:
    return click(state, target, farm_view(), history or History(), double=double)[0]


def test_click_chooses_member_and_double_click_opens_it() -> None:
    farm = farm_view()
    state = clicked(OnMember(farm.members[2].node_id), ViewState())
    assert (state.pane, state.selected) == (Pane.FARM, farm.members[2].node_id)
    state = clicked(OnMember(farm.members[2].node_id), state, double=True)
    assert (state.pane, state.selected) == (Pane.DETAIL, farm.members[2].node_id)


def test_click_on_heading_sorts_and_reverses() -> None:
    state = clicked(OnHeading(Sort.RTT), ViewState(descending=True))
    assert (state.sort, state.descending) == (Sort.RTT, False)
    state = clicked(OnHeading(Sort.RTT), state)
    assert (state.sort, state.descending) == (Sort.RTT, True)


def test_question_is_answered_only_by_click_on_key() -> None:
    farm = farm_view()
    assert clicked(OnKey("e"), ViewState()).pane is Pane.EVENTS
    prompted, _ = typed(["down", "T"], farm)
    assert clicked(OnMember(farm.members[0].node_id), prompted) == prompted
    assert wheel(prompted, 3, farm, History()) == prompted
    assert click(prompted, OnKey("y"), farm, History())[1] == Transfer("node-2")
    assert clicked(OnKey("escape"), prompted).notice == "Nothing was done."


def test_click_keeps_typed_filter() -> None:
    farm = farm_view()
    typing, _ = typed(["/", *"node"], farm)
    state = clicked(OnMember(farm.members[1].node_id), typing)
    assert (state.filter, state.editing, state.selected) == ("node", None, farm.members[1].node_id)


def test_wheel_moves_choice_or_text() -> None:
    farm = farm_view()
    state = wheel(ViewState(), WHEEL_LINES, farm, History())
    assert state.selected == farm.members[WHEEL_LINES].node_id
    assert wheel(ViewState(pane=Pane.HELP), WHEEL_LINES, farm, History()).offset == WHEEL_LINES
    assert wheel(ViewState(pane=Pane.HELP), -WHEEL_LINES, farm, History()).offset == 0


def story(*events: TraceEvent) -> History:
    history = History()
    history.story.add(events)
    return history


def test_selection_stays_on_event_or_follows_newest() -> None:
    history = story(*(event(at * 60_000, "member-left", member=f"node-{at}") for at in range(1, 6)))
    state = update(ViewState(pane=Pane.EVENTS), "down", None, history)[0]
    assert selected(state, history) == "node-4"
    history.story.add([event(900_000, "member-left", member="node-9")])
    assert selected(state, history) == "node-4"
    state = update(state, "home", None, history)[0]
    history.story.add([event(990_000, "member-left", member="node-8")])
    assert selected(state, history) == "node-8"


def selected(state: ViewState, history: History) -> str:
    chosen = selected_event(state, history)
    assert chosen is not None
    return chosen.member


def test_enter_opens_member_of_event_and_o_its_entry() -> None:
    farm = farm_view()
    history = story(
        event(1_000, "member-dead", member="node-3"),
        TraceEvent(2, 60_000, 59_000, "publisher-chosen", "node-1", {"server": 2, "name": "node-2", "master": "x"}),
        event(90_000, "member-dead", member="gone"),
    )
    pane = ViewState(pane=Pane.EVENTS)
    assert update(pane, "enter", farm, history)[0].notice == "gone is not a member now."
    pane = update(pane, "down", farm, history)[0]
    opened = update(pane, "o", farm, history)[0]
    assert (opened.pane, opened.log_at_ms) == (Pane.LOG, 59_000)
    opened = update(pane, "enter", farm, history)[0]
    assert (opened.pane, opened.selected) == (Pane.DETAIL, farm.members[1].node_id)
    last = update(pane, "end", farm, history)[0]
    assert update(last, "o", farm, history)[0].notice == "This event does not come from the log."
    assert clicked(OnEvent(1), ViewState(), history, double=True).selected == farm.members[2].node_id


def entries(first: int, last: int) -> History:
    history = History()
    names = Names(farm_view())
    history.read((LogEntryView(at, 1, EntryKind.NO_OP, None, value="{}") for at in range(first, last + 1)), names)
    return history


def test_log_loads_next_part_at_both_ends() -> None:
    history = entries(801, 1000)
    state = update(ViewState(pane=Pane.LOG), "down", None, history)[0]
    assert (state.entry, state.log_from) == (999, None)
    state = update(state, "end", None, history)[0]
    assert (state.entry, state.log_from) == (801, 701)
    history = entries(701, 900)
    state = update(replace_entry(state, 900), "up", None, history)[0]
    assert (state.entry, state.log_from) == (900, 801)
    state = update(state, "home", None, history)[0]
    assert (state.entry, state.log_from) == (None, None)
    assert clicked(OnEntry(850), state, history).entry == 850


def replace_entry(state: ViewState, entry: int) -> ViewState:
    return structs.replace(state, entry=entry)


def test_m_switches_mouse_to_terminal_and_back() -> None:
    state, _ = typed(["m"])
    assert (state.mouse, "m returns it" in state.notice) == (False, True)
    assert typed(["m"], state=state)[0].mouse


def test_figures_between_distant_views_are_unknown() -> None:
    farm, history = farm_view(), History()
    history.take(farm)
    history.take(replace(farm, taken_at_ms=farm.taken_at_ms + 2_000))
    history.take(replace(farm, taken_at_ms=farm.taken_at_ms + 9_000))
    assert list(history.members[farm.members[1].node_id].rtt_ms) == [0.62, 0.62, 0.62, *[None] * 6, 0.62]


@each_case(("value", "scale"), [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (3, 5), (5.1, 10), (900, 1000)])
def test_scale_of_chart_is_round_and_above_value(value: float, scale: float) -> None:
    assert round_above(value) == pytest.approx(scale)
