"""`garlicfarm zmq-raft`: requests to a cluster over loopback, and the output."""

import base64
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from bridge.cli.main import cli
from bridge.cli.zmq_raft import cluster as cluster_commands
from bridge.node.security.key_files import save_curve_key
from bridge.wire.keys.curve_key import new_curve_key, to_z85
from consensus.core.entry_data import configuration_entry
from consensus.core.model import Configuration, Entry, EntryKind, Server
from consensus.protocols.zmq_raft.sockets import (
    CurveServer,
    SocketKind,
    SocketOptions,
    ZapAuthenticator,
    ZmqSocket,
    zmq_context,
)
from consensus.protocols.zmq_raft.wire.codec import encode_broadcast
from consensus.protocols.zmq_raft.wire.messages import (
    ChangeCommitted,
    ChangeRefused,
    ChangeRequest,
    LogInfoReply,
    LogInfoRequest,
    Peer,
    Request,
    StateBroadcast,
    UpdateExpired,
    UpdateRequest,
    UrlReply,
    UrlRequest,
)
from tests.end_to_end import forking
from tests.node.test_cli_terminals import NO_KEY, UNSTYLED, on_a_terminal
from tests.node.zmq_network import IDENT, EntryServer, LoopbackPeer, Respond, state

LEADER = (True, "1")
DEAD = Peer("2", "tcp://127.0.0.1:1")


class Cluster:
    """The leading peer `1` with a real socket in a separate thread; member `2` is dead."""

    def __init__(self, curve: CurveServer | None = None, listed: bytes = b"") -> None:
        self.options = SocketOptions(curve=curve)
        self.listed = listed
        self.log = EntryServer(3)
        self.updates: list[bytes] = []
        self.changes: list[tuple[Peer, ...]] = []
        self.refuses = False
        self.waits = False
        self.urls: list[str] = []
        self.members: tuple[Peer, ...] = ()
        self.peer: LoopbackPeer | None = None

    async def run(self, started: Callable[[Callable[[], None]], None]) -> None:
        """Serve until the stop function that `started` receives is called."""
        with zmq_context() as context:
            keys = ZapAuthenticator(context, lambda key: key == self.listed)
            peer, pub = LoopbackPeer(context, self.options), ZmqSocket(context, SocketKind.PUB)
            self.peer = peer
            self.urls = [peer.url, pub.bind("tcp://127.0.0.1:*")]
            self.members = peer.scripted.members = (Peer("1", peer.url), DEAD)
            peer.scripted.script = self.answer
            token = trio.lowlevel.current_trio_token()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keys.run)
                nursery.start_soon(peer.run)
                nursery.start_soon(pub.run)
                started(lambda: token.run_sync_soon(nursery.cancel_scope.cancel))
                while True:
                    await trio.sleep(0.05)
                    pub.send(
                        encode_broadcast(
                            StateBroadcast(
                                ident=IDENT, term=1, last_applied=self.log.last, entries=(self.log.entries[-1],)
                            )
                        )
                    )

    def answer(self, request: Request, respond: Respond) -> bool:
        """Send the leader's replies."""
        match request:
            case LogInfoRequest(request_id):
                respond(
                    LogInfoReply(
                        request_id=request_id,
                        is_leader=LEADER[0],
                        leader=LEADER[1],
                        term=4,
                        first_index=1,
                        last_applied=2,
                        commit=3,
                        last_index=self.log.last,
                        snapshot_bytes=123,
                        prune_index=0,
                    )
                )
            case UrlRequest(request_id):
                respond(UrlReply(request_id, self.urls[1]))
            case UpdateRequest(request_id, _, data):
                self.updates.append(data)
                if data == b"expired":
                    respond(UpdateExpired(request_id))
                    return True
                return False
            case ChangeRequest(request_id, _, peers):
                assert isinstance(peers, tuple)
                self.changes.append(peers)
                if self.waits:
                    return True
                if self.refuses:
                    respond(ChangeRefused(request_id, "Error", "no change in cluster membership"))
                else:
                    respond(ChangeCommitted(request_id, 9))
            case _:
                return self.log(request, respond)
        return True


@contextmanager
def served(cluster: Cluster) -> Iterator[None]:
    ready = threading.Event()
    stopping: list[Callable[[], None]] = []

    def started(stop: Callable[[], None]) -> None:
        stopping.append(stop)
        ready.set()

    thread = threading.Thread(target=trio.run, args=(cluster.run, started))
    thread.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        stopping[0]()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    found = Cluster()
    with served(found):
        yield found


@pytest.fixture
def zmq_raft(cluster: Cluster) -> Callable[..., Result]:
    def call(*arguments: str, text: str | None = None) -> Result:
        environment = {
            "GARLICFARM_ZMQ_SEEDS": f"tcp://127.0.0.1:1 {cluster.urls[0]}",
            "GARLICFARM_ZMQ_IDENT": "cluster",
        }
        return CliRunner().invoke(cli, ["zmq-raft", *arguments], env=environment, input=text)

    return call


def test_status_shows_peers_with_unresponsive_ones(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    result = zmq_raft("status", "--timeout", "1.5")
    assert result.exit_code == 0, result.output
    headings, one, two = (line.split() for line in result.stdout.splitlines())
    assert headings == ["PEER", "URL", "ROLE", "TERM", "FIRST", "LAST", "COMMITTED", "APPLIED", "SNAPSHOT", "PRUNE"]
    assert one == ["1", cluster.urls[0], "leader", "4", "1", "3", "3", "2", "123", "0"]
    assert two[:4] == ["2", DEAD.url, "no", "answer"]
    document = json.loads(zmq_raft("status", "--timeout", "1.5", "--json").stdout)
    assert (document["schema"], document["leader"]) == (1, "1")
    assert document["peers"][0]["snapshotBytes"] == 123
    assert document["peers"][1] == {"id": "2", "url": DEAD.url} | dict.fromkeys(
        ("role", "term", "firstIndex", "lastIndex", "commitIndex", "appliedIndex", "snapshotBytes", "pruneIndex")
    )


def test_status_at_removed_peer_reports_leader(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    # given a removed peer, which returns the members without a leader
    assert cluster.peer is not None
    cluster.peer.scripted.leader = None
    result = zmq_raft("status", "--timeout", "1.5")
    assert "leader" in result.stdout.splitlines()[1].split()
    assert cluster_commands.NO_LEADER not in result.stderr
    assert json.loads(zmq_raft("status", "--timeout", "1.5", "--json").stdout)["leader"] == "1"


def test_status_fits_80_columns_without_wide(cluster: Cluster) -> None:
    environment = {"GARLICFARM_ZMQ_SEEDS": cluster.urls[0], "GARLICFARM_ZMQ_IDENT": "cluster", "COLUMNS": "80"}
    for wide in (), ("--wide",):
        code, written = on_a_terminal(["zmq-raft", "status", "--timeout", "1.5", *wide], environment, NO_KEY)
        lines = UNSTYLED.sub(b"", written).splitlines()
        assert code == 0, written
        assert lines[0].startswith(b"PEER  URL")
        assert (max(map(len, lines)) <= 80) is not bool(wide)


def test_updates_are_committed_in_order_with_printed_ids(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    lines = zmq_raft("update", "one", "two").stdout.splitlines()
    assert [line.partition(", request id ")[0] for line in lines] == ["Committed at index 1", "Committed at index 2"]
    result = zmq_raft("update", "--json", text="three\n\nfour\r\nfünf")
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == [3, 4, 5]
    assert cluster.updates == [b"one", b"two", b"three", b"four", "fünf".encode()]
    repeated = json.loads(result.stdout.splitlines()[0])
    again = zmq_raft("update", "three", "--request-id", repeated["requestId"], "--json")
    assert json.loads(again.stdout) == repeated


def test_updates_can_be_sent_in_parallel(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    result = zmq_raft("update", "--parallel", "16", text="".join(f"{number}\n" for number in range(100)))
    assert len(result.stdout.splitlines()) == 100
    assert sorted(cluster.updates) == sorted(b"%d" % number for number in range(100))


def test_failed_update_ends_command_with_reason(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    result = zmq_raft("update", "one", "expired", "three")
    assert result.exit_code == 1
    assert "the id is too old or too far in the future, or the peer does not permit the request" in result.stderr
    assert "A farm permits JSON objects of clients with a listed key" in result.stderr
    assert cluster.updates == [b"one", b"expired"]


def test_oversized_line_ends_command(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    result = zmq_raft("update", text="one\n" + "x" * (10 * 1024 * 1024 + 100) + "\nthree\n")
    assert result.exit_code == 1
    assert "an update has 1 to 10485760 bytes" in result.stderr
    assert cluster.updates == [b"one"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["update", "--request-id", "abc", "x"], "'abc' is not a request id: an id has 24 hexadecimal digits"),
        (["update", "--request-id", "00" * 12, "x", "y"], "repeats one update"),
        (["update", "hello", "", "world"], "DATA 2 has 0 bytes; an update has 1 to 10485760. Nothing was sent"),
        (["update", "x", "x" * (10 * 1024 * 1024 + 1)], "DATA 2 has 10485761 bytes"),
        (["status", "--seed", "tcp://127.0.0.1:1"], "no peer returned the configuration within 2 s"),
        (["config", "add", "3"], "'3' does not name a peer: write ID=tcp://IP:PORT"),
        (["config", "remove"], "name the peers to remove: ID"),
        (["config", "remove", "7", "--yes"], "7 is not a member; the members are 1, 2"),
        (["config", "--request-id", "00" * 12], "--request-id repeats a change"),
        (["status", "--seed", "ipc:///tmp/x"], "'ipc:///tmp/x' is not the URL of a peer"),
    ],
)
def test_invalid_options_are_refused_with_reason(
    cluster: Cluster, zmq_raft: Callable[..., Result], arguments: list[str], reason: str
) -> None:
    result = zmq_raft(*arguments)
    assert result.exit_code == 1
    assert reason in result.stderr
    assert cluster.updates == []


def test_log_is_printed_escaped_or_as_exact_json(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    cluster.log.entries += [
        Entry(2, EntryKind.COMMAND, bytes(12) + b"\xff\x1b[2J"),
        configuration_entry(2, Configuration((Server("1", "tcp://10.0.0.1:1"),)), b"r" * 12),
    ]
    result = zmq_raft("log", "--from", "3")
    assert result.stdout.splitlines() == [
        "       3 term 1    state      000000000000000000000003 entry 3",
        "       4 term 2    state      000000000000000000000000 \\xff\\x1b[2J",
        f'       5 term 2    config     {(b"r" * 12).hex()} [["1","tcp://10.0.0.1:1"]]',
    ]
    assert result.stderr == ""
    three, four, five = map(json.loads, zmq_raft("log", "--from", "3", "--json").stdout.splitlines())
    assert three == {"index": 3, "term": 1, "kind": "state", "requestId": f"{3:024x}", "value": "entry 3"}
    assert base64.b64decode(four["base64"]) == b"\xff\x1b[2J"
    assert json.loads(five["value"]) == [["1", "tcp://10.0.0.1:1"]]
    assert zmq_raft("log", "--count", "2").stderr == "More, if there are any: --from 3.\n"
    assert zmq_raft("log", "--from", "9").stderr == "No entry from 9 on.\n"


def test_compacted_log_begins_with_snapshot(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    cluster.log.entries, cluster.log.first, cluster.log.snapshot = [state(6)], 6, b"state of five"
    assert zmq_raft("log").stdout.splitlines() == [
        "       5 term 1    snapshot   of 13 bytes, for all before",
        "       6 term 1    state      000000000000000000000006 entry 6",
    ]
    *parts, entry = map(json.loads, zmq_raft("log", "--json").stdout.splitlines())
    assert b"".join(base64.b64decode(part["base64"]) for part in parts) == b"state of five"
    assert (parts[0]["lastIndex"], parts[0]["totalBytes"], entry["index"]) == (5, 13, 6)


def test_members_are_shown_then_changed(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    one, two = cluster.members
    three = Peer("3", "tcp://127.0.0.1:3")
    shown = zmq_raft("config").stdout.splitlines()
    assert [line.split() for line in shown] == [["PEER", "URL"], ["1", one.url, "leads"], ["2", two.url]]
    assert zmq_raft("config", "add", f"3={three.url}").stdout.startswith("Committed at index 9.\n")
    assert zmq_raft("config", "remove", "2", "--yes").exit_code == 0
    changed = json.loads(zmq_raft("config", "set", f"3={three.url}", "--yes", "--json").stdout)
    assert changed == {"schema": 1, "leader": None, "members": [{"id": "3", "url": three.url}], "index": 9}
    assert cluster.changes == [(one, two, three), (one,), (three,)]
    assert zmq_raft("config", "remove", "2", text="n\n").exit_code == 1
    assert "[y/N]" not in zmq_raft("config", "remove", "7", text="y\n").output
    lost = ("--seed", "tcp://127.0.0.1:1", "--timeout", "0.2")
    assert "[y/N]" not in zmq_raft("config", "set", f"3={three.url}", *lost, text="y\n").output
    cluster.refuses = True
    refused = zmq_raft("config", "add", f"3={three.url}")
    assert "the cluster refuses these members: no change in cluster membership (Error)" in refused.stderr
    assert len(cluster.changes) == 4
    assert cluster.peer is not None
    cluster.peer.scripted.members = (one, two, three)
    same = json.loads(zmq_raft("config", "add", f"3={three.url}", "--json").stdout)
    assert (same["leader"], len(same["members"]), same["index"]) == ("1", 3, None)
    assert zmq_raft("config", "add", f"3={three.url}").stdout.startswith("These were the members already.\n")


def test_add_without_reply_advises_start_of_new_peers(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    cluster.waits = True
    added = zmq_raft("config", "add", "3=tcp://127.0.0.1:3", "--timeout", "1")
    assert added.exit_code == 1
    assert "with the request id" in added.stderr
    assert "Start the new peers" in added.stderr
    removed = zmq_raft("config", "remove", "2", "--yes", "--timeout", "1")
    assert "Start the new peers" not in removed.stderr


def test_unprompted_set_does_not_read_present_members(
    cluster: Cluster, zmq_raft: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def config(*_: object) -> None:
        raise AssertionError("the present members are read")

    monkeypatch.setattr(cluster_commands, "_config", config)
    assert zmq_raft("config", "set", "3=tcp://127.0.0.1:3", "--yes").exit_code == 0
    assert cluster.changes == [(Peer("3", "tcp://127.0.0.1:3"),)]


def test_cluster_with_keys_replies_only_to_listed_key(tmp_path: Path) -> None:
    ours, other, theirs = new_curve_key("ours"), new_curve_key("other"), new_curve_key("theirs")
    save_curve_key(tmp_path / "ours", ours)
    save_curve_key(tmp_path / "other", other)
    cluster = Cluster(CurveServer(theirs.secret), ours.public)

    def config(*arguments: str, timeout_s: str = "0.6") -> Result:
        fixed = ["--seed", cluster.urls[0], "--ident", "cluster", "--timeout", timeout_s]
        return CliRunner().invoke(cli, ["zmq-raft", "config", *fixed, *arguments])

    with served(cluster):
        key, server_key = ["--key", str(tmp_path / "ours")], ["--server-key", to_z85(theirs.public)]
        assert config(*key, *server_key, timeout_s="60").exit_code == 0
        assert "no answer" in config("--key", str(tmp_path / "other"), *server_key).stderr
        assert "are --ident, --key and --server-key right?" in config().stderr
        assert "belong together" in config(*key).stderr
        shown = f"theirs {to_z85(theirs.public)}"
        assert "prints after the name" in config(*key, "--server-key", shown).stderr
        assert "none does not exist" in config("--key", str(tmp_path / "none"), *server_key).stderr


def test_missing_seed_is_reported_with_remedy() -> None:
    result = CliRunner().invoke(cli, ["zmq-raft", "status"], env={"GARLICFARM_ZMQ_SEEDS": ""})
    assert result.exit_code == 1
    assert result.stderr == (
        "garlicfarm: give the address of a peer of the cluster: --seed tcp://HOST:PORT, or GARLICFARM_ZMQ_SEEDS\n"
    )


def test_unresponsive_cluster_is_named_with_hint() -> None:
    result = CliRunner().invoke(cli, ["zmq-raft", "update", "x", "--seed", "tcp://127.0.0.1:1", "--timeout", "0.2"])
    assert result.exit_code == 1
    assert "tcp://127.0.0.1:1: no answer within 500 ms" in result.stderr
    assert "repeat it with the request id" in result.stderr
    assert "are --ident, --key and --server-key right?" in result.stderr
    shown = CliRunner().invoke(cli, ["zmq-raft", "config", "--seed", "tcp://127.0.0.1:1", "--timeout", "0.2"])
    assert "are --ident, --key and --server-key right?" in shown.stderr


def test_cluster_without_broadcast_cannot_be_followed(cluster: Cluster, zmq_raft: Callable[..., Result]) -> None:
    cluster.urls[1] = "ipc:///tmp/none"
    result = zmq_raft("follow", "--timeout", "3")
    assert result.exit_code == 1
    assert f"{cluster.urls[0]}: does not return the URL of a broadcast" in result.stderr
    assert "--ident" not in result.stderr


def test_missing_extra_is_reported_with_remedy() -> None:
    program = (
        "import sys; sys.modules['zmq'] = None\n"
        "from bridge.cli.main import main\n"
        "for option in ('--help', '--seed=tcp://127.0.0.1:1'):\n"
        "    sys.argv[1:] = ['zmq-raft', 'status', option]\n"
        "    try: main()\n"
        "    except SystemExit as end: print(end.code)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-2:] == ["0", "1"]
    assert result.stderr.startswith("garlicfarm: ØMQ Raft needs the package pyzmq; install it with: pip")


def test_follow_prints_committed_entries_until_interrupted(cluster: Cluster) -> None:
    arguments = ["zmq-raft", "follow", "--from", "2", "--seed", cluster.urls[0], "--ident", "cluster"]
    with forking.child(arguments) as (process, output, _):
        lines = [output.readline() for _ in range(2)]
        cluster.log.append()
        lines.append(output.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert output.read() == ""
    assert [line.split()[-1] for line in lines] == ["2", "3", "4"]
