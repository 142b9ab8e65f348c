"""A history as lines of text: the worst state per cell, letters for names, shares of time, and incidents."""

from bridge.api.observations.history import HistoryAnswer, HistoryRow, HistorySeries, HistorySpan
from bridge.api.observations.strips import BLANK, CELLS, incidents, name_letters, runs, strips, worst_states
from bridge.api.view import Severity
from bridge.core.history.records import RowKind, SeriesKind
from tests.effort import each_case

OK, WARNING, CRITICAL = Severity
MINUTE_MS = 60_000


def spans(*parts: tuple[int, int, str, Severity]) -> tuple[HistorySpan, ...]:
    return tuple(
        HistorySpan(start * MINUTE_MS, end * MINUTE_MS, text, severity) for start, end, text, severity in parts
    )


def row(
    kind: RowKind, name: str | None, *parts: tuple[int, int, str, Severity], owner: str | None = None
) -> HistoryRow:
    return HistoryRow(kind, name, owner, spans(*parts))


def an_hour(*rows: HistoryRow, series: tuple[HistorySeries, ...] = ()) -> HistoryAnswer:
    return HistoryAnswer("oslo", 0, 60 * MINUTE_MS, MINUTE_MS, rows, series)


def lines(history: HistoryAnswer, width: int = 6) -> list[tuple[str, str, str]]:
    return [(each.label, each.figure, "".join(letter for letter, _ in each.cells)) for each in strips(history, width)]


NODE = row(RowKind.NODE, "kyoto", (0, 30, "alive", OK), (30, 31, "dead", CRITICAL), (31, 60, "alive", OK))
LEADER = row(
    RowKind.LEADER, None, (0, 20, "oslo", OK), (20, 21, "", CRITICAL), (21, 40, "kyoto", OK), (50, 60, "kyoto", OK)
)
LEAF = row(RowKind.LEAF, "abcdefghijkl.b32.i2p", (0, 60, "healthy", OK), owner="oslo")


def test_strip_shows_short_failure() -> None:
    assert lines(an_hour(NODE)) == [("NODES", "", ""), ("  kyoto", "98.3%", "▂▂▂█▂▂")]


def test_strip_of_leader_shows_letters_and_gap() -> None:
    assert lines(an_hour(LEADER)) == [("leader", "kyoto", "aa█b b")]
    assert name_letters(an_hour(LEADER)) == {"oslo": "a", "kyoto": "b"}


def test_strip_of_leaf_has_its_owner() -> None:
    second = HistoryRow(RowKind.LEAF, "zyxwvutsrqpo.b32.i2p", "oslo", LEAF.spans)
    assert lines(an_hour(LEAF))[1][0] == "  oslo"
    assert [each[0] for each in lines(an_hour(LEAF, second))[1:]] == [
        "  oslo: abcdefgh….b32.i2p",
        "  oslo: zyxwvuts….b32.i2p",
    ]


def test_strip_of_ended_alarm_is_over() -> None:
    over = row(RowKind.ALARM, "clock", (0, 10, "the clock differs", WARNING))
    active = row(RowKind.ALARM, "disk-full", (50, 60, "the disk is full", CRITICAL))
    assert lines(an_hour(over, active)) == [
        ("ALARMS", "", ""),
        ("  clock", "over", "▅     "),
        ("  disk-full", "active", "     █"),
    ]


def test_chart_reaches_highest_value() -> None:
    values = (1.0,) * 30 + (None,) * 10 + (8.0,) * 20
    series = (
        HistorySeries(SeriesKind.ROUND_TRIP, "kyoto", "ms", values),
        HistorySeries(SeriesKind.COMMIT_LAG, None, "ms", (0.0,) * 60),
    )
    assert lines(an_hour(series=series)) == [
        ("ROUND TRIPS", "", ""),
        ("  kyoto", "max 8ms", "▂▂▂ ██"),
        ("commit lag", "max <1ms", "▁▁▁▁▁▁"),
    ]


@each_case("width", [1, 7, 60, 96, 1_000])
def test_cells_cover_window_for_any_width(width: int) -> None:
    worst = worst_states(NODE, 0, 60 * MINUTE_MS, width)
    assert len(worst) == width
    assert None not in worst
    assert any(each is not None and each.text == "dead" for each in worst)


def test_incidents_are_in_order_of_time() -> None:
    found = incidents(an_hour(LEADER, NODE))
    assert [(each.subject, each.text, each.is_last) for each in found] == [
        ("leader", "none", False),
        ("leader", "kyoto", False),
        ("kyoto", "dead", False),
    ]


def test_incident_until_end_of_window_is_last() -> None:
    down = row(RowKind.NODE, "kyoto", (0, 10, "alive", OK), (10, 60, "dead", CRITICAL))
    assert [each.is_last for each in incidents(an_hour(down))] == [True]


def test_runs_join_cells_of_one_severity() -> None:
    cells = [(CELLS[OK], OK), (CELLS[OK], OK), (BLANK, None), (CELLS[CRITICAL], CRITICAL)]
    assert list(runs(cells)) == [("▂▂", OK), (" ", None), ("█", CRITICAL)]
    assert list(runs([])) == []
