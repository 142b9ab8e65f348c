"""JSON documents of nodes and commands keep their keys, the order of the keys, and their bytes.

`tests/vectors/operator-json.json` has the complete document if its values are fixed, and otherwise the ordered paths
of its keys. A key may be added there, but never removed, moved or renamed.
"""

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner
from msgspec import Struct

from bridge.api import control_routes as routes
from bridge.api.control import (
    ClientKeyView,
    ClusterAnswer,
    CommandAnswer,
    EventAnswer,
    FarmKeyState,
    FarmKeyView,
    IdentityView,
    KeysAnswer,
    KeysReplaced,
    LogTimeAnswer,
    NodeApproved,
    NodeEvicted,
    NodesAnswer,
    QueryAnswer,
    QueryAnswerView,
    RefusalAnswer,
    RefusalView,
    RetiredIdentity,
    ServerClock,
    SubmitAnswer,
    SubmitOutcome,
)
from bridge.api.json import encode
from bridge.api.log import EntryKind, LogEntryView, LogPage
from bridge.api.trace import EventPage, Scalar, TraceEvent
from bridge.api.view import FarmView, VoterView
from bridge.cli.main import cli
from bridge.node.control.routes import Answer, Call, Handlers
from bridge.node.offline.state_reading import read_directory
from bridge.node.security.key_files import save_farm_key
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease
from bridge.wire.i2p.meta_lease_set import encode as encode_structure
from bridge.wire.keys.backup import encode_backup
from bridge.wire.keys.farm_key import new_farm_key
from gossip.core.keyring import key_id
from tests.destinations import new_demo_leaf
from tests.effort import each_case
from tests.node.test_cli_commands import Node, served
from tests.node.test_state_reading import node_directory
from tests.operator_views import farm_view, forming_view

RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "operator-json.json").read_text())
NOW_S = int(time.time())
ENDPOINT = "tcp://127.0.0.1:7701"
ID, OTHER_ID = "11" * 8, "22" * 8
FACTS: dict[str, Scalar] = {"leader": "node-1", "snake_key": 3, "rtt": 0.25, "early": False, "previous": None}
LOG_PAGE = LogPage(
    first_index=3,
    last_index=9,
    commit_index=8,
    next_index=7,
    entries=(
        LogEntryView.of(3, 1, EntryKind.NO_OP, None, b'{"leader":1}'),
        LogEntryView.of(4, 1, EntryKind.CONFIGURATION, None, b'{"voters":[{"id":1,"endpoint":"tcp://a:1"}]}'),
        LogEntryView.of(5, 2, EntryKind.APPLICATION, 1_700_000_000_000, '{"name": "Zürich"}'.encode()),
        LogEntryView.of(6, 2, EntryKind.APPLICATION, 1_700_000_000_001, b"\xff\x00"),
    ),
    cluster_id=ID * 2,
)
EVENT_PAGE = EventPage(
    next_cursor=19,
    lost=2,
    events=(
        TraceEvent(17, 1000, None, "leader-elected", "node-2", FACTS),
        TraceEvent(18, 1001, 900, "node-stopping", "node-2"),
    ),
)
KEYS = KeysAnswer(
    farm="1f8a0c5e",
    epoch=3,
    primary="aa" * 4,
    members=3,
    file="/etc/garlicfarm/farm.key",
    file_epoch=None,
    keys=(
        FarmKeyView("aa" * 4, FarmKeyState.PRIMARY, 3, opened_by=2, sealed_by=1, missing=("node-3",)),
        FarmKeyView("bb" * 4, FarmKeyState.REMOVED, 1, opened_by=0, sealed_by=0),
    ),
    behind=("node-2",),
    silent=("node-3",),
    absent=("node-4",),
    refused=True,
)
CLOCKS = (ServerClock(1, "oslo", voter=True, offset_ms=-3), ServerClock(2, "lima", voter=False, offset_ms=None))
DOCUMENTS: dict[str, Struct] = {
    "view of the leader": farm_view(),
    "view of a follower": farm_view(2),
    "view before the farm is created": forming_view(),
    "cluster": ClusterAnswer(
        "demo",
        "c0ffee",
        2,
        3,
        217,
        1,
        "node-1",
        ENDPOINT,
        (VoterView(1, ENDPOINT, "node-1"), VoterView(2, "tcp://b:2")),
    ),
    "cluster without a leader": ClusterAnswer("demo", None, None, 0, 0, None, None, None),
    "log page": LOG_PAGE,
    "event page": EVENT_PAGE,
    "keys": KEYS,
    "log time": LogTimeAnswer(1_767_225_600_000, None, 5, agreed=True, clocks=CLOCKS),
    "command": CommandAnswer("cost", 218, "granted"),
    "submission committed": SubmitAnswer(outcome=SubmitOutcome.COMMITTED, index=5, term=2),
    "submission unknown": SubmitAnswer(
        outcome=SubmitOutcome.UNKNOWN, reason="lost", leader_id=1, leader_endpoint=ENDPOINT, request="me-2-3"
    ),
    "event": EventAnswer("deploy", 2),
    "query": QueryAnswer("ping", (QueryAnswerView("node-1", ID, "node-1"),), ("node-2",)),
    "refusal": RefusalAnswer(RefusalView("no-server", "this node is no server")),
}
ROW = IdentityView(ID, "node-1", 1, "member", "alive", "voter")
ADMITTED = ClientKeyView(OTHER_ID, "c", ("weights",), admitted=True)
NODES = NodesAnswer(3, 3, (ROW, IdentityView(ID, "node-1", None, "member", "alive", "voter", "why")), 2, (ADMITTED,))
EVICTED = NodeEvicted(ID, 2, 3, "n", 4, keys_replaced=True, left_out=("x",), votes_still=False)


class FarmNode(Node):
    """A founder whose promise can be withdrawn, with every kind of entry in its log."""

    async def view(self) -> FarmView:
        """Return the leader's view."""
        return farm_view()

    async def withdraw(self) -> str | None:
        return None

    async def read_log(self, first: int, limit: int, wait_ms: int, *, linearizable: bool = False) -> LogPage:
        del first, limit, wait_ms, linearizable
        return LOG_PAGE


def answering(document: Struct) -> Callable[[Call[Any]], Awaitable[Struct]]:
    async def handler(_: Call[Any]) -> Struct:
        return document

    return handler


def key_paths(value: object, at: str = "") -> list[str]:
    match value:
        case dict():
            found = [(key, f"{at}.{key}" if at else key) for key in value]
            return [path for key, own in found for path in (own, *key_paths(value[key], own))]
        case list():
            return list(dict.fromkeys(path for each in value for path in key_paths(each, f"{at}[]")))
        case _:
            return []


@each_case("name", RECORDED["documents"])
def test_node_document_keeps_its_bytes(name: str) -> None:
    assert encode(DOCUMENTS[name]).decode() == RECORDED["documents"][name]


class Stage:
    """A directory for a sequence of commands, with their output."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.printed: dict[str, str] = {}

    def __getitem__(self, name: str) -> Path:
        return self.directory / name

    def run(self, name: str, *arguments: object) -> None:
        words = [*name.partition(" (")[0].split(), *map(str, arguments), "--json"]
        done = CliRunner().invoke(cli, words, env={"GARLICFARM_NODE": str(self.directory)})
        assert done.stdout, f"{name}: {done.stderr}"
        self.printed[name] = done.stdout


def run_node_commands(stage: Stage, node: FarmNode) -> None:
    for name in ("status", "members", "farm", "servers", "log", "transfer", "log-time show", "node list"):
        stage.run(name)
    stage.run("node clients")
    stage.run("submit", "{}")
    for name in ("leave", "withdraw", "log-time back", "keys replace"):
        stage.run(name, "--yes")
    stage.run("confirm-cluster", "00" * 16)
    stage.run("publish cost", "x", "1.5")
    stage.run("servers restore", "1")
    stage.run("node approve", "n", "--yes")
    stage.run("node evict", "n", "--yes")
    stage.run("keys list")
    stage.run("keys install")
    stage.run("keys use", key_id(node.keys.chain.keys[-1].key).hex())
    stage.run("keys remove", key_id(node.keys.chain.keys[0].key).hex(), "--yes")
    stage.run("keys rotate")
    stage.run("keys export", stage["exported.key"])
    stage.run("backup", stage["farm.backup"])


def run_file_commands(stage: Stage) -> None:
    stage.run("backup (of a directory)", "--from", stage["stopped"], stage["other.backup"])
    stage.run("restore", stage["farm.backup"], "--state-dir", stage["new"])
    stage.run("recover (nothing)", "--from", stage["stopped"], "--dry-run")
    stage.run("recover (cut)", "--from", stage["stopped"], "--dry-run", "--cut-after", "4", "--reset", "second")
    stage.run("recover", "--from", stage["stopped"], "--yes")
    stage.run("log verify", stage["stopped"])
    stage.run("keys new-farm", "--expect", "3", "--output", stage["new.key"])
    stage.run("keys new-client", stage["client.key"], "--name", "c")
    stage.run("keys new-destination", stage["master.key"])
    stage.run("keys offline", "--master", stage["master.key"], "--out", stage["signing.key"])
    own, leaf = new_master_key(), new_demo_leaf()
    stage["eep.dat"].write_bytes(own.destination.encoded + bytes(256) + own.private_key.private_bytes_raw())
    stage.run("keys import-destination", stage["eep.dat"], stage["imported.key"])
    stage["node.toml"].write_text(
        'name = "r"\nfarm_key = "farm.key"\nstate_dir = "state"\n[gossip]\nbind = "127.0.0.1:17668"\n'
        'seeds = ["10.0.0.1:7668"]\n[[master]]\nsigning_key = "signing.key"\npublish = "on"\n'
        f'[[leaf]]\ndestination = "{leaf.base64}"\nprobe = "127.0.0.1:8080"\n'
    )
    stage.run("config show", "--config", stage["node.toml"])
    stage.run("config export", "--config", stage["node.toml"], stage["bundle"])
    stage.run("config import", stage["bundle"], stage["second"], "--bind", "127.0.0.1:7668")
    stage.run("doctor", "--config", stage["node.toml"])
    signing_key = new_master_key(demo=True).sign_transient(NOW_S)
    structure = signing_key.sign(NOW_S, (MetaLease(leaf.hash, 10, NOW_S + 900),))
    stage["structure"].write_bytes(encode_structure(structure))
    stage.run("lease-set show", stage["structure"])


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    stage = Stage(tmp_path_factory.mktemp("documents"))
    node = FarmNode()
    node.cluster_id = "c0" * 16
    save_farm_key(stage["farm.key"], new_farm_key(3))
    content = encode_backup(trio.run(read_directory, node_directory(stage["stopped"])).backup)

    async def backup(_: Call[None]) -> Answer:
        return Answer(200, content, "application/octet-stream")

    approved = NodeApproved("n", ID, 4, RetiredIdentity(OTHER_ID, 3))
    more: Handlers = {
        routes.NODES: answering(NODES),
        routes.NODES_APPROVE: answering(approved),
        routes.NODES_EVICT: answering(EVICTED),
        routes.KEYS_REPLACE: answering(KeysReplaced(2, 3, ("a",), ("b",))),
        routes.BACKUP: backup,
    }
    with served(stage["control.sock"], {**node.handlers, **more}):
        run_node_commands(stage, node)
    run_file_commands(stage)
    return stage.printed


@pytest.mark.parametrize("name", RECORDED["commands"])
def test_command_output_keeps_its_keys(name: str, printed: dict[str, str]) -> None:
    match RECORDED["commands"][name]:
        case str(text):
            assert printed[name] == text
        case paths:
            assert key_paths(json.loads(printed[name])) == paths
