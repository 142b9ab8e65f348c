"""`garlicfarm zmq-raft serve`: a peer as a process, its output, and its refusals of invalid options."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli.main import cli
from bridge.cli.zmq_raft import serve as zmq_raft_serve
from bridge.cli.zmq_raft.serve import PeerReporter
from consensus import ConfigurationChanged, ContentRejected, DiskFull, Role, RoleChanged, Server
from consensus.core.model import Configuration
from consensus.protocols.zmq_raft import Compacted, CompactionFailed, PeerNotice, PeerOptions, Window
from tests.end_to_end import forking
from tests.node.test_zmq_raft_open_peer import free_peers

WAIT_S = 60


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Result]:
    """Return a caller of the command for peer 1, for refused options."""

    def call(*arguments: str) -> Result:
        given = ["zmq-raft", "serve", "--id", "1", "--directory", str(tmp_path / "peer"), *arguments]
        return CliRunner().invoke(cli, given, env={"GARLICFARM_ZMQ_IDENT": "test"})

    return call


def test_peer_serves_update_until_sigterm(tmp_path: Path) -> None:
    """A single peer prints each event as one object per line, and SIGTERM ends it with 0."""
    (peer,) = free_peers(1)
    given = ["--id", "1", "--peer", f"1={peer.url}", "--ident", "test", "--directory", str(tmp_path / "peer"), "--json"]
    with forking.child(["zmq-raft", "serve", *given]) as (process, output, _):
        first = json.loads(output.readline())
        facts = {key: first[key] for key in ("schema", "event", "peer", "url", "logEntries")}
        assert facts == {"schema": 1, "event": "serving", "peer": "1", "url": peer.url, "logEntries": 0}
        assert json.loads(output.readline())["members"] == [{"id": "1", "url": peer.url}]
        client = ["zmq-raft", "update", "hello", "--seed", peer.url, "--ident", "test"]
        assert CliRunner().invoke(cli, client).stdout.startswith("Committed at index 1")
        process.send_signal(signal.SIGTERM)
        events = [json.loads(line) for line in output]
        assert process.wait(WAIT_S) == 0
    assert [event["role"] for event in events if event["event"] == "role"][-1] == "leader"
    assert events[-1]["text"] == "peer 1 has stopped"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--peer", "1=4000"), "'1=4000' does not name a peer: write ID=tcp://IP:PORT"),
        (("--peer", "1=tcp://192.0.2.1:4000"), "tcp://192.0.2.1:4000 is not on loopback"),
        (("--peer", "1=tcp://127.0.0.1:4000", "--broadcast", "tcp://*:4001"), "tcp://*:4001 is not on loopback"),
        (("--peer", "1=tcp://[::1]:4000", "--bind", "tcp://0.0.0.0:4000"), "tcp://0.0.0.0:4000 is not on loopback"),
        (("--peer", "1=tcp://localhost:4000"), "tcp://localhost:4000 does not name an IP address"),
        (("--peer", "2=tcp://127.0.0.1:4000"), "1 is not among the peers"),
        (("--peer", "1=tcp://127.0.0.1:4000", "--election-timeout", "200"), "'200' is not an election timeout"),
        (("--peer", "1=tcp://127.0.0.1:4000", "--election-timeout", "300-200"), "an election timeout of 300 to 200 ms"),
        (("--peer", "1=tcp://192.0.2.1:4000", "--allow-network"), "That address does not belong to this machine"),
    ],
)
def test_invalid_options_are_refused_with_remedy(
    arguments: tuple[str, ...], reason: str, serve: Callable[..., Result]
) -> None:
    """Exit code 1, and the reason on stderr."""
    result = serve(*arguments)
    assert result.exit_code == 1
    assert reason in result.stderr


def test_request_ids_are_stored_for_configured_hours(
    serve: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[PeerOptions] = []
    monkeypatch.setattr(zmq_raft_serve, "_serve", lambda options, *_: _record(recorded, options))
    for arguments in ((), ("--request-id-ttl", "24")):
        assert serve("--peer", "1=tcp://127.0.0.1:4000", *arguments).exit_code == 0
    assert [options.log.window for options in recorded] == [Window(), Window.of_ttl(24 * 60 * 60 * 1000)]


async def _record(recorded: list[PeerOptions], options: PeerOptions) -> None:
    recorded.append(options)


def test_address_outside_loopback_prints_warning(serve: Callable[..., Result]) -> None:
    """--allow-network prints its warning at each start."""
    result = serve("--peer", "1=tcp://192.0.2.1:4000", "--allow-network")
    assert "Warning: tcp://192.0.2.1:4000 is not on loopback, and this protocol does not authenticate" in result.stderr


def test_notice_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The text names the peer; alarms go to stderr."""
    one, two = Server("1", "tcp://127.0.0.1:1"), Server("2", "tcp://127.0.0.1:2")
    reporter = PeerReporter("1", as_json=False)
    texts: dict[str, PeerNotice] = {
        "peer 1 leads in term 3": RoleChanged(Role.LEADER, 3, "1"),
        "peer 2 leads in term 3": RoleChanged(Role.FOLLOWER, 3, "2"),
        "no leader is known in term 3": RoleChanged(Role.FOLLOWER, 3, None),
        "peer 1 is a candidate in term 3": RoleChanged(Role.CANDIDATE, 3, None),
        "members while they change: 1=tcp://127.0.0.1:1, 2=tcp://127.0.0.1:2": ConfigurationChanged(
            Configuration((one,), (one, two))
        ),
        "members: 1=tcp://127.0.0.1:1; about to join: 2=tcp://127.0.0.1:2": ConfigurationChanged(
            Configuration((one,)), (two,)
        ),
        "members: 2=tcp://127.0.0.1:2; peer 1 is not among them": ConfigurationChanged(Configuration((two,))),
        "compacted the log up to entry 9; the snapshot has 5 bytes": Compacted(9, 5),
        "the log is not compacted: why. It stays as it is, and this is tried again": CompactionFailed("why"),
        "the disk is full: the server does not accept entries until there is space; delete some files": DiskFull(
            full=True
        ),
        "the disk has space again": DiskFull(full=False),
        "peer 2 sent an entry that cannot be stored: why": ContentRejected("2", "why"),
    }
    for text, notice in texts.items():
        reporter.notice(notice)
        output = capsys.readouterr()
        assert (output.out + output.err).splitlines() == [text]
        PeerReporter("1", as_json=True).notice(notice)
        assert json.loads(capsys.readouterr().out)["text"] == text
