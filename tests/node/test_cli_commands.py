"""The command line: output as text and as JSON, exit codes, and one line per refusal."""

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
import trio
from click.testing import CliRunner, Result
from msgspec.structs import replace
from trio.lowlevel import TrioToken

from bridge.api.control import ClusterAnswer, IdentityView, NodesAnswer, Refused, SubmitAnswer, SubmitOutcome
from bridge.api.control_routes import BACKUP, NODES
from bridge.api.json import encode
from bridge.api.log import EntryKind, LogEntryView, LogPage
from bridge.api.trace import EventPage
from bridge.api.verdict import EXIT_STATUS
from bridge.api.view import AlarmView, FarmView, VoterView
from bridge.api.words import MEMBER_COLUMNS
from bridge.cli.main import cli
from bridge.node.control.farm_admin import FarmAdmin
from bridge.node.control.routes import Answer, Call, Handlers
from bridge.node.control.server import ControlServer
from bridge.node.offline.state_reading import read_directory
from bridge.node.security.key_files import load_farm_key
from bridge.wire.keys.backup import encode_backup
from consensus.sessions.table import RequestId
from pipeline.cli import entry as pipeline_command
from tests.node.test_control import FakeNode
from tests.node.test_state_reading import node_directory
from tests.operator_views import CHOICES, farm_view


class Node(FakeNode):
    """A fabricated node with a real socket in a separate thread, without a leader and without a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: tuple[int, ...] = ()
        self.publishing = farm_view().publishing
        self.cluster_id: str | None = None
        self.kafka_address: str | None = None
        self.alarms: tuple[AlarmView, ...] | None = None
        self.zmq_address: str | None = None
        self.unknown_to_gossip: tuple[int, ...] = ()

    @property
    def handlers(self) -> Handlers:
        """The handlers, with the list of identities."""
        return {**super().handlers, NODES: self.list_nodes}

    async def list_nodes(self, _: Call[None]) -> NodesAnswer:
        """Return the identities in the log."""
        await trio.lowlevel.checkpoint()
        found = (
            IdentityView(each.node_id, each.name, each.raft_id, "member", "unknown", "voter")
            for each in farm_view().members
        )
        return NodesAnswer(5, 5, tuple(found), 0, ())

    async def view(self) -> FarmView:
        made = farm_view()
        made = replace(made, alarms=made.alarms if self.alarms is None else self.alarms)
        local = replace(made.node, kafka_address=self.kafka_address, zmq_address=self.zmq_address)
        members = tuple(each for each in made.members if each.raft_id not in self.unknown_to_gossip)
        return replace(made, removed=self.removed, publishing=self.publishing, node=local, members=members)

    async def cluster(self) -> ClusterAnswer:
        """Return a cluster without a leader."""
        return ClusterAnswer("demo", self.cluster_id, None, 0, 217, None, None, None)

    async def read_log(self, first: int, limit: int, wait_ms: int, *, linearizable: bool = False) -> LogPage:
        """Return up to three entries."""
        del wait_ms
        self.linearizable.append(linearizable)
        values = (b'{"id": 1}', b"\xff\x1b[2J", b"{}")
        entries = (LogEntryView.of(index, 1, EntryKind.APPLICATION, 1000, values[index - 1]) for index in (1, 2, 3))
        chosen = tuple(entry for entry in entries if entry.index >= first)[:limit]
        return LogPage(1, 3, 3, chosen[-1].index + 1 if chosen else first, chosen)

    async def read_events(self, cursor: int, limit: int, wait_ms: int) -> EventPage:
        """Return a page without events."""
        del limit, wait_ms
        return EventPage(cursor, 0)


@contextmanager
def served(path: Path, node: FarmAdmin | Handlers) -> Iterator[TrioToken]:
    """Serve a node from a thread during the block; the token runs calls in that thread."""
    handlers = node.handlers if isinstance(node, FarmAdmin) else node
    started = threading.Event()
    serving: list[tuple[TrioToken, trio.CancelScope]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(ControlServer(path, handlers).run)
            serving.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            started.set()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert started.wait(60)
    token, scope = serving[0]
    try:
        yield token
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = Node()
    with served(tmp_path / "control.sock", found):
        yield found


@pytest.fixture
def garlicfarm(tmp_path: Path) -> Callable[..., Result]:
    def call(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, list(arguments), input=stdin, env={"GARLICFARM_NODE": str(tmp_path)})

    return call


def error_line(result: Result) -> str:
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return str(lines[0])


def test_help_names_all_commands_without_loading_them() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from bridge.cli.main import cli; "
        "text = CliRunner().invoke(cli, ['--help']).output; "
        "print(text); print([name for name in ('trio', 'rich', 'cryptography', 'pyspark') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f"  {name} " in done.stdout for name in cli.lazy_commands)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", cli.lazy_commands)
def test_command_help_shows_usage(name: str, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm(name, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize("arguments", [("nonsense",), ("log", "--from", "x"), ("keys", "new-farm"), ("submit",)])
def test_wrong_usage_exits_with_two(arguments: tuple[str, ...], garlicfarm: Callable[..., Result]) -> None:
    assert garlicfarm(*arguments).exit_code == 2


@pytest.mark.usefixtures("node")
def test_status_as_json_is_the_view(garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("status", "--json")
    assert result.exit_code == EXIT_STATUS[farm_view().verdict.severity] == 3
    assert json.loads(result.stdout) == json.loads(encode(farm_view()))


@pytest.mark.usefixtures("node")
def test_status_as_text_shows_important_facts(garlicfarm: Callable[..., Result]) -> None:
    text = garlicfarm("status").stdout
    for fact in (
        "Degraded: node-5 down",
        "leader, term 3",
        "3 alive",
        "committed 217 of 218",
        "healthiest recent state",
        "ALARM",
        "demonstration",
    ):
        assert fact in text, fact
    assert "clients read" not in text
    lines = text.splitlines()
    of_dead = next(place for place, line in enumerate(lines) if "at node-5, cost 50" in line)
    assert lines[of_dead + 1].strip().startswith("in its last report: router ok for 1d00h; lease set ok for 1h00m;")
    assert text.count("in its last report: ") == 1
    assert (
        "  router ok for 1d00h; lease set ok for 1h00m; service ok for 12m30s (failed once: Connection refused)" in text
    )
    [own] = (line for line in lines if line.startswith("this node "))
    assert f"{CHOICES[1]}; score 890: job lag 300 (0ms), uptime 140 of 200 (7m30s), leaves 200" in own
    assert "cannot publish: it does not have a router" in next(each for each in lines if each.startswith("node-5 "))


def test_status_shows_alarm_of_verdict_without_its_text(node: Node, garlicfarm: Callable[..., Result]) -> None:
    verdict = farm_view().verdict
    node.alarms = (AlarmView("servers-down", verdict.text, verdict.advice), AlarmView("disk-full", "full", "delete"))
    text = " ".join(garlicfarm("status").stdout.split())
    assert "ALARM servers-down: see above ALARM disk-full: full; delete" in text
    assert text.count(verdict.text) == 1


def test_leaf_of_dead_server_is_unhealthy_with_reason(node: Node, garlicfarm: Callable[..., Result]) -> None:
    [published] = node.publishing
    *others, last = published.entries
    node.publishing = (replace(published, entries=(*others, replace(last, faults=("server",)))),)
    assert "cost 50, unhealthy: its server is down or does not report" in garlicfarm("status").stdout
    node.publishing = ()
    text = garlicfarm("status").stdout
    assert "at node-4, not listed, healthy" in text
    assert "at node-5, not listed, unhealthy: its server is down or does not report" in text
    assert "at node-5: in its last report: service ok for" in garlicfarm("farm").stdout


def test_status_shows_addresses_for_clients_of_other_protocols(node: Node, garlicfarm: Callable[..., Result]) -> None:
    node.kafka_address, node.zmq_address = "farm.example:9092", "tcp://127.0.0.1:7670"
    lines = [line.split(maxsplit=1) for line in garlicfarm("status").stdout.splitlines()]
    assert ["kafka", "clients read the log at farm.example:9092"] in lines
    assert ["zmq", "clients read the log at tcp://127.0.0.1:7670"] in lines


@pytest.mark.usefixtures("node")
def test_members_are_listed_as_text_or_json(garlicfarm: Callable[..., Result]) -> None:
    lines = garlicfarm("members").stdout.splitlines()
    assert re.split(" {2,}", lines[0]) == [each.heading for each in MEMBER_COLUMNS.values()]
    assert lines[4].split()[:4] == ["node-4", "suspect", "1.4", "1.24ms"]
    found = json.loads(garlicfarm("members", "--json").stdout)
    assert [each["status"] for each in found["members"]] == ["alive", "alive", "alive", "suspect", "dead"]


@pytest.mark.usefixtures("node")
def test_log_is_printed_from_index(garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("log", "--from", "2")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["2", "3"]
    assert "\x1b[2J" not in result.stdout
    found = json.loads(garlicfarm("log", "--json", "--limit", "1").stdout)
    assert found["entries"][0]["value"] == '{"id": 1}'
    assert found["nextIndex"] == 2


def test_submit_prints_index_of_entry(node: Node, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("submit", '{"a": 1}')
    assert (result.exit_code, result.stdout) == (0, "Committed at index 218, term 3.\n")
    assert json.loads(garlicfarm("submit", "-", "--json", stdin='{"b": 2}').stdout)["accepted"] is True
    assert node.submitted == [b'{"a": 1}', b'{"b": 2}']


def test_entry_refused_by_farm_exits_with_reason(node: Node, garlicfarm: Callable[..., Result]) -> None:
    node.outcome = replace(node.outcome, reason="made from the log up to 1; one from up to 1 was accepted")
    result = garlicfarm("submit", '{"factors": {}}')
    assert (result.exit_code, result.stdout) == (1, "Committed at index 218, term 3.\n")
    assert error_line(result) == (
        "garlicfarm: the farm refused the entry, and nothing changed: made from the log up to 1; one from up to 1 was"
        " accepted"
    )
    as_json = garlicfarm("submit", "--json", '{"factors": {}}')
    assert (as_json.exit_code, json.loads(as_json.stdout)["index"]) == (1, 218)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (SubmitOutcome.REFUSED, "refused, it is not in the log"),
        (SubmitOutcome.BUSY, "try again"),
        (SubmitOutcome.UNKNOWN, "look with `garlicfarm log` before you repeat it"),
        (SubmitOutcome.EXPIRED, "expired, and not applied now"),
    ],
)
def test_uncommitted_entry_exits_with_one(
    node: Node, garlicfarm: Callable[..., Result], outcome: SubmitOutcome, text: str
) -> None:
    node.outcome = SubmitAnswer(outcome=outcome, reason="because", leader_id=2, leader_endpoint="tcp://127.0.0.1:7702")
    result = garlicfarm("submit", "{}")
    assert result.exit_code == 1
    assert text in error_line(result)
    assert "the leader is 2 at tcp://127.0.0.1:7702" in error_line(result)


def test_submission_has_request_id_for_repetition(node: Node, garlicfarm: Callable[..., Result]) -> None:
    node.cluster_id = "c0ffee"
    garlicfarm("submit", "{}")
    garlicfarm("submit", "--request-id", "me-200-3", "{}")
    garlicfarm("submit", '{"request": "me-200-4"}')
    made, given, own = node.requests
    assert made is not None
    assert (made.client[:4], made.session_start, made.sequence) == ("cli-", 217, 1)
    assert (given, own) == (RequestId("me", 200, 3), None)
    node.outcome = SubmitAnswer(outcome=SubmitOutcome.UNKNOWN, reason="the leader was lost", request="me-200-3")
    result = garlicfarm("submit", "--request-id", "me-200-3", "{}")
    assert "To repeat it without harm, here or at another node: --request-id me-200-3" in error_line(result)
    refused = garlicfarm("submit", "--request-id", "me", "{}")
    assert refused.exit_code == 1
    assert error_line(refused) == "garlicfarm: me is not a request id: copy the id that `submit` has printed"


def test_refused_submission_does_not_advise_repetition(node: Node, garlicfarm: Callable[..., Result]) -> None:
    node.cluster_id = "c0ffee"
    for entry in "[1]", '{"a": 1', '"text"':
        assert "To repeat it" not in error_line(garlicfarm("submit", "--request-id", "me-200-3", entry))


def test_log_page_is_linearizable_on_request(node: Node, garlicfarm: Callable[..., Result]) -> None:
    assert garlicfarm("log").exit_code == 0
    assert not node.linearizable[-1]
    assert garlicfarm("log", "--linearizable").exit_code == 0
    assert node.linearizable[-1]


@pytest.mark.parametrize("command", [("servers", "list"), ("backup", "{}/farm.backup")])
def test_command_without_leader_reports_missing_changes(
    tmp_path: Path, garlicfarm: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    node = Node()
    content = encode_backup(trio.run(read_directory, node_directory(tmp_path / "stopped")).backup)

    async def cluster() -> ClusterAnswer:
        return ClusterAnswer("demo", node.cluster_id, 2, 0, 217, None, None, None, (VoterView(2, "a:1", "node-2"),))

    async def refuse(*_: int, linearizable: bool) -> LogPage:
        raise Refused(503, "no-quorum", f"no quorum {linearizable}")

    monkeypatch.setattr(node, "cluster", cluster)

    async def backup(_: Call[None]) -> Answer:
        return Answer(200, content)

    monkeypatch.setattr(node, "read_log", refuse)
    with served(tmp_path / "control.sock", {**node.handlers, BACKUP: backup}):
        result = garlicfarm(*(each.format(tmp_path) for each in command))
    assert result.exit_code == 0
    assert "The last changes may be missing: the node refused: no quorum True" in result.stderr


def test_submit_without_json_is_refused(node: Node, garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("submit", "{oops")
    assert result.exit_code == 1
    assert "one JSON object" in error_line(result)
    assert node.submitted == []


def test_leave_names_the_node(node: Node, garlicfarm: Callable[..., Result]) -> None:
    refused = garlicfarm("leave")
    assert refused.exit_code == 1
    assert "with --yes" in refused.stderr
    assert not node.leaving
    assert garlicfarm("leave", "--yes").stdout == "node-1 leaves the farm and stops.\n"
    assert node.leaving


def test_transfer_names_new_leader_or_reason(node: Node, garlicfarm: Callable[..., Result]) -> None:
    del node
    assert garlicfarm("transfer").stdout == "node-2 is now the leader.\n"
    assert json.loads(garlicfarm("transfer", "node-1", "--json").stdout) == {"schema": 1, "leader": "node-1"}
    assert garlicfarm("transfer", "--to", "node-1").stdout == "node-1 is now the leader.\n"
    assert garlicfarm("transfer", "node-1", "--to", "node-2").exit_code == 2
    refused = garlicfarm("transfer", "unknown")
    assert refused.exit_code == 1
    assert "there are node-1, node-2" in error_line(refused)


@pytest.mark.parametrize("arguments", [("status",), ("members", "--json"), ("log",), ("submit", "{}"), ("leave",)])
def test_command_without_node_fails_with_one_line(
    arguments: tuple[str, ...], garlicfarm: Callable[..., Result]
) -> None:
    result = garlicfarm(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "no node runs with the state directory" in error_line(result)


def test_new_farm_key_is_private_file_without_output(tmp_path: Path, garlicfarm: Callable[..., Result]) -> None:
    path = tmp_path / "farm.key"
    result = garlicfarm("keys", "new-farm", "--expect", "3", "--cluster", "attic", "--output", str(path), "--json")
    assert result.exit_code == 0
    farm_key = load_farm_key(path)
    assert (farm_key.expect, farm_key.cluster) == (3, "attic")
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(result.stdout)["label"] == farm_key.label.hex()
    assert not any(key.hex() in result.output for key in farm_key.gossip_keys)


def test_farm_key_is_not_overwritten(tmp_path: Path, garlicfarm: Callable[..., Result]) -> None:
    path = tmp_path / "farm.key"
    path.write_text("precious")
    result = garlicfarm("keys", "new-farm", "--expect", "3", "--output", str(path))
    assert result.exit_code == 1
    assert "exists already" in error_line(result)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("content", [b"", b"rubbish", b"00" * 300, bytes(500)])
def test_lease_set_show_of_other_file_exits_with_one(
    tmp_path: Path, garlicfarm: Callable[..., Result], content: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    result = garlicfarm("lease-set", "show", str(path))
    assert result.exit_code == 1
    assert "is not a Meta LeaseSet2" in error_line(result)


def test_top_needs_terminal(garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("top")
    assert result.exit_code == 1
    assert "garlicfarm status" in error_line(result)


def test_pipeline_without_extra_explains_installation(
    garlicfarm: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_name: str) -> object:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    monkeypatch.setattr(pipeline_command, "import_module", missing)
    result = garlicfarm("pipeline", "run", "--once")
    assert result.exit_code == 1
    assert "pip install 'garlicfarm[pipeline]', or in a checkout: make pipeline" in error_line(result)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("command", [["event"], ["query"], ["node", "approve", "--yes"]])
def test_undecodable_argument_is_refused_in_one_line(garlicfarm: Callable[..., Result], command: list[str]) -> None:
    result = garlicfarm(*command, "\udcff")
    assert (result.exit_code, error_line(result)) == (
        1,
        r"garlicfarm: \udcff is not valid text in this locale: write it in UTF-8, and set LC_ALL=C.UTF-8",
    )


@pytest.mark.usefixtures("node")
def test_undecodable_request_id_is_refused(garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm("submit", "{}", "--request-id", "\udcff")
    assert (result.exit_code, error_line(result)) == (
        1,
        r"garlicfarm: \udcff is not a request id: copy the id that `submit` has printed",
    )


def test_command_with_node_option_has_timeout_option() -> None:
    """A command with `--node` needs `--timeout` to limit its wait."""
    unbounded = []
    for path, command in all_commands(cli):
        options = {option for each in command.params for option in each.opts}
        if "--node" in options and "--timeout" not in options:
            unbounded.append(path)
    assert unbounded == []


def test_command_to_stopped_node_ends_after_timeout(tmp_path: Path, garlicfarm: Callable[..., Result]) -> None:
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(tmp_path / "control.sock"))
        stopped.listen()
        for arguments in (("status",), ("submit", "{}"), ("log", "--linearizable"), ("servers", "list")):
            result = garlicfarm(*arguments, "--timeout", "0.2", "--node", str(tmp_path))
            assert result.exit_code == 1
            assert "does not answer; is it stopped or overloaded?" in result.output


def all_commands(group: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(group, click.Group):
        yield path, group
        return
    context = click.Context(group)
    if group.invoke_without_command:
        yield path, group
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from all_commands(found, f"{path} {name}".strip())
