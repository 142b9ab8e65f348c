"""Commands that watch a farm: the log as text with filters, merged events of several nodes, round trips, servers."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from click.testing import Result
from msgspec.structs import replace

from bridge.api.control import QueryAnswer, QueryAnswerView
from bridge.api.events import MEMBER_DEAD, PUBLISHED
from bridge.api.log import EntryKind, LogEntryView, LogPage
from bridge.cli import log as log_command
from tests.end_to_end import forking
from tests.node.test_cli_commands import garlicfarm, served
from tests.node.test_control import FakeNode

__all__ = ["garlicfarm"]
TIMEOUT_S = 60.0
NOW_MS = int(time.time() * 1000)
ENTRIES = [
    (b'{"clock":{"time":1000,"id":1}}', NOW_MS - 86_400_000),
    (b'{"level":{"number":2,"version":"0.1.0"}}', NOW_MS - 86_400_000),
    (b'{"clock":{"time":2000,"id":2}}', NOW_MS - 1_000),
    (b'{"mine":"\\u001b[31m"}', NOW_MS),
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """Return a node that replies from a separate thread."""
    found = FakeNode()
    with served(tmp_path / "control.sock", found):
        yield found


@pytest.fixture
def logged(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """Return a node whose log has these entries."""

    async def read_log(first: int, limit: int, wait_ms: int, *, linearizable: bool = False) -> LogPage:
        del wait_ms, linearizable
        last = min(len(ENTRIES), first + limit - 1)
        shown = tuple(
            LogEntryView.of(at, 1, EntryKind.APPLICATION, ENTRIES[at - 1][1], ENTRIES[at - 1][0])
            for at in range(first, last + 1)
        )
        return LogPage(1, len(ENTRIES), len(ENTRIES), last + 1, shown)

    monkeypatch.setattr(node, "read_log", read_log)
    return node


def indexes(result: Result) -> list[int]:
    assert result.exit_code == 0, result.output
    return [int(line.split()[0]) for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("logged")
def test_entries_are_printed_as_text_or_raw(garlicfarm: Callable[..., Result]) -> None:
    lines = garlicfarm("log").stdout.splitlines()
    assert "clock         log time 00:00:01 by node-1" in lines[0]
    assert "level         feature level 2" in lines[1]
    assert '{"clock":{"time":1000,"id":1}}' in garlicfarm("log", "--raw").stdout
    assert "\x1b" not in garlicfarm("log").stdout


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--type", "clock"], [1, 3]),
        (["--type", "clock", "--type", "level"], [1, 2, 3]),
        (["--by", "node-2"], [3]),
        (["--since", "12h"], [3, 4]),
        (["--from", "2", "--type", "clock"], [3]),
        (["--type", "clock", "--limit", "1"], [1]),
    ],
)
def test_entries_are_filtered_by_type_author_or_time(
    garlicfarm: Callable[..., Result], arguments: list[str], expected: list[int]
) -> None:
    assert indexes(garlicfarm("log", *arguments)) == expected


@pytest.mark.usefixtures("logged")
def test_tail_starts_before_end_of_log(garlicfarm: Callable[..., Result], logged: FakeNode) -> None:
    view = logged.current
    logged.current = replace(view, raft=replace(view.raft, commit_index=len(ENTRIES)))
    assert indexes(garlicfarm("log", "--tail", "2")) == [3, 4]
    assert garlicfarm("log", "--tail", "3", "--from", "1").exit_code == 2


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("window", [1, 2, 1_000])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--tail", "1", "--type", "clock"], [3]),
        (["--tail", "9", "--type", "clock"], [1, 3]),
        (["--tail", "9", "--type", "clock", "--since", "12h"], [3]),
        (["--tail", "3", "--limit", "1"], [2, 3, 4]),
        (["--tail", "0"], []),
        (["--tail", "3", "--type", "factors"], []),
    ],
)
def test_tail_counts_matching_entries(
    garlicfarm: Callable[..., Result],
    logged: FakeNode,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    expected: list[int],
    window: int,
) -> None:
    monkeypatch.setattr(log_command, "WINDOW_ENTRIES", window)
    view = logged.current
    logged.current = replace(view, raft=replace(view.raft, commit_index=len(ENTRIES)))
    assert indexes(garlicfarm("log", *arguments)) == expected
    shown = json.loads(garlicfarm("log", "--json", *arguments).stdout)
    assert [each["index"] for each in shown["entries"]] == expected
    assert shown["nextIndex"] == len(ENTRIES) + 1


@pytest.mark.usefixtures("node")
def test_events_of_unused_kind_are_reported_as_none(garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("events", "--kind", "nonsense")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "Nothing of the kind nonsense among the stored events of the node.\n"


@pytest.mark.usefixtures("logged")
def test_invalid_filter_is_refused_with_alternatives(garlicfarm: Callable[..., Result]) -> None:
    assert "10:45:27" in garlicfarm("log", "--since", "yesterday").stderr
    assert "--since is '25:00'," in garlicfarm("log", "--since", "25:00").stderr
    assert "garlicfarm servers" in garlicfarm("log", "--by", "nowhere").stderr
    assert garlicfarm("log", "--type", "nonsense").exit_code == 2


def test_servers_are_listed_with_effect_of_their_loss(garlicfarm: Callable[..., Result], node: FakeNode) -> None:
    listed = garlicfarm("servers", "list")
    assert listed.exit_code == 0
    assert "WITHOUT IT" in listed.stdout
    assert node.current.verdict.text in listed.stdout
    assert listed.stdout == garlicfarm("servers").stdout
    servers = json.loads(garlicfarm("servers", "list", "--json").stdout)["servers"]
    assert {each["name"]: each["loss"] for each in servers}["node-5"] == "down"


def test_round_trips_of_all_nodes_are_listed(
    garlicfarm: Callable[..., Result], node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (replace(each, node_id=each.name[-1] * 16) for each in node.current.members[:2])
    node.current = replace(node.current, members=(first, second))

    class Messages:
        async def ask(self, name: str, payload: str, timeout_s: float) -> QueryAnswer:
            del payload, timeout_s
            assert name == "rtt"
            answers = (
                QueryAnswerView(first.name, first.node_id, f"{second.node_id[:8]}=3 nonsense"),
                QueryAnswerView(second.name, second.node_id, f"{first.node_id[:8]}=4 99999999=7"),
            )
            return QueryAnswer(name, answers, ("node-5",))

    monkeypatch.setattr(node, "messages", Messages(), raising=False)
    shown = garlicfarm("members", "--rtt")
    assert "3ms" in shown.stdout
    assert "99999999" in shown.stdout
    assert "node-5" in shown.stderr
    found = json.loads(garlicfarm("members", "--rtt", "--json").stdout)
    assert {(each["node"], each["rttMs"]) for each in found["roundTrips"]} == {
        ("node-1", 3.0),
        ("node-2", 4.0),
        ("node-2", 7.0),
    }


def test_members_accepts_output_option_of_other_tools(garlicfarm: Callable[..., Result], node: FakeNode) -> None:
    assert node.current.members
    assert garlicfarm("members", "-w", "json").stdout == garlicfarm("members", "--json").stdout
    assert garlicfarm("members", "-w", "table").stdout == garlicfarm("members").stdout


def test_monitor_merges_events_of_all_nodes(tmp_path: Path) -> None:
    """Two nodes report the same fact; one of them stops and returns."""
    nodes, sockets = (
        [FakeNode(), FakeNode()],
        [tmp_path / "node-1" / "control.sock", tmp_path / "node-2" / "control.sock"],
    )
    for socket in sockets:
        socket.parent.mkdir()
    named = [word for socket in sockets for word in ("--node", str(socket))]
    command = ["monitor", "--last", "10", *named]
    for each in nodes:
        each.events.append(MEMBER_DEAD, {"member": "node-3", "id": "33"})
    with ExitStack() as stack, served(sockets[0], nodes[0]) as token:
        with served(sockets[1], nodes[1]):
            monitor, output, _ = stack.enter_context(forking.child(command))
            first = output.readline()
            trio.from_thread.run_sync(nodes[0].events.append, PUBLISHED, {"second": 1, "entries": 3}, trio_token=token)
            second = output.readline()
        stopped = output.readline()
        with served(sockets[1], nodes[1]):
            returned = output.readline()
            monitor.send_signal(signal.SIGINT)
            assert monitor.wait(TIMEOUT_S) == 0
    assert "node-3" in first
    assert "published" in second
    assert str(sockets[1]) in stopped
    assert "answers again" in returned


@pytest.mark.parametrize("absence", ["unreachable", "restart", "replaced-event"])
def test_monitor_does_not_repeat_events_of_returned_node(tmp_path: Path, absence: str) -> None:
    socket, before = tmp_path / "control.sock", FakeNode()
    before.events.append(PUBLISHED, {"second": 1, "entries": 3})
    before.events.append(MEMBER_DEAD, {"member": "node-3", "id": "33"})
    after = FakeNode() if absence == "restart" else before
    with ExitStack() as stack:
        with served(socket, before):
            command = ["monitor", "--json", "--last", "1", "--node", str(socket)]
            monitor, output, errors = stack.enter_context(forking.child(command))
            assert json.loads(output.readline())["kind"] == MEMBER_DEAD.kind
        assert str(socket) in errors.readline()
        if absence == "replaced-event":
            after.events.per_cause_events = 1
        after.events.append(MEMBER_DEAD, {"member": "node-4", "id": "44"})
        with served(socket, after):
            assert json.loads(output.readline())["data"]["id"] == "44"
            monitor.send_signal(signal.SIGINT)
            assert monitor.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("command", [("monitor",), ("events", "--follow")])
def test_unknown_kind_is_reported_before_waiting(tmp_path: Path, node: FakeNode, command: tuple[str, ...]) -> None:
    node.events.append(MEMBER_DEAD, {"member": "node-3", "id": "33"})
    arguments = [*command, "--kind", "member-dad", "--node", str(tmp_path / "control.sock")]
    with forking.child(arguments) as (waiting, _, errors):
        error = errors.readline()
        waiting.send_signal(signal.SIGINT)
        waiting.wait(TIMEOUT_S)
    assert error.startswith("Nothing of the kind member-dad ")
    assert ("member-dead" in error) == (command == ("monitor",))
