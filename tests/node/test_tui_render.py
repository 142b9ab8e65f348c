"""The live view: every fact is on the screen as text, and the screen fits the terminal."""

import re
from collections.abc import Sequence
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, structs
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console, Group
from rich.text import Text

from bridge.api.alarms import by_gravity
from bridge.api.entry_words import Names
from bridge.api.log import EntryKind, LogEntryView
from bridge.api.observations.history import HistoryAnswer, HistoryRow, HistorySeries, HistorySpan
from bridge.api.printable import clock_text, duration, milliseconds_text, printable, short_address
from bridge.api.trace import TraceEvent
from bridge.api.view import (
    AlarmView,
    ConditionView,
    EventView,
    FarmView,
    LocalFarmView,
    Severity,
    WeightsView,
    best_view,
)
from bridge.api.words import faults_text
from bridge.core.history.records import RowKind, SeriesKind
from bridge.tui.charts import Chart, chart_lines, resampled
from bridge.tui.history import History
from bridge.tui.keys import Button, Mouse
from bridge.tui.layout import COLORS, Canvas, Height, share
from bridge.tui.panes import EVENTS_BELOW_CHARTS, ScreenData, draw, draw_lines, settled
from bridge.tui.sections import CHOSEN
from bridge.tui.state import Pane, ViewState, click, update
from bridge.tui.targets import OnEvent, OnHeading, OnKey, OnMember, Sort, Target, target_at
from bridge.tui.texts import HELP
from bridge.tui.top import LiveView
from tests.effort import each_case, few_of
from tests.operator_views import farm_view, forming_view, local_farm

NAMES = Names(farm_view())


def drawn(picture: Group, width: int, height: int, *, color: bool = False) -> str:
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        height=height,
        force_terminal=color,
        color_system="256" if color else None,
        legacy_windows=False,
    )
    console.print(picture, end="")
    return out.getvalue()


def render(view: FarmView, width: int, height: int, *, color: bool = True) -> Group:
    """Draw the view of one node, before any selection."""
    history = History()
    history.take(view)
    return draw(ViewState(), ScreenData(view, history), width, height, color=color)


def render_local_farm(farm: LocalFarmView, width: int, height: int, *, color: bool = True) -> Group:
    return draw(ViewState(), ScreenData(best_view(farm), History(), local=farm), width, height, color=color)


def render_message(text: str, width: int, height: int, *, color: bool = True) -> Group:
    return draw(ViewState(), ScreenData(None, History(), reason=text), width, height, color=color)


def screen(view: FarmView, width: int = 80, height: int = 24) -> str:
    return drawn(render(view, width, height, color=False), width, height)


def test_view_at_80_by_24_shows_required_facts() -> None:
    text = screen(farm_view())
    for fact in (
        "node-1*", "alive", "suspect", "dead", "1.4", "0.62ms",  # members: status, incarnation, round trip
        "node-1 leads, term 3", "commit 217/218", "?",  # Raft: role, term, commit, a follower that never answered
        "node-2 publishes", "expires in 14m40s", "leaf1abcdefg", "unhealthy", "COST",  # publications
        "node-4 is suspected, confirmation 11", "signing-key-ends", "DEMO",  # events, alarms, demonstration
    ):  # fmt: skip
        assert fact in text, fact


def test_node_waiting_for_creation_is_shown() -> None:
    text = screen(forming_view())
    assert "not created: discovering, 5 nodes create this farm" in text
    assert "nothing is published yet" in text


def test_missing_leader_is_shown() -> None:
    view = farm_view(2)
    assert "no leader" in screen(replace(view, raft=replace(view.raft, leader_id=None)))


def test_local_farm_shows_processes_and_their_end() -> None:
    text = drawn(render_local_farm(local_farm(3), 80, 24, color=False), 80, 24)
    for fact in (
        "2/3 nodes running",
        "4001",
        "follower",
        "stopped",
        "killed by signal 9; other nodes report it",
        "node-2 publ",
    ):
        assert fact in text, fact


def test_local_farm_footer_has_command_to_start_killed_node() -> None:
    farm = structs.replace(local_farm(3), program=".venv/bin/garlicfarm")
    lines = drawn(render_local_farm(farm, 80, 24, color=False), 80, 24).splitlines()
    assert lines[-2].endswith("after kill -9: .venv/bin/garlicfarm run --config farm-state/node-3/node.toml")


def test_command_of_client_is_shown_whole_for_the_shell() -> None:
    command = (
        '.venv/bin/garlicfarm connect --sam 127.0.0.1:17656 --listen 127.0.0.1:8080 "$(.venv/bin/garlicfarm link)"'
    )
    farm = structs.replace(local_farm(3), client=command)
    for width in (40, 80, 120):
        text = drawn(render_local_farm(farm, width, 24, color=False), width, 24)
        shown = text[text.index("TRY ") + len("TRY ") : text.index("RAFT ")]
        assert " ".join(shown.replace("\\\n", " ").split()) == command, width


def test_local_farm_without_processes_is_drawn() -> None:
    assert "starting" in drawn(render_local_farm(LocalFarmView(0, "farm-state", ()), 80, 24, color=False), 80, 24)


@given(color=st.booleans(), width=st.integers(20, 200), height=st.integers(5, 60), servers=st.integers(1, 9))
def test_screen_fits_terminal(*, color: bool, width: int, height: int, servers: int) -> None:
    view = farm_view(servers=max(servers, 2))
    for picture in (
        render(view, width, height, color=color),
        render_local_farm(local_farm(max(servers, 2)), width, height, color=color),
        render_message("no node runs there " * 9, width, height, color=color),
    ):
        lines = drawn(picture, width, height).split("\n")
        assert len(lines) == height
        assert max(len(line.rstrip()) for line in lines) <= width


def test_screen_without_color_has_same_text() -> None:
    colored = drawn(render(farm_view(), 80, 24, color=True), 80, 24, color=True)
    plain = drawn(render(farm_view(), 80, 24, color=False), 80, 24, color=True)
    assert "\x1b[32m" in colored
    assert not any(f"\x1b[{code}" in plain for code in ("3", "9"))
    assert drawn(render(farm_view(), 80, 24, color=True), 80, 24) == screen(farm_view())


def test_hidden_rows_are_counted() -> None:
    assert "… 7 more" in screen(farm_view(), 80, 14)


@given(st.text())
def test_foreign_text_contains_no_terminal_commands(text: str) -> None:
    assert all(letter.isprintable() for letter in printable(text))
    view = replace(farm_view(), events=(EventView(0, "x", text),), alarms=())
    assert not any(ord(letter) < 32 and letter != "\n" for letter in screen(view))


@given(st.integers(0, 80), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=6))
def test_sections_share_height_within_their_wants(height: int, pairs: list[tuple[int, int]]) -> None:
    wants = [Height(min(pair), max(pair)) for pair in pairs]
    shares = share(height, wants)
    assert sum(shares) <= height
    assert all(given <= want.most for given, want in zip(shares, wants, strict=True))


@each_case(
    ("milliseconds", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (61_000, "1m01s"),
        (3_660_000, "1h01m"),
        (90_000_000, "1d01h"),
        (-5000, "-5s"),
    ],
)
def test_duration_has_two_leading_units(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


def test_invalid_time_is_shown_as_number() -> None:
    assert clock_text(0) == "00:00:00"
    assert clock_text(-1) == "-1"
    assert clock_text(10**18) == str(10**18)


def test_short_address_keeps_its_start() -> None:
    assert short_address("a" * 52 + ".b32.i2p") == "aaaaaaaaaaaa….b32.i2p"
    assert short_address("short") == "short"


def test_round_trip_time_has_measured_digits_only() -> None:
    shown = [milliseconds_text(value) for value in (None, 0.0, 1.0, 1.24, 12.6)]
    assert shown == ["-", "<1ms", "1ms", "1.24ms", "13ms"]


def test_weights_are_shown_with_author_and_age() -> None:
    text = screen(farm_view(), 200, 60)
    for fact in ("excluded leaf6", "x 1.5 by an operator", "x 1.21 by the pipeline 1m01s ago"):
        assert fact in text, fact
    assert "WEIGHTS" not in screen(replace(farm_view(), weights=WeightsView()), 200, 60)


@pytest.mark.parametrize(
    ("width", "height"), few_of({"80-24": (80, 24), "120-40": (120, 40), "200-50": (200, 50)}, "80-24", "200-50")
)
def test_selected_member_of_large_farm_stays_visible(width: int, height: int) -> None:
    view = farm_view(servers=30)
    history = History()
    history.take(view)
    state = ViewState()
    for _ in range(29):
        state, _ = update(state, "down", view)
        chosen = next(each.name for each in view.members if each.node_id == state.selected)
        text = drawn(draw(state, ScreenData(view, history), width, height, color=False), width, height)
        assert f"{CHOSEN}{chosen}" in text
    if height < 50:
        assert re.search(r"… \d+ more above$", text, re.MULTILINE)


def test_sort_column_is_marked() -> None:
    view, state = farm_view(), ViewState()
    for keys, expected in (
        ("", "NAME ^"),
        ("s", "STATUS ^ "),
        ("s", " RTT ^ "),
        ("S", " RTT v "),
        ("s", " LAG v "),
        ("s", " RAFT v "),
    ):
        for key in keys:
            state, _ = update(state, key, view)
        picture = draw(state, ScreenData(view, History()), 100, 24, color=False)
        assert expected in drawn(picture, 100, 24)


def test_long_name_does_not_hide_facts() -> None:
    view = farm_view()
    long = replace(view, node=replace(view.node, name="n" * 60), raft=replace(view.raft, leader_name="n" * 60))
    text = screen(long)
    assert "3/5 alive" in text
    assert "commit 217/218, applied 217" in text


def test_long_name_uses_wide_screen() -> None:
    view = farm_view()
    name = "node-in-the-cellar-of-the-mill"
    members = (replace(view.members[0], name=name), *view.members[1:])
    text = screen(replace(view, members=members), 140, 40)
    assert f"{name}*" in text


def test_long_alarm_shows_action() -> None:
    text = screen(farm_view())
    assert "\n  → sign a new one: garlicfarm keys transient" in text
    assert "6 days; sign a new one: garlicfarm keys transient" in screen(farm_view(), 120, 40)
    alarm = AlarmView("servers-down", "node-2 is down", " ".join(f"word-{each}" for each in range(20)))
    shown = screen(replace(farm_view(), alarms=(alarm,)))
    assert alarm.action in " ".join(shown.split())


def test_alarm_does_not_repeat_verdict() -> None:
    view = farm_view()
    alarm = AlarmView("no-quorum", view.verdict.text, "start the others")
    lines = screen(replace(view, alarms=(alarm,)), 80, 24).splitlines()
    assert "! no-quorum: start the others" in [line.rstrip() for line in lines]


@pytest.mark.parametrize("faults", [(), ("service",), ("router", "leaseSet", "service")])
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_reason_of_unhealthy_leaf_is_whole(faults: tuple[str, ...], width: int) -> None:
    view = farm_view()
    (master, *_) = view.publishing
    entries = tuple(each if each.healthy else replace(each, faults=faults) for each in master.entries)
    text = screen(replace(view, publishing=(replace(master, entries=entries),)), width, 40)
    assert width < 60 or re.search(r"node-5 +50 .*unhealthy", text)
    assert faults_text(faults) in " ".join(text.split())


def test_unhealthy_entry_is_shown_first() -> None:
    text = screen(farm_view(servers=30), 80, 30)
    assert "29 of 30 entries healthy" in text
    assert re.search(r"node-30 .* unhealthy", text)


def test_help_and_publishing_panes_show_whole_text() -> None:
    seen = ScreenData(farm_view(), History())
    text = drawn(draw(ViewState(pane=Pane.HELP), seen, 80, 24, color=False), 80, 24)
    words = " ".join(text.split())
    assert all(part in words for _, part in HELP)
    assert "… " not in text
    assert re.search(r"… \d+ more\n", drawn(draw(ViewState(pane=Pane.HELP), seen, 60, 20, color=False), 60, 20))
    text = drawn(draw(ViewState(pane=Pane.PUBLISHING), seen, 80, 60, color=False), 80, 60)
    assert re.findall(r"^  (node-\d) +\d{3} +(\S+) *$", text, re.MULTILINE)[:2] == [
        ("node-2", "publisher"),
        ("node-1", "standby"),
    ]
    assert "x 1.21 by the pipeline 1m01s ago" in text


def test_scroll_offset_is_clamped_to_end() -> None:
    seen = ScreenData(farm_view(), History())
    live = LiveView(state=ViewState(pane=Pane.HELP))
    live.followed.reason = ""
    live.take(farm_view())
    live.press("end")
    live.lines(80, 14)
    last = live.state.offset
    assert last == settled(ViewState(pane=Pane.HELP, offset=99), seen, 80, 14).offset > 0
    for _ in range(5):
        live.press("page-down")
        live.lines(80, 14)
    live.press("up")
    assert live.state.offset == last - 1


def test_log_headings_stay_while_scrolling() -> None:
    seen = ScreenData(farm_view(), History())
    seen.history.read((LogEntryView(each, 1, EntryKind.NO_OP, None, value="{}") for each in range(1, 50)), NAMES)
    state = update(ViewState(pane=Pane.LOG), "end", seen.farm, seen.history)[0]
    text = drawn(draw(state, seen, 80, 24, color=False), 80, 24)
    assert "INDEX  TERM" in text
    assert "\n▸ 1 1 - no-op" in re.sub(" +", " ", text)
    assert "  1 no-op: " in text.splitlines()[-2]


def test_log_entries_have_sentences_and_restart_after_gap() -> None:
    seen = ScreenData(farm_view(), History())
    clock = '{"clock":{"time":1760000000000,"id":2,"period":2000}}'
    seen.history.read([LogEntryView(5, 1, EntryKind.APPLICATION, None, value=clock)], NAMES)
    text = drawn(draw(ViewState(pane=Pane.LOG), seen, 80, 24, color=False), 80, 24)
    assert re.search(r"5 +1 - +clock +log time 08:53:20 by node-2", text)
    seen.history.read([LogEntryView(9, 1, EntryKind.NO_OP, None, value="{}")], NAMES)
    assert [each.index for each in seen.history.entries] == [9]


def test_long_event_is_complete_in_events_pane() -> None:
    history = History()
    text = "the last structure has ended, and node-3 is to publish, after all of its neighbors were asked in turn"
    history.story.add([TraceEvent(1, 1_760_000_000_000, None, "verdict-changed", "node-2", {"text": text})])
    shown = drawn(draw(ViewState(pane=Pane.EVENTS), ScreenData(farm_view(), history), 80, 24, color=False), 80, 24)
    assert text in " ".join(shown.split())


def test_selected_node_of_local_farm_has_text_mark() -> None:
    assert f"{CHOSEN}node-1" in drawn(render_local_farm(local_farm(), 80, 24, color=False), 80, 24)


def test_events_have_kind_before_trace_arrives() -> None:
    assert "member-suspect: node-4 is suspected, confirmation 11" in screen(farm_view(), 100, 40)


def test_selected_line_has_one_style() -> None:
    text = drawn(render(farm_view(), 80, 24), 80, 24, color=True)
    chosen = next(line for line in text.splitlines() if CHOSEN in line)
    assert re.findall(r"\x1b\[([\d;]*)m", chosen) == ["7", "0"]


def test_footer_at_120_columns_has_all_keys() -> None:
    assert screen(farm_view(), 120, 40).splitlines()[-1].rstrip().endswith("L leave")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_footer_of_narrow_screen_has_keys_of_actions(width: int) -> None:
    footer = screen(farm_view(), width, 24).splitlines()[-1]
    assert [key for key in "sTXVLq" if f" {key} " not in f"{footer} "] == []


@each_case("key", ["T", "X", "V"])
@each_case("width", [60, 80])
def test_question_fits_screen_with_its_answers(width: int, key: str) -> None:
    farm = farm_view()
    state = update(update(ViewState(), "down", farm)[0], key, farm)[0]
    assert state.question is not None
    lines = drawn(draw(state, ScreenData(farm, History()), width, 24, color=False), width, 24).splitlines()
    assert " ".join(state.question.text.split()) in " ".join(" ".join(lines).split())
    assert lines[-1].startswith(" Type node-2 and Enter; Esc: no" if key == "V" else " y: yes   any other key: no")
    assert len(lines) == 24


def test_long_notice_is_complete() -> None:
    farm = farm_view()
    state = update(update(ViewState(), "down", farm)[0], "L", farm)[0]
    text = drawn(draw(state, ScreenData(farm, History()), 80, 24, color=False), 80, 24)
    assert state.notice in " ".join(text.split())


def test_lines_of_notice_stay_apart() -> None:
    notice = f"Remove each of these keys:{' x' * 30}\n  garlicfarm node remove-client a\nb"
    lines = drawn(draw(ViewState(notice=notice), ScreenData(farm_view(), History()), 80, 24, color=False), 80, 24)
    assert [line.strip() for line in lines.splitlines()[-3:]] == ["x x x x", "garlicfarm node remove-client a", "b"]


@pytest.mark.parametrize("width", [80, 40])
def test_cut_notice_shows_number_of_further_lines(width: int) -> None:
    notice = "\n".join(f"garlicfarm node remove-client key-{number}" for number in range(40))
    for data in (ScreenData(farm_view(), History()), ScreenData(None, History(), local=local_farm(1))):
        text = drawn(draw(ViewState(notice=notice), data, width, 24, color=False), width, 24)
        shown = text.count("remove-client")
        assert shown >= 20
        end = f"… and {40 - shown} more lines: enlarge the terminal before you press a key"
        assert " ".join(text.split()).endswith(end)


def test_alarms_of_local_farm_are_ordered_by_severity() -> None:
    alarms = (AlarmView("certificate", "ends", "renew"), AlarmView("no-quorum", "nothing", "start the others"))
    farm = local_farm(3)
    first = farm.processes[0]
    assert first.view is not None
    processes = (structs.replace(first, view=replace(first.view, alarms=alarms)), *farm.processes[1:])
    text = drawn(render_local_farm(structs.replace(farm, processes=processes), 80, 24, color=False), 80, 24)
    assert 0 < text.index("!! no-quorum: nothing; start the others") < text.index("! certificate: ends; renew")


def test_critical_alarm_is_red_and_warning_yellow() -> None:
    alarms = by_gravity((AlarmView("clock", "off", "NTP"), AlarmView("disk-full", "full", "free some")))
    text = drawn(render(replace(farm_view(), alarms=alarms), 80, 24), 80, 24, color=True)
    assert "\x1b[31mdisk-full" in text
    assert "\x1b[33mclock" in text


def test_members_of_small_farm_stay_visible_with_many_alarms() -> None:
    alarms = tuple(AlarmView(f"alarm-{each}", "word " * 12, "do " * 60) for each in range(8))
    text = screen(replace(farm_view(), alarms=alarms), 80, 24)
    assert [name for name in ("node-1", "node-2", "node-3", "node-4", "node-5") if f" {name}" not in text] == []


def test_evicted_identity_is_last_and_not_counted() -> None:
    view = farm_view()
    first, *others = view.members
    evicted = replace(others[0], evicted=True, name="box")
    text = screen(replace(view, members=(first, evicted, *others[1:])), 100, 40)
    assert "2/4 alive" in text
    assert text.index("node-5") < text.index("  box ")
    assert re.search(r"  box +alive +evicted ", text)


def test_last_view_shows_its_time_when_outdated() -> None:
    view = farm_view()
    seen = ScreenData(view, History(), reason="the node of /var/lib/garlicfarm/control.sock no longer runs")
    lines = drawn(draw(ViewState(), seen, 60, 24, color=False), 60, 24).splitlines()
    expected = " ".join(" ".join(lines[:4]).split())
    assert f"not live since {clock_text(view.taken_at_ms)} UTC: {seen.reason}" in expected
    assert any("node-2" in line and "voter" in line for line in lines)
    colored = drawn(draw(ViewState(), seen, 80, 24), 80, 24, color=True)
    assert "\x1b[32m" not in colored


def test_reverse_of_selected_line_ends_before_gutter() -> None:
    text = drawn(render(farm_view(), 200, 40), 200, 40, color=True)
    chosen = next(line for line in text.splitlines() if CHOSEN in line)
    reversed_part = re.search(r"\x1b\[7m(.*?)\x1b\[0m", chosen)
    assert reversed_part is not None
    assert "│" not in reversed_part[1]


def test_log_time_is_hidden_without_leader() -> None:
    view = farm_view(2)
    alone = replace(view, raft=replace(view.raft, leader_id=None))
    assert "log time" in screen(view)
    assert "log time" not in screen(alone)
    assert "no leader, this node is a follower" in screen(alone)


def test_member_detail_in_demonstration_hides_router() -> None:
    view = farm_view()
    text = drawn(draw(ViewState(pane=Pane.DETAIL), ScreenData(view, History()), 120, 40, color=False), 120, 40)
    assert "no router (demonstration)" in text
    assert "router attached" not in text


@pytest.mark.parametrize(("width", "height"), [(120, 50), (200, 50)])
def test_free_space_has_charts_with_scales(width: int, height: int) -> None:
    text = screen(farm_view(), width, height)
    assert "node-2: round trip  0.62ms" in text
    assert "  1ms ┤" in text
    assert "  0ms ┤" in text
    assert re.search(r"└ \d+s ago ─+ now", text)
    assert "CPU  4 %" in text
    assert "now" not in screen(farm_view(), width, 24)


def test_charts_leave_room_for_events() -> None:
    history = History()
    history.take(farm_view())
    history.story.add(TraceEvent(at, at * 60_000, None, "user-event", f"x{at}", {}) for at in range(99))
    seen = ScreenData(farm_view(), history)
    text = drawn(draw(ViewState(), seen, 120, 50, color=False), 120, 50)
    assert text.count(" user-event") >= EVENTS_BELOW_CHARTS


def test_chart_without_unicode_is_ascii() -> None:
    history = History()
    history.take(farm_view())
    seen = ScreenData(farm_view(), history)
    text = drawn(
        draw(ViewState(pane=Pane.DETAIL, selected="2" * 16), seen, 120, 60, color=False, unicode=False), 120, 60
    )
    assert "100 % +" in text
    assert "┤" not in text


@pytest.mark.parametrize(("last", "style"), [(5.0, "cyan"), (75.0, "yellow"), (95.0, "red"), (None, "bright_black")])
def test_style_of_chart_depends_on_present_value(last: float | None, style: str) -> None:
    chart = Chart("load", [95.0, last], lambda value: f"{value:.0f}", full=100.0)
    (title, *figures, _) = chart_lines(chart, Canvas(40, COLORS), 3, unicode=True)
    assert [str(each.style) for each in title.spans] == ["bold", style]
    assert {str(line.spans[-1].style) for line in figures} == {style}


def found(lines: Sequence[Text], text: str) -> Target | None:
    """Return the target at the first cell of a text on the screen."""
    row, line = next((row, line) for row, line in enumerate(lines) if text in line.plain)
    return target_at(lines, cell_len(line.plain[: line.plain.index(text)]), row)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 50)])
def test_rows_headings_and_keys_are_targets(size: tuple[int, int]) -> None:
    view, history = farm_view(), History()
    history.take(view)
    history.story.add([TraceEvent(1, 1_760_000_000_000, None, "member-dead", "node-1", {"member": "node-5"})])
    lines = draw_lines(ViewState(), ScreenData(view, history), *size)
    assert found(lines, "  node-2  ") == OnMember(view.members[1].node_id)
    assert found(lines, "▸ node-1") == OnMember(view.members[0].node_id)
    assert found(lines, "RTT ") == OnHeading(Sort.RTT)
    assert found(lines, "e events" if size[0] >= 80 else " e ") == OnKey("e")
    assert found(lines, " V") == OnKey("V")
    assert found(lines, "RAFT node-1 leads") is None
    if size[1] >= 24:
        assert found(lines, "node-5 is dead") == OnEvent(1)
    # The whole row, up to the last cell of its pane, is the member's.
    row = next(row for row, line in enumerate(lines) if "▸ node-1" in line.plain)
    last = lines[row].plain.find("│") - 2 if size[0] >= 150 else size[0] - 1
    assert target_at(lines, last, row) == OnMember(view.members[0].node_id)
    assert target_at(lines, 0, 999) is target_at(lines, 999, row) is None


def test_targets_of_old_picture_and_wide_letters_stay() -> None:
    view = farm_view()
    members = (replace(view.members[0], name="節点"), *view.members[1:])
    seen = ScreenData(replace(view, members=members), History(), reason="gone")
    lines = draw_lines(ViewState(sort=Sort.STATUS), seen, 80, 24)
    assert found(lines, "節点") == OnMember(view.members[0].node_id)
    assert found(lines, "STATUS") == OnHeading(Sort.STATUS)


def test_second_click_in_time_opens_member() -> None:
    now = [100.0]
    live = LiveView(clock_s=lambda: now[0])
    live.take(farm_view())
    live.followed.reason = ""
    lines = live.lines(80, 24)
    row = next(row for row, line in enumerate(lines) if "node-3" in line.plain)
    press = Mouse(5, row, Button.LEFT)
    live.press(press)
    assert (live.state.pane, live.state.selected) == (Pane.FARM, farm_view().members[2].node_id)
    now[0] += 2
    live.press(press)
    panes = [live.state.pane]
    now[0] += 0.2
    live.press(press)
    assert [*panes, live.state.pane] == [Pane.FARM, Pane.DETAIL]
    live.press(Mouse(70, 1, Button.LEFT))
    assert live.press(Mouse(0, 0, Button.WHEEL_DOWN)) is False


def test_view_without_reply_for_seconds_is_dimmed_with_age() -> None:
    now = [100.0]
    live = LiveView(clock_s=lambda: now[0])
    live.take(farm_view())
    live.followed.reason = ""
    assert "not live" not in live.lines(80, 24)[0].plain
    now[0] += 14
    first, _, *others = live.lines(80, 24)
    assert "not live since" in first.plain
    assert "14s ago: node-1 does not answer" in first.plain
    assert {str(line.style) for line in others[2:6]} == {"bright_black"}


def test_events_are_colored_and_marked_by_severity() -> None:
    history = History()
    history.story.add(
        [
            TraceEvent(1, 1, None, "alarm-raised", "node-1", {"alarm": "no-quorum", "text": "no majority"}),
            TraceEvent(2, 60_000, None, "member-suspect", "node-1", {"member": "node-2"}),
            TraceEvent(3, 90_000, None, "leader-elected", "node-1", {"term": 2}),
        ]
    )
    state = ViewState(pane=Pane.EVENTS)
    text = drawn(draw(state, ScreenData(farm_view(), history), 80, 24), 80, 24, color=True)
    assert re.search(r"\x1b\[31m {2}00:00:00 !! ", text)
    assert re.search(r"\x1b\[33m {2}00:01:00 !  ", text)
    chosen = next(line for line in text.splitlines() if CHOSEN in line)
    assert re.findall(r"\x1b\[([\d;]*)m", chosen) == ["7", "0"]
    assert len(re.sub(r"\x1b\[[\d;]*m", "", chosen)) == 80


def test_chosen_event_stays_on_screen_while_moving() -> None:
    history = History()
    for at in range(200):
        text = f"mark-{at} {'word ' * (at % 40)}"
        history.story.add([TraceEvent(at, at * 60_000, None, "verdict-changed", "node-1", {"text": text})])
    live = LiveView(history=history, state=ViewState(pane=Pane.EVENTS))
    live.take(farm_view())
    for key in ["down"] * 30 + ["page-down"] * 9 + ["up"] * 20 + ["end", "up", "page-up", "home"]:
        live.press(key)
        lines = [line.plain for line in live.lines(80, 24)]
        assert sum(CHOSEN in line for line in lines) >= 1, key


def test_scale_of_round_trips_is_in_heading() -> None:
    view = farm_view()
    highest = max(each.rtt_ms or 0 for each in view.members)
    assert f"RTT, 0 TO {highest:.0f} MS" in screen(view, 120, 40)
    unmeasured = replace(view, members=tuple(replace(each, rtt_ms=None) for each in view.members))
    assert "RTT, 0 TO" not in screen(unmeasured, 120, 40)


def test_lag_column_appears_only_with_followers() -> None:
    view = farm_view()
    assert " LAG " in screen(view)
    assert " LAG " not in screen(replace(view, raft=replace(view.raft, followers=())))


def test_member_detail_has_failed_condition_and_score() -> None:
    view = farm_view()
    fails = ConditionView("service", holds=False, since_ms=252_000, last_error="HTTP 503", failures=3)
    report = view.reports[0]
    leaf = replace(report.leaves[0], healthy=False, faults=("service",), conditions=(fails,))
    broken = replace(view, reports=(replace(report, leaves=(leaf,)), *view.reports[1:]))
    text = drawn(draw(ViewState(pane=Pane.DETAIL), ScreenData(broken, History()), 80, 40, color=False), 80, 40)
    words = " ".join(text.split())
    assert "unhealthy: its service does not answer the probe" in words
    assert "service failing for 4m12s: HTTP 503 (failed 3 times)" in words
    assert f"{broken.publishing[0].standings[0].score}: job lag 300" in words


def test_member_detail_marks_last_report_of_dead_member() -> None:
    view = farm_view()
    for each, is_dead in ((view.members[0], False), (view.members[4], True)):
        state = ViewState(pane=Pane.DETAIL, selected=each.node_id)
        words = " ".join(drawn(draw(state, ScreenData(view, History()), 120, 40, color=False), 120, 40).split())
        assert ("unhealthy: its server is down or does not report" in words) is is_dead
        assert ("in its last report: router ok for 1d00h" in words) is is_dead


def test_view_of_older_version_is_drawn() -> None:
    view = farm_view()
    report = view.reports[0]
    old = replace(report, leaves=(replace(report.leaves[0], conditions=UNSET),))
    standings = tuple(replace(each, parts=(), choice="") for each in view.publishing[0].standings)
    older = replace(view, reports=(old,), publishing=(replace(view.publishing[0], standings=standings),))
    for pane in (Pane.DETAIL, Pane.PUBLISHING):
        text = drawn(draw(ViewState(pane=pane), ScreenData(older, History()), 80, 50, color=False), 80, 50)
        assert " ok for" not in text
        assert "job lag 300" not in text


def test_long_verdict_is_whole_at_60_columns() -> None:
    view = farm_view()
    text = " ".join(screen(view, 60, 20).split())
    assert view.verdict.text in text


def test_address_column_needs_room() -> None:
    assert "ADDRESS" in screen(farm_view(), 80, 24)
    assert "ADD" not in screen(farm_view(), 60, 24)


HOUR_MS = 3_600_000
DAY = HistoryAnswer(
    node="node-1",
    from_ms=0,
    to_ms=24 * HOUR_MS,
    step_ms=60_000,
    rows=(
        HistoryRow(
            RowKind.LEADER,
            None,
            None,
            (
                HistorySpan(0, 12 * HOUR_MS, "node-1", Severity.OK),
                HistorySpan(12 * HOUR_MS, 12 * HOUR_MS + 2_000, "", Severity.CRITICAL),
                HistorySpan(12 * HOUR_MS + 2_000, 24 * HOUR_MS, "node-2", Severity.OK),
            ),
        ),
        HistoryRow(
            RowKind.NODE,
            "node-2",
            None,
            (
                HistorySpan(6 * HOUR_MS, 18 * HOUR_MS, "alive", Severity.OK),
                HistorySpan(18 * HOUR_MS, 24 * HOUR_MS, "dead", Severity.CRITICAL),
            ),
        ),
        HistoryRow(RowKind.ALARM, "clock", None, (HistorySpan(0, HOUR_MS, "off", Severity.WARNING),)),
    ),
    series=(HistorySeries(SeriesKind.ROUND_TRIP, "node-2", "ms", (*[1.0] * 700, 40.0, *[None] * 739, 2.0)),),
    rows_left_out=4,
)


def timeline(width: int, height: int, history: HistoryAnswer | None = DAY, *, unicode: bool = True) -> list[str]:
    seen = ScreenData(farm_view(), History(), timeline=history, timeline_reason="the node refused: no such path")
    lines = draw_lines(ViewState(pane=Pane.TIMELINE), seen, width, height, unicode=unicode)
    assert max(each.cell_len for each in lines) <= width
    return [each.plain.rstrip() for each in lines]


def strip(lines: list[str], label: str) -> str:
    return next(line for line in lines if line.startswith(label))[21:]


@pytest.mark.parametrize(("width", "height"), [(60, 20), (80, 24), (120, 40), (200, 50)])
def test_timeline_has_leader_health_and_time(width: int, height: int) -> None:
    lines = timeline(width, height)
    cells = width - 30
    assert strip(lines, "leader").startswith("│node-1")
    assert "│" in strip(lines, "leader")[cells // 2 - 1 : cells // 2 + 1]
    assert strip(lines, "leader").endswith(" 99.9 %")
    node = strip(lines, "node-2")
    assert set(node[: cells // 4 - 1]) == {" "}
    assert set(node[cells // 4 + 1 : cells * 3 // 4 - 1]) == {"█"}
    assert node[cells * 3 // 4 + 1 : cells] == "▁" * (cells - cells * 3 // 4 - 1)
    assert node.endswith(" 66.6 %")
    assert "%" not in strip(lines, "alarm clock")
    assert "… 4 more rows" in "\n".join(lines)
    assert any("|12:00" in line for line in lines)
    assert any("node-2: round trip  2ms" in line for line in lines) is (height >= 20)


def test_timeline_without_unicode_or_history() -> None:
    assert "█" not in "".join(timeline(80, 24, unicode=False)).replace("▸", "")
    assert "_" in strip(timeline(80, 24, unicode=False), "node-2")
    assert any("the node refused: no such path" in line for line in timeline(80, 24, None))


def test_row_of_timeline_leads_to_member() -> None:
    view = farm_view()
    lines = draw_lines(ViewState(pane=Pane.TIMELINE), ScreenData(view, History(), timeline=DAY), 80, 24)
    row = next(at for at, line in enumerate(lines) if line.plain.startswith("node-2"))
    target = target_at(lines, 3, row)
    assert target == OnMember(view.members[1].node_id)
    state = click(ViewState(pane=Pane.TIMELINE), target, view, History(), double=True)[0]
    assert (state.pane, state.selected) == (Pane.DETAIL, view.members[1].node_id)


def test_peak_stays_in_resampled_chart() -> None:
    assert resampled([1.0, 9.0, None, 2.0, None, None], 3) == [9.0, 2.0, None]
    assert resampled([1.0, 2.0], 4) == [1.0, 1.0, 2.0, 2.0]
    assert resampled([], 2) == [None, None]


def test_w_changes_hours_of_timeline_only() -> None:
    state, hours = ViewState(pane=Pane.TIMELINE), []
    for _ in range(4):
        hours.append(state.hours)
        state, _ = update(state, "w", None)
    assert hours == [24, 1, 6, 24]
    assert update(ViewState(), "w", None)[0].hours == 24
