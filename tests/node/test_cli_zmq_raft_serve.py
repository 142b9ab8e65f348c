"""`garlicfarm zmq-raft serve`: a peer as a process, what it prints, and how it refuses what cannot be."""

import json
import signal
import subprocess
import sys
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
from tests.node.test_zmq_raft_open_peer import free_peers
from tests.processes import child

WAIT_S = 20


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Result]:
    """Runs the command for peer 1, for options that are refused."""

    def call(*arguments: str) -> Result:
        given = ["zmq-raft", "serve", "--id", "1", "--directory", str(tmp_path / "peer"), *arguments]
        return CliRunner().invoke(cli, given, env={"GARLICFARM_ZMQ_IDENT": "test"})

    return call


def test_a_peer_serves_an_update_and_stops_when_it_is_told_to(tmp_path: Path) -> None:
    """Given a peer alone, then each event is one object on one line, and SIGTERM ends it with 0."""
    (peer,) = free_peers(1)
    command = [sys.executable, "-m", "bridge.cli.main", "zmq-raft"]
    given = ["--id", "1", "--peer", f"1={peer.url}", "--ident", "test", "--directory", str(tmp_path / "peer"), "--json"]
    with child([*command, "serve", *given]) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        facts = {key: first[key] for key in ("schema", "event", "peer", "url", "logEntries")}
        assert facts == {"schema": 1, "event": "serving", "peer": "1", "url": peer.url, "logEntries": 0}
        client = ["update", "hello", "--seed", peer.url, "--ident", "test"]
        done = subprocess.run([*command, *client], capture_output=True, text=True, check=True, timeout=WAIT_S)
        assert done.stdout.startswith("Committed at index 1")
        process.send_signal(signal.SIGTERM)
        told = [json.loads(line) for line in process.communicate(timeout=WAIT_S)[0].splitlines()]
    assert process.returncode == 0
    assert [event["role"] for event in told if event["event"] == "role"][-1] == "leader"
    assert told[-1]["text"] == "peer 1 has stopped"


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
def test_what_cannot_be_is_refused_with_what_to_do(
    arguments: tuple[str, ...], reason: str, serve: Callable[..., Result]
) -> None:
    """Exit code 1, and the reason on stderr."""
    result = serve(*arguments)
    assert result.exit_code == 1
    assert reason in result.stderr


def test_request_ids_are_remembered_for_as_many_hours_as_the_operator_says(
    serve: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[PeerOptions] = []
    monkeypatch.setattr(zmq_raft_serve, "_serve", lambda options, *_: _noted(asked, options))
    for arguments in ((), ("--request-id-ttl", "24")):
        assert serve("--peer", "1=tcp://127.0.0.1:4000", *arguments).exit_code == 0
    assert [options.log.window for options in asked] == [Window(), Window.of_ttl(24 * 60 * 60 * 1000)]


async def _noted(asked: list[PeerOptions], options: PeerOptions) -> None:
    asked.append(options)


def test_beyond_loopback_the_operator_is_warned(serve: Callable[..., Result]) -> None:
    """What --allow-network permits is said each time."""
    result = serve("--peer", "1=tcp://192.0.2.1:4000", "--allow-network")
    assert "Warning: tcp://192.0.2.1:4000 is not on loopback, and this protocol does not authenticate" in result.stderr


def test_each_notice_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """In words that name the peer; alarms go to stderr."""
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
        "the disk is full: the server does not accept entries until space is free. Free some": DiskFull(full=True),
        "the disk has space again": DiskFull(full=False),
        "peer 2 sent an entry that cannot be stored: why": ContentRejected("2", "why"),
    }
    for text, notice in texts.items():
        reporter.notice(notice)
        told = capsys.readouterr()
        assert (told.out + told.err).splitlines() == [text]
        PeerReporter("1", as_json=True).notice(notice)
        assert json.loads(capsys.readouterr().out)["text"] == text
