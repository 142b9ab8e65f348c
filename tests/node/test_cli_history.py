"""`garlicfarm history` and `members --all-nodes`: requests, output, and hostile names in it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result
from msgspec.structs import replace

from bridge.api.control_routes import HISTORY, VIEWS
from bridge.api.json import DocumentError, decode, encode
from bridge.api.observations.history import HistoryAnswer, HistoryRow, HistorySeries, HistorySpan
from bridge.api.observations.perspectives import NodePerspective, PerspectivesAnswer
from bridge.api.view import Severity
from bridge.cli.main import cli
from bridge.cli.printing import echo_parts
from bridge.core.formation.member import MemberStatus
from bridge.core.history.records import Break, BreakCause, Row, RowKind, Sample, SeriesKind, State, StateRecord
from bridge.node.control.routes import Call
from bridge.node.history.history_file import open_history
from tests.node.test_cli_commands import served
from tests.operator_views import NOW_MS

# ruff: noqa: ARG001 - the node serves while a test calls

HOUR_MS = 3_600_000
HOSTILE = "kyoto\x1b[2J\r\n2026-01-01 oslo is dead\u202e"
ANSWER = HistoryAnswer(
    "oslo",
    NOW_MS - HOUR_MS,
    NOW_MS,
    60_000,
    (
        HistoryRow(
            RowKind.NODE,
            HOSTILE,
            None,
            (
                HistorySpan(NOW_MS - HOUR_MS, NOW_MS - 90_000, "alive", Severity.OK),
                HistorySpan(NOW_MS - 90_000, NOW_MS, "dead", Severity.CRITICAL),
            ),
        ),
    ),
    spans_left_out=3,
)


ROW_WITHOUT_SPANS: dict[str, object] = {"kind": "leader", "name": None, "owner": None, "spans": []}


@pytest.mark.parametrize("changed", [{"fromMs": 0}, {"toMs": 2**62}, {"stepMs": 0}, {"rows": [ROW_WITHOUT_SPANS]}])
def test_malformed_history_is_refused(changed: dict[str, object]) -> None:
    document = json.loads(encode(ANSWER)) | changed
    with pytest.raises(DocumentError, match=r"a window from|a row without a span"):
        decode(json.dumps(document).encode(), HistoryAnswer)


def perspective(name: str, *, answered: bool = True, **statuses: MemberStatus) -> NodePerspective:
    return NodePerspective(
        name,
        "ab" * 8,
        answered,
        0 if answered else 61_000,
        "healthy",
        Severity.OK,
        "oslo",
        3,
        217,
        {"oslo": MemberStatus.ALIVE, **statuses},
    )


class HistoryNode:
    """A node with a scripted history and scripted perspectives."""

    def __init__(self) -> None:
        self.hours: list[int] = []
        self.answer = ANSWER
        self.perspectives: tuple[NodePerspective, ...] = (
            perspective("oslo", kyoto=MemberStatus.ALIVE),
            perspective("kyoto", kyoto=MemberStatus.DEAD),
            perspective("lima", answered=False),
            NodePerspective("rome", "cd" * 8, answered=False),
        )

    @property
    def handlers(self) -> dict[Any, Any]:
        """Return the handlers of the two routes."""
        return {HISTORY: self._history, VIEWS: self._views}

    async def _history(self, call: Call[None]) -> HistoryAnswer:
        await trio.lowlevel.checkpoint()
        self.hours.append(call.numbers["hours"])
        return self.answer

    async def _views(self, _: Call[None]) -> PerspectivesAnswer:
        await trio.lowlevel.checkpoint()
        return PerspectivesAnswer(NOW_MS, self.perspectives)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[HistoryNode]:
    found = HistoryNode()
    with served(tmp_path / "control.sock", found.handlers):
        yield found


@pytest.fixture
def garlicfarm(tmp_path: Path) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        return CliRunner().invoke(cli, list(arguments), env={"GARLICFARM_NODE": str(tmp_path), "COLUMNS": "80"})

    return call


def test_history_prints_strip_and_incident(node: HistoryNode, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("history", "--hours", "1")
    assert (result.exit_code, node.hours) == (0, [1])
    lines = result.stdout.splitlines()
    assert lines[0] == "The last 1 h, as oslo observed them, until 2025-10-09 08:53:20 UTC"
    assert any(line.endswith("▂██") for line in lines)
    assert "until now" in result.stdout
    assert lines[-1] == "Left out: 3 older states, 0 rows."
    assert all(len(line) <= 80 for line in lines if "█" in line)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "The last 20m00s, as"),
        (("--hours", "2"), "The last 2 h, as"),
        (("--since", "30m"), "The last 30m00s, as"),
        (("--since", "2m"), "The last 2m00s, as"),
    ],
)
def test_history_states_unrecorded_begin_of_window(
    monkeypatch: pytest.MonkeyPatch,
    node: HistoryNode,
    garlicfarm: Callable[..., Result],
    options: tuple[str, ...],
    expected: str,
) -> None:
    now_ms = NOW_MS - NOW_MS % 60_000
    spans = (HistorySpan(now_ms - 20 * 60_000, now_ms, "alive", Severity.OK),)
    hours = int(options[1]) if options[:1] == ("--hours",) else 24
    rows = (replace(ANSWER.rows[0], spans=spans),)
    node.answer = HistoryAnswer("oslo", now_ms - hours * HOUR_MS, now_ms, 60_000, rows)
    monkeypatch.setattr("time.time", lambda: now_ms / 1000)
    lines = garlicfarm("history", *options).stdout.splitlines()
    assert lines[0].startswith(expected)
    axis = next(each for each in lines if each.endswith("now")).split()
    assert len(axis) == len(set(axis)) > 1
    assert lines[1].startswith("Nothing is recorded in the ") is (options != ("--since", "2m"))
    if not options:
        node.answer = replace(node.answer, spans_left_out=1)
        lines = garlicfarm("history").stdout.splitlines()
        assert lines[0].startswith("The last 24 h, as"), "the first state in the window is left out"
        assert "Nothing is recorded" not in lines[1]


def test_history_since_begins_there(
    monkeypatch: pytest.MonkeyPatch, node: HistoryNode, garlicfarm: Callable[..., Result]
) -> None:
    earlier = (1.0,) + 59 * (None,)
    values = tuple(float(each) for each in range(60))
    node.answer = replace(
        ANSWER,
        series=(
            HistorySeries(SeriesKind.ROUND_TRIP, "kyoto", "ms", earlier),
            HistorySeries(SeriesKind.COMMIT_LAG, None, "ms", values),
        ),
    )
    monkeypatch.setattr("time.time", lambda: NOW_MS / 1000)
    found = json.loads(garlicfarm("history", "--since", "1m", "--json").stdout)
    assert (found["fromMs"], node.hours) == (NOW_MS - 60_000, [1])
    assert [each["values"] for each in found["series"]] == [[59.0]], "a series without a measurement is left out"
    assert [each["startMs"] for each in found["rows"][0]["spans"]] == [NOW_MS - 60_000]
    for wrong in (("--since", "1m", "--hours", "2"), ("--since", "40d"), ("--since", "2300-01-01")):
        assert garlicfarm("history", *wrong).exit_code == 2


def test_history_since_after_last_record_is_empty(
    monkeypatch: pytest.MonkeyPatch, node: HistoryNode, garlicfarm: Callable[..., Result]
) -> None:
    to_ms = NOW_MS + 30_000
    spans = (HistorySpan(NOW_MS - HOUR_MS, to_ms, "alive", Severity.OK),)
    series = (HistorySeries(SeriesKind.COMMIT_LAG, None, "ms", 61 * (1.0,)),)
    node.answer = replace(ANSWER, to_ms=to_ms, rows=(replace(ANSWER.rows[0], spans=spans),), series=series)
    monkeypatch.setattr("time.time", lambda: (to_ms + HOUR_MS) / 1000)
    found = json.loads(garlicfarm("history", "--since", "10m", "--json").stdout)
    assert (found["fromMs"], found["rows"], found["series"]) == (to_ms, [], [])
    assert "Nothing is recorded in this time." in garlicfarm("history", "--since", "10m").stdout


def test_history_escapes_hostile_names(node: HistoryNode, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("history")
    assert not {"\x1b", "\r", "\u202e"} & set(result.stdout)
    assert not any(line.startswith("2026-01-01") for line in result.stdout.splitlines())


def test_history_json_is_the_reply(node: HistoryNode, garlicfarm: Callable[..., Result]) -> None:
    found = json.loads(garlicfarm("history", "--json").stdout)
    assert found["rows"][0]["spans"][1]["severity"] == "critical"
    assert found["spansLeftOut"] == 3


def test_history_of_stopped_node_ends_with_last_record(tmp_path: Path, garlicfarm: Callable[..., Result]) -> None:
    file, _ = open_history(tmp_path)
    row = Row(RowKind.NODE, "kyoto")
    file.write(
        [
            Break(NOW_MS, BreakCause.START, 0),
            StateRecord(NOW_MS, row, State("alive", 0)),
            StateRecord(NOW_MS + 60_000, row, State("dead", 2)),
            StateRecord(NOW_MS + 90_000, row, State("alive", 0)),
            Sample(NOW_MS + 120_000, NOW_MS // 60_000, ()),
        ]
    )
    file.close()
    result = garlicfarm("history", "--state-dir", str(tmp_path))
    assert "until 2025-10-09 08:55:20 UTC" in result.stdout
    assert "for 30s     !! kyoto  dead" in result.stdout


@pytest.mark.parametrize("content", [None, b"of another program"])
def test_history_of_unusable_directory_is_refused(
    tmp_path: Path, garlicfarm: Callable[..., Result], content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "history.ring").write_bytes(content)
    result = garlicfarm("history", "--state-dir", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith("garlicfarm: ")
    assert "history.ring" in result.stderr


def test_history_of_node_and_directory_is_wrong_usage(garlicfarm: Callable[..., Result]) -> None:
    assert garlicfarm("history", "--node", "a", "--state-dir", "b").exit_code == 2


def test_history_of_all_nodes_prints_disagreement(node: HistoryNode, garlicfarm: Callable[..., Result]) -> None:
    lines = garlicfarm("members", "--all-nodes").stdout.splitlines()
    assert lines[0].split() == ["NODE", "REPLIED", "VERDICT", "LEADER", "TERM", "COMMIT", "SERVERS", "IT", "SEES"]
    assert lines[2].split()[:3] == ["kyoto", "yes", "healthy"]
    assert lines[2].endswith("1 alive; dead: kyoto")
    assert lines[3].split()[:4] == ["lima", "1m01s", "ago", "healthy"]
    assert lines[4].split()[:2] == ["rome", "no"]
    assert lines[-1] == "! kyoto is alive for oslo; dead for kyoto"


def test_history_of_all_nodes_counts_agreeing_nodes(node: HistoryNode, garlicfarm: Callable[..., Result]) -> None:
    node.perspectives = (perspective("oslo"), perspective("kyoto"))
    assert garlicfarm("members", "--all-nodes").stdout.endswith("The 2 nodes that replied agree.\n")


def test_history_of_all_nodes_in_json_is_the_reply(node: HistoryNode, garlicfarm: Callable[..., Result]) -> None:
    found = json.loads(garlicfarm("members", "--all-nodes", "--json").stdout)
    assert [each["name"] for each in found["nodes"]] == ["oslo", "kyoto", "lima", "rome"]


def test_history_of_all_nodes_refuses_round_trips(garlicfarm: Callable[..., Result]) -> None:
    assert garlicfarm("members", "--all-nodes", "--rtt").exit_code == 2


@pytest.mark.parametrize(("no_color", "expected"), [("", "\x1b[31mdead\x1b[0m"), ("1", "dead")])
def test_parts_of_line_follow_no_color(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_color: str, expected: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("click._compat.should_strip_ansi", lambda *_: False)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    echo_parts([("dead", "red"), (" \x1b[2J", None)])
    assert capsys.readouterr().out == f"{expected} \\x1b[2J\n"
