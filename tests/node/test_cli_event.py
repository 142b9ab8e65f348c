"""`garlicfarm event`, `query` and `events`: requests to a node, and their output."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import trio
from click.testing import CliRunner, Result

from bridge.api.control import EventAnswer, QueryAnswer, QueryAnswerView, Refused
from bridge.api.events import QUERY, USER_EVENT
from bridge.api.json import decode
from bridge.api.trace import EventPage
from bridge.cli.main import cli
from bridge.node.events.event_log import EventLog
from bridge.node.membership.user_messages import UserMessages
from tests.node.test_cli_commands import Node, served


class FakeMessages:
    """User messages with a scripted reply: node-2 replies to `ping`, node-3 does not."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.queries: list[tuple[str, str, float]] = []
        self.others: int | None = 2

    def send(self, name: str, payload: str) -> int | None:
        if name == "gossip:x":
            raise Refused(400, "bad-request", "names that begin with gossip: are for gossip itself")
        self.sent.append((name, payload))
        return self.others

    async def ask(self, name: str, payload: str, timeout_s: float) -> QueryAnswer:
        await trio.lowlevel.checkpoint()
        self.queries.append((name, payload, timeout_s))
        answers = (QueryAnswerView("node-2", "02" * 8, "node-2\x1b[2J"),) if name == "ping" else ()
        return QueryAnswer(name, answers, ("node-3",))


class MessagingNode(Node):
    """A node with a trace and user messages."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeMessages()
        self.messages = cast("UserMessages", self.fake)
        self.trace = EventLog("node-1", lambda: 1_767_225_600_000)

    async def read_events(self, cursor: int, limit: int, wait_ms: int) -> EventPage:
        return await self.trace.wait(cursor, limit, wait_ms)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MessagingNode]:
    found = MessagingNode()
    with served(tmp_path / "control.sock", found):
        yield found


@pytest.fixture
def garlicfarm(tmp_path: Path) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        return CliRunner().invoke(cli, list(arguments), env={"GARLICFARM_NODE": str(tmp_path)})

    return call


def test_event_is_sent_with_its_payload(node: MessagingNode, garlicfarm: Callable[..., Result]) -> None:
    assert garlicfarm("event", "deploy", "version 2").stdout == "The event deploy is on its way to 2 other nodes.\n"
    assert json.loads(garlicfarm("event", "deploy", "--json").stdout) == {"schema": 1, "name": "deploy", "nodes": 2}
    assert node.fake.sent == [("deploy", "version 2"), ("deploy", "")]


def test_event_without_other_node_reports_it(node: MessagingNode, garlicfarm: Callable[..., Result]) -> None:
    node.fake.others = 0
    result = garlicfarm("event", "deploy")
    assert (result.stdout, result.exit_code) == ("", 0)
    assert result.stderr == "No other node is running, so only this node records the event deploy.\n"


def test_event_reply_of_older_version_is_success(node: MessagingNode, garlicfarm: Callable[..., Result]) -> None:
    assert decode(b'{"schema":1,"name":"deploy"}', EventAnswer) == EventAnswer("deploy")
    node.fake.others = None
    assert garlicfarm("event", "deploy").stdout == "The event deploy is on its way to all nodes.\n"


def test_refused_event_exits_with_reason(node: MessagingNode, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("event", "gossip:x")
    assert result.exit_code == 1
    assert result.stderr == "garlicfarm: the node refused: names that begin with gossip: are for gossip itself\n"
    assert node.fake.sent == []


def test_query_lists_replies_with_unresponsive_nodes(node: MessagingNode, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("query", "ping", "hello", "--timeout", "2.5")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["NODE    ANSWER", "node-2  node-2\\x1b[2J"]
    assert result.stderr == "No answer in time from: node-3\n"
    assert node.fake.queries == [("ping", "hello", 2.5)]
    assert json.loads(garlicfarm("query", "ping", "--json").stdout) == {
        "schema": 1,
        "name": "ping",
        "answers": [{"node": "node-2", "id": "02" * 8, "payload": "node-2\x1b[2J"}],
        "silent": ["node-3"],
    }


def test_query_without_reply_lists_known_queries(node: MessagingNode, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("query", "weather")
    assert result.stderr == "No node has a reply to weather; every node replies to ping and version.\n"
    assert garlicfarm("query", "ping", "--timeout", "21").exit_code == 2
    assert node.fake.queries == [("weather", "", 5.0)]


def test_events_of_one_kind_are_listed_to_end_of_trace(node: MessagingNode, garlicfarm: Callable[..., Result]) -> None:
    for number in range(1_200):
        node.trace.append(USER_EVENT, {"name": "deploy", "payload": f"v{number}", "from": "oslo"})
        if number % 300 == 0:
            node.trace.append(QUERY, {"name": "ping", "payload": "", "from": "oslo", "answered": True})
    assert garlicfarm("events", "--kind", "user-event", "--limit", "2").stdout.splitlines() == [
        "00:00:00 node-1 user-event: deploy from oslo: v1198",
        "00:00:00 node-1 user-event: deploy from oslo: v1199",
    ]
    found = json.loads(garlicfarm("events", "--kind", "query", "--json").stdout)
    assert len(found["events"]) == 4
    assert found["next"] == node.trace.next_cursor
    assert found["lost"] == 1_200 - 1_024
