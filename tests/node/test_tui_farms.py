"""`top` with several farms: the overview of verdicts, one open farm, and the way back."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from msgspec import structs
from msgspec.structs import replace
from rich.cells import cell_len
from rich.text import Text

from bridge.api.view import Severity, VerdictView
from bridge.node.control.server import ControlServer
from bridge.tui import top
from bridge.tui.farms import LiveFarms
from bridge.tui.history import History
from bridge.tui.keys import Button, Mouse
from bridge.tui.layout import COLORS, Canvas
from bridge.tui.members import farm_charts
from bridge.tui.overview import FarmRow, OverviewState, ordered, overview_lines, update_overview
from bridge.tui.state import Pane, ViewState
from bridge.tui.top import LiveView, keep_current
from tests.effort import each_case
from tests.node.test_control import FakeNode
from tests.operator_views import farm_view

GOOD = farm_view().verdict
HEALTHY = replace(GOOD, severity=Severity.OK, text="Healthy, can lose 1 of 3")
BROKEN = replace(GOOD, severity=Severity.CRITICAL, text="No quorum: 2 of 3 voters down", advice="start the others")


def row(name: str, verdict: VerdictView = HEALTHY) -> FarmRow:
    view = replace(farm_view(), verdict=verdict)
    return FarmRow(name=name, farm=view, age_ms=0, is_old=False, reason="")


LOST = FarmRow(name="lost", farm=None, age_ms=0, is_old=False, reason="no node runs at /x/control.sock")
FARMS = [row("mill"), row("cellar", BROKEN), LOST]


def plain(lines: Sequence[Text]) -> list[str]:
    return [each.plain.rstrip() for each in lines]


def drawn(state: OverviewState, farms: Sequence[FarmRow] = FARMS, width: int = 80, height: int = 24) -> list[str]:
    return plain(overview_lines(state, farms, Canvas(width, COLORS), height))


def test_title_names_worst_farms() -> None:
    assert drawn(OverviewState())[0] == "!! 2 of 3 farms critical: cellar, lost"
    assert drawn(OverviewState(), [row("a"), row("b")])[0] == "All 2 farms are healthy"
    warned = replace(GOOD, severity=Severity.WARNING)
    assert drawn(OverviewState(), [row("a"), row("b", warned)])[0] == "! 1 of 2 farms with a warning: b"


def test_overview_has_verdict_or_reason_of_each_farm() -> None:
    lines = drawn(OverviewState(selected="cellar"), width=120)
    text = "\n".join(lines)
    assert any(line.startswith("  mill ") and line.endswith(" Healthy, can lose 1 of 3") for line in lines)
    assert any(line.startswith("▸ cellar") and "!! No quorum: 2 of 3" in line for line in lines)
    assert any(line.startswith("  lost ") and line.endswith("!! no node runs at /x/control.sock") for line in lines)
    assert "CELLAR" in text
    assert text.count("No quorum: 2 of 3 voters down") >= 2
    assert "node-2 publishes" not in text or "META LEASESET2" in text


def test_old_view_in_overview_has_its_age_and_is_dimmed() -> None:
    old = structs.replace(row("mill"), age_ms=90_000, is_old=True, reason="the node of /x no longer runs")
    lines = overview_lines(OverviewState(selected="b"), [old, row("b")], Canvas(100, COLORS), 24)
    line = next(each for each in lines if "mill" in each.plain and "not live for 1m30s, then: Healthy" in each.plain)
    assert str(line.style) == "bright_black"
    assert old.severity is Severity.CRITICAL
    chosen = drawn(OverviewState(selected="mill"), [old, row("b")], width=100)
    assert any("the node of /x no longer runs; seen by node-1 at" in each for each in chosen)


@each_case(("width", "height"), [(20, 5), (60, 20), (80, 24), (120, 40), (200, 50)])
def test_overview_fits_terminal(width: int, height: int) -> None:
    farms = [row(f"farm-{at} with a long name {'x' * at}") for at in range(40)]
    for selected in (farms[0].name, farms[-1].name):
        lines = overview_lines(OverviewState(selected=selected), farms, Canvas(width, COLORS), height)
        assert len(lines) == height
        assert max(each.cell_len for each in lines) <= width
        if height >= 20:
            assert any(each.plain.startswith("▸ ") for each in lines)


def test_chosen_farm_has_charts_on_large_screen() -> None:
    history = History()
    history.take(farm_view())
    shown = structs.replace(row("mill"), charts=tuple(farm_charts(ViewState(), farm_view(), history)))
    assert any("round trip" in line for line in drawn(OverviewState(), [shown], 120, 40))
    assert not any("round trip" in line for line in drawn(OverviewState(), [shown], 80, 24))


def test_keys_choose_sort_open_and_end() -> None:
    state, opens, ends = update_overview(OverviewState(), "down", FARMS)
    assert (state.selected, opens, ends) == ("cellar", False, False)
    assert update_overview(state, "end", FARMS)[0].selected == "lost"
    assert update_overview(state, "up", FARMS)[0].selected == "mill"
    assert update_overview(state, "enter", FARMS)[1]
    assert update_overview(state, "q", FARMS)[2]
    assert not update_overview(state, "m", FARMS)[0].mouse
    worst = update_overview(state, "s", FARMS)[0]
    assert [each.name for each in ordered(worst, FARMS)] == ["cellar", "lost", "mill"]
    assert worst.selected == "cellar"
    assert update_overview(state, "x", FARMS) == (state, False, False)


def live(name: str) -> LiveView:
    made = LiveView(several=True, clock_s=lambda: 100.0)
    view = farm_view()
    made.take(replace(view, farm=replace(view.farm, cluster=name)))
    made.followed.reason = ""
    return made


def cell(lines: Sequence[Text], text: str) -> tuple[int, int]:
    at = next(at for at, line in enumerate(lines) if text in line.plain)
    return cell_len(lines[at].plain[: lines[at].plain.index(text)]), at


def test_enter_opens_farm_and_escape_returns() -> None:
    farms = LiveFarms({"mill": live("mill"), "cellar": live("cellar")}, clock_s=lambda: 100.0)
    changed = farms.opened
    for key in ("down", "enter"):
        assert farms.press(key) is False
    assert changed.is_set()
    assert farms.open_farm is farms.farms["cellar"]
    assert farms.open_farm.interval_s == top.QUERY_INTERVAL_S
    text = plain(farms.lines(80, 24))
    assert any("cellar" in line for line in text)
    assert "Esc farms" in " ".join(plain(farms.lines(120, 24)))
    # Esc leaves a pane, or removes a filter, before it leaves the farm.
    for key in ("e", "escape", "/", "x", "enter", "escape"):
        farms.press(key)
        assert farms.open_farm is not None
    farms.press("escape")
    assert farms.open_farm is None
    assert farms.farms["cellar"].state.pane is Pane.FARM
    assert farms.press("q")


def test_mouse_chooses_and_opens_farm() -> None:
    now = [100.0]
    farms = LiveFarms({"mill": live("mill"), "cellar": live("cellar")}, clock_s=lambda: now[0])
    column, line = cell(farms.lines(80, 24), "  cellar")
    press = Mouse(column + 30, line, Button.LEFT)
    farms.press(press)
    assert (farms.state.selected, farms.open_farm) == ("cellar", None)
    farms.press(Mouse(1, 23, Button.WHEEL_UP))
    assert farms.state.selected == "mill"
    farms.press(press)
    now[0] += 0.1
    farms.press(press)
    assert farms.open_farm is farms.farms["cellar"]
    assert farms.mouse
    farms.press("m")
    assert not farms.mouse
    farms.press("escape")
    column, line = cell(farms.lines(80, 24), "q quit")
    assert farms.press(Mouse(column, line, Button.LEFT))


async def test_nodes_of_another_farm_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(top, "QUERY_INTERVAL_S", 0.01)
    own, other = FakeNode(), FakeNode()
    own.current, other.current = farm_view(1), farm_view(2)
    other.current = replace(other.current, farm=replace(other.current.farm, cluster_id="f" * 32))
    sockets = [tmp_path / "own.sock", tmp_path / "other.sock"]
    shown = LiveView()
    runs = trio.CancelScope()

    async def serve() -> None:
        with runs:
            await ControlServer(sockets[0], own.handlers).run()

    nursery.start_soon(serve)
    nursery.start_soon(keep_current, lambda: sockets[:1] if shown.followed.view is None else sockets, shown)
    with trio.fail_after(60):
        while shown.followed.view is None:  # noqa: ASYNC110 - polls like the screen
            await trio.sleep(0.01)
    await nursery.start(ControlServer(sockets[1], other.handlers).run)
    runs.cancel()
    with trio.fail_after(60):
        while not shown.followed.reason:  # noqa: ASYNC110 - polls like the screen
            await trio.sleep(0.01)
    assert shown.followed.view.node.name == "node-1"
