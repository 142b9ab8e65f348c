"""`garlicfarm kraft`: refusals, advice and output of its commands, and servers of a quorum as processes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio
from click.testing import CliRunner
from msgspec.structs import replace

from bridge.api.cluster_outputs import KraftRecordView
from bridge.cli.kraft import describe as describe_command
from bridge.cli.kraft import log as log_command
from bridge.cli.kraft import serve as serve_command
from bridge.cli.kraft import voters as voters_command
from bridge.cli.kraft.log import CONTROL_NAMES
from bridge.cli.kraft.serve import VoterArguments, VoterReporter
from bridge.cli.main import cli
from consensus import ConfigurationChanged, ContentRejected, DiskFull, Notice, ReplicaKey, Role, RoleChanged, Server
from consensus.core.model import Configuration
from consensus.protocols.kafka import open_connection, uuid_of_text
from consensus.protocols.kraft import (
    ChangeAnswer,
    Endpoint,
    LogRecord,
    QuorumClient,
    QuorumDescription,
    QuorumReplica,
    VoterError,
    open_voter,
)
from tests.node.kraft_processes import Files, kraft
from tests.node.test_kafka_documents import PATIENT, listed_apis
from tests.node.test_kraft_voter import LOOPBACK, batch, formatted, opened


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Return settings of three servers, without directories."""
    return Files(tmp_path)


FORMAT = ("format", "-c")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "name the cluster"),
        (("-t", "x", "--random-cluster-id"), "name the cluster"),
        (("-t", "x", "-s"), "the cluster id cannot be used: 'x' is not a UUID"),
        (("--random-cluster-id",), "--standalone"),
        (("--random-cluster-id", "-s", "-N"), "exclude each other"),
        (("--random-cluster-id", "-I", "1@a:1"), "write it as id@host:port:directory-id"),
        (("--random-cluster-id", "-I", "9@a:1:AAAAAAAAAAAAAAAAAAAAAQ"), "node.id 1 is not among the initial"),
        (("--random-cluster-id", "-s", "-S", "PLAIN=[name=a,password=b]"), "user a has the mechanism 'PLAIN'"),
        (("--random-cluster-id", "-s", "--set", "num.partitions=1"), "num.partitions is not a setting of this server"),
        (("--random-cluster-id", "-s", "--set", "x"), "--set option 1 is not a setting: write it as name=value"),
        (("--random-cluster-id", "-s", "--set", "node.id=x"), "node.id is 'x': put a whole number there"),
        (("--random-cluster-id", "-s", "--set", "node.id=2147483648"), "the maximum is 2147483647"),
        (("--random-cluster-id", "-I", "2147483648@a:1:AAAAAAAAAAAAAAAAAAAAAQ"), "the maximum id is 2147483647"),
        (
            ("--random-cluster-id", "--set", "controller.quorum.voters=3000000000@127.0.0.1:9093"),
            "the maximum id is 2147483647",
        ),
        (("--random-cluster-id", "-s", "--set", "controller.listener.names=X"), "controller.listener.names is X"),
        (
            ("--random-cluster-id", "-s", "--set", "listeners=CONTROLLER://:1"),
            "put its host and port into listeners or advertised",
        ),
        (("--random-cluster-id", "-s", "--set", "listeners=CONTROLLER://0.0.0.0:1"), "find this one at 0.0.0.0:1"),
        (("--random-cluster-id", "-s", "--set", "listeners=CONTROLLER://127.0.0.1:0"), "find this one at 127.0.0.1:0"),
        (("--random-cluster-id", "-I", "1@0.0.0.0:1:AAAAAAAAAAAAAAAAAAAAAQ"), "which is not the address of one server"),
        (("--random-cluster-id", "-I", "1@a:0:AAAAAAAAAAAAAAAAAAAAAQ"), "which is not the address of one server"),
        (
            ("--random-cluster-id", "-s", "--set", "controller.quorum.bootstrap.servers=[::]:1"),
            "'[::]:1', which is not the address of one server",
        ),
        (("--random-cluster-id", "-s", "--set", "listeners=A://a:1,B://a:2"), "listeners names several"),
    ],
)
def test_invalid_format_options_do_not_make_directory(arguments: tuple[str, ...], reason: str, files: Files) -> None:
    """The exit code is 1, the reason has Kafka's names, and no file is made."""
    result = kraft(*FORMAT, files.config(1), *arguments)
    assert result.exit_code == 1
    assert reason in result.stderr
    assert not (files.path / "1").exists()


def test_directory_is_formatted_once(files: Files) -> None:
    """A second format is refused; with --ignore-formatted it does not change the directory."""
    first = kraft(*FORMAT, files.config(1), "--random-cluster-id", "-s", "--json")
    assert first.exit_code == 0
    output = json.loads(first.stdout)
    again = kraft(*FORMAT, files.config(1), "-t", output["clusterId"], "-s")
    assert again.exit_code == 1
    assert "is formatted already: choose another, or start the server" in again.stderr
    ignored = kraft(*FORMAT, files.config(1), "-t", output["clusterId"], "-s", "-g", "--json")
    assert json.loads(ignored.stdout) == output
    assert "nothing was changed" in ignored.stderr


def test_random_uuid_has_format_of_kafka() -> None:
    assert isinstance(uuid_of_text(kraft("random-uuid").stdout.strip()), UUID)


@pytest.fixture
def served(files: Files, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, VoterArguments | None]]:
    """Format server 1, and return a caller of `serve` that returns stderr and the parsed options, without a server."""
    parsed: list[VoterArguments] = []

    async def record(arguments: VoterArguments, _reporter: VoterReporter, _deadline: object) -> None:
        parsed.append(arguments)

    monkeypatch.setattr(serve_command, "_serve", record)
    files.format(1, "-S", "SCRAM-SHA-512=[name=q,password=p]")

    def call(*arguments: str) -> tuple[str, VoterArguments | None]:
        result = kraft("serve", "-c", files.config(1), *arguments)
        assert result.exit_code == (0 if parsed else 1)
        return result.stderr, parsed.pop() if parsed else None

    return call


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--set", "log.dirs=/nowhere"), "'/nowhere' is not formatted: run `garlicfarm kraft format` first"),
        (("--set", "node.id=2"), "belongs to node.id 1"),
        (("--set", "num.io.threads=8", "--set", "num.network.threads=3"), "num.io.threads, num.network.threads are no"),
        (("--set", "ssl.keystore.location=x"), "PLAINTEXT ignores ssl.keystore.location"),
        (("--set", "process.roles=broker,controller"), "process.roles can be controller only"),
        (("--set", "listeners=CONTROLLER://192.0.2.1:9093"), "192.0.2.1 is not on loopback"),
        (("--metrics", "9100"), "--metrics has '9100': write each address as host:port"),
    ],
)
def test_invalid_server_options_are_refused_with_remedy(
    arguments: tuple[str, ...], reason: str, served: Callable[..., tuple[str, VoterArguments | None]]
) -> None:
    """The exit code is 1, and no port or file was opened."""
    errors, parsed = served(*arguments)
    assert reason in errors
    assert parsed is None


def test_kafka_metadata_accepts_records_only_with_produce_on(
    served: Callable[..., tuple[str, VoterArguments | None]],
) -> None:
    """`--kafka-metadata` alone rejects records; with `--produce on` it accepts metadata."""
    seen = []
    for arguments in ((), ("--kafka-metadata",), ("--kafka-metadata", "--produce", "on"), ("--produce", "off")):
        _, parsed = served(*arguments)
        assert parsed is not None
        seen.append((parsed.options.takes_records, parsed.options.is_metadata))
    assert seen == [(True, False), (False, True), (True, True), (False, False)]


def test_served_apis_match_page(served: Callable[..., tuple[str, VoterArguments | None]]) -> None:
    _, parsed = served()
    assert parsed is not None

    async def versions() -> dict[int, tuple[int, int]]:
        async with (
            open_voter(parsed.settings, parsed.options) as voter,
            open_connection(LOOPBACK, voter.listener.port, PATIENT) as connection,
        ):
            return dict(connection.versions)

    assert trio.run(versions) == listed_apis("kraft.md")


async def test_metrics_at_invalid_host_name_end_with_reason() -> None:
    voter: Any = SimpleNamespace(figures=None)
    async with trio.open_nursery() as nursery:
        with pytest.raises(VoterError, match=r"cannot listen for metrics on a\.\.b:1: .* Choose another --metrics"):
            await serve_command._start_metrics(nursery, ("a..b", 1), voter)


def test_open_listener_on_network_needs_permission(served: Callable[..., tuple[str, VoterArguments | None]]) -> None:
    """With --allow-network it is permitted with a warning; a listener with login does not need a permission."""
    network = ("--set", "listeners=CONTROLLER://192.0.2.1:9093")
    errors, parsed = served(*network, "--allow-network")
    assert errors.startswith("Warning: 192.0.2.1 is not on loopback")
    assert parsed is not None
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="q" password="p";'
    errors, parsed = served(
        *network,
        *("--set", "listener.security.protocol.map=CONTROLLER:SASL_PLAINTEXT"),
        *("--set", "sasl.mechanism.controller.protocol=SCRAM-SHA-512"),
        *("--set", f"sasl.jaas.config={login}"),
    )
    assert errors == ""
    assert parsed is not None


def test_server_without_extra_is_refused_with_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "kio", None)
    result = CliRunner().invoke(cli, ["kraft", "serve", "-c", str(tmp_path / "none.properties")])
    assert result.exit_code == 1
    assert result.stderr.startswith("garlicfarm: KRaft needs the packages kio and crc32c; install them with: pip")


def test_notice_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The text names the server. Alarms go to stderr, and an unchanged configuration is not repeated."""
    one, two = Server(ReplicaKey(1), "127.0.0.1:1"), Server(ReplicaKey(2), "127.0.0.1:2")
    changed = ConfigurationChanged(Configuration((one, two)))
    texts: dict[str, Notice] = {
        "server 1 leads in epoch 3": RoleChanged(Role.LEADER, 3, ReplicaKey(1)),
        "server 2 leads in epoch 3": RoleChanged(Role.FOLLOWER, 3, ReplicaKey(2)),
        "no leader is known in epoch 3": RoleChanged(Role.FOLLOWER, 3, None),
        "server 1 is a candidate in epoch 3": RoleChanged(Role.CANDIDATE, 3, None),
        "voters: 1 at 127.0.0.1:1, 2 at 127.0.0.1:2": ConfigurationChanged(Configuration((two, one))),
        "voters: 2 at 127.0.0.1:2; server 1 is an observer": ConfigurationChanged(Configuration((two,))),
        "the disk is full: the server does not accept entries until there is space; delete some files": DiskFull(
            full=True
        ),
        "the disk has space again": DiskFull(full=False),
        "server 2 sent an entry that cannot be stored: why": ContentRejected(ReplicaKey(2), "why"),
    }
    reporter = VoterReporter(1, as_json=False)
    for text, notice in texts.items():
        reporter.notice(notice)
        output = capsys.readouterr()
        assert (output.out + output.err).splitlines() == [text]
        VoterReporter(1, as_json=True).notice(notice)
        assert json.loads(capsys.readouterr().out)["text"] == text
    reporter.notice(changed)
    reporter.notice(changed)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_summary_equals_summary_of_kafkas_tool() -> None:
    """The slowest voter determines the lag. Observers are ignored, and a leader alone has lag 0."""
    leader = QuorumReplica(1, UUID(int=0), 100, 5_000, 5_000)
    behind = QuorumReplica(2, UUID(int=7), 90, 4_900, 4_300)
    unfetched = QuorumReplica(3, UUID(int=8), -1, -1, -1)
    listeners = {2: (Endpoint("CONTROLLER", "::1", 9093),)}

    def summary(*voters: QuorumReplica) -> dict[str, str]:
        state = QuorumDescription("AAAAAAAAAAAAAAAAAAAAAQ", 1, 4, 95, voters, (unfetched,), listeners)
        return dict(describe_command._status(state))

    found = summary(leader, behind)
    assert (found["MaxFollowerLag"], found["MaxFollowerLagTimeMs"]) == ("10", "700")
    assert found["CurrentVoters"] == (
        '[{"id": 1}, {"id": 2, "directoryId": "AAAAAAAAAAAAAAAAAAAABw", "endpoints": ["CONTROLLER://[::1]:9093"]}]'
    )
    assert found["CurrentObservers"] == '[{"id": 3, "directoryId": "AAAAAAAAAAAAAAAAAAAACA"}]'
    assert summary(leader)["MaxFollowerLagTimeMs"] == "0"
    assert [summary(leader, unfetched)[name] for name in ("MaxFollowerLag", "MaxFollowerLagTimeMs")] == ["101", "-1"]


def test_lag_in_reply_of_follower_is_unknown() -> None:
    """A voter that does not lead reports the end of its log also for the leader, and -1 for the others."""
    voters = tuple(QuorumReplica(each, UUID(int=0), end, -1, -1) for each, end in ((1, 1937), (2, 1937), (3, -1)))
    state = QuorumDescription("AAAAAAAAAAAAAAAAAAAAAQ", 1, 4, 1937, voters, (), {})
    assert dict(describe_command._status(state))["MaxFollowerLag"] == "-1"
    output = describe_command._output(state)
    assert (output.max_follower_lag, [each.lag for each in output.replicas]) == (None, [None, None, None])
    assert [describe_command._row(each, 0)[3:6] for each in output.replicas] == [("-1", "-1", "-1")] * 3


@pytest.mark.parametrize("command", ["describe", "log", "remove-voter --voter-id 1 --yes"])
def test_unreachable_quorum_is_named(command: str, files: Files) -> None:
    """Three cases: no address, an invalid address, and an address without a listener."""
    for arguments, reason in (
        ((), "give the address of a server of the quorum"),
        (("--bootstrap-controller", "x"), "--bootstrap-controller has 'x'"),
        (("--bootstrap-controller", files.address(1), "--timeout", "0.1"), f"no connection to {files.address(1)}"),
    ):
        result = kraft(*command.split(), *arguments)
        assert result.exit_code == 1
        assert reason in result.stderr


@pytest.mark.parametrize(
    ("named", "exit_code", "output"),
    [
        ("--voter-id 3", 0, "It was so already: the voters are 1, 2."),
        ("--voter-id 3 --voter-directory-id AAAAAAAAAAAAAAAAAAAAAw", 0, "It was so already: the voters are 1, 2."),
        ("--voter-id 9", 1, "server 9 is not in the voter set: the voters are 1, 2. Name one of them"),
        ("--voter-id 3 --voter-directory-id AAAAAAAAAAAAAAAAAAAABA", 1, "server 3 is not in the voter set"),
        (
            "--voter-id 2 --voter-directory-id AAAAAAAAAAAAAAAAAAAABA",
            1,
            "voter 2 has another directory, AAAAAAAAAAAAAAAAAAAAAg: leave out --voter-directory-id to remove it",
        ),
    ],
)
def test_remove_voter_checks_id_with_directory(
    named: str, exit_code: int, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, removed = (QuorumReplica(number, UUID(int=number), 5, 1, 1) for number in (1, 2, 3))
    state = QuorumDescription("AAAAAAAAAAAAAAAAAAAAAQ", 1, 4, 5, (one, two), (removed,), {})

    async def describe(_: QuorumClient) -> QuorumDescription:
        return state

    monkeypatch.setattr(QuorumClient, "describe", describe)
    command = ("remove-voter", "--bootstrap-controller", "127.0.0.1:1", *named.split())
    result = kraft(*command, "--yes")
    assert (result.exit_code, output in result.output) == (exit_code, True), result.output
    prompted = kraft(*command)
    assert ("Remove voter" in prompted.output, output in prompted.output) == (exit_code == 0, exit_code == 1)


@pytest.mark.parametrize(
    ("change", "voters"),
    [
        (("add-voter", "--voter-directory-id", "AAAAAAAAAAAAAAAAAAAAAw", "--listener", "CONTROLLER://a:1"), "1, 2, 3"),
        (("remove-voter", "--yes"), "1, 2"),
    ],
    ids=["added", "removed"],
)
def test_committed_change_of_voters_is_printed(
    change: tuple[str, ...], voters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The description contains the change only after the leader's reply.

    A repeated command reports an unchanged quorum.
    """
    one, two, three = (QuorumReplica(number, UUID(int=number), 5, 1, 1) for number in (1, 2, 3))
    without = QuorumDescription("AAAAAAAAAAAAAAAAAAAAAQ", 1, 4, 5, (one, two), (three,), {})
    with_third = replace(without, voters=(one, two, three), observers=())
    before, after = (without, with_third) if change[0] == "add-voter" else (with_third, without)
    requested: list[object] = []
    described: list[QuorumDescription] = []

    async def describe(_: QuorumClient) -> QuorumDescription:
        described.append(after if requested and before in described[1:] else before)
        return described[-1]

    async def request(_: QuorumClient, *arguments: object) -> ChangeAnswer:
        requested.append(arguments)
        return ChangeAnswer(0, "")

    monkeypatch.setattr(QuorumClient, "describe", describe)
    monkeypatch.setattr(QuorumClient, change[0].replace("-", "_"), request)
    monkeypatch.setattr(voters_command, "_LOOK_AGAIN_S", 0)
    arguments = (*change, "--voter-id", "3", "--bootstrap-controller", "127.0.0.1:1")
    assert kraft(*arguments).stdout == f"Committed: the voters are {voters}.\n"
    assert kraft(*arguments).stdout == f"It was so already: the voters are {voters}.\n"
    listeners = [(Endpoint("CONTROLLER", "a", 1),)] if change[0] == "add-voter" else []
    assert requested == [("AAAAAAAAAAAAAAAAAAAAAQ", 3, UUID(int=3), *listeners, 10_000)]


def stored_log(path: Path) -> Path:
    """Return the directory of a stopped server, whose last two records were appended separately by a client."""

    async def scenario() -> None:
        settings = formatted(path, 1, dynamic=True, initial=1)
        async with opened(settings) as quorum:
            topic = (await quorum.leader()).topic
            for value in (b"the value before", b"a value"):
                await topic.append(batch(value), None)

    trio.run(scenario)
    return path / "1"


def test_stored_log_is_printed_with_notes(tmp_path: Path) -> None:
    """The log is printed completely or from an offset; an offset after the end gives a note."""
    directory = str(stored_log(tmp_path))
    printed = kraft("log", "--directory", directory)
    assert (printed.exit_code, printed.stderr) == (0, f"{log_command.STORED}\n")
    head, *rows = printed.stdout.splitlines()
    assert [row.split()[0] for row in (head, *rows)] == ["OFFSET", "0", "1", "2", "3", "4"]
    assert rows[0].endswith("LeaderChange   leader 1, granted by 1 of 1")
    assert rows[-1].endswith("1970-01-01 00:00:01.000  Data           a value")
    (one,) = map(json.loads, kraft("log", "--directory", directory, "--from", "4", "--json").stdout.splitlines())
    assert (one["offset"], one["value"]) == (4, "a value")
    assert "No record from offset 5 on." in kraft("log", "--directory", directory, "--from", "5").stderr


def test_damaged_log_is_printed_up_to_damage_with_reason(tmp_path: Path) -> None:
    directory = stored_log(tmp_path)
    (segment,) = directory.rglob("*.segment")
    segment.write_bytes(segment.read_bytes().replace(b"a value", b"A VALUE"))
    printed = kraft("log", "--directory", str(directory))
    assert printed.exit_code == 1
    assert [line.split()[0] for line in printed.stdout.splitlines()] == ["OFFSET", "0", "1", "2", "3"]
    assert printed.stderr.startswith(f"garlicfarm: the log in '{directory}' is damaged: ")


@pytest.mark.parametrize("option", ["--watch", "--bootstrap-server a:1", "--timeout 3"])
def test_server_option_with_directory_is_refused(option: str, tmp_path: Path) -> None:
    refused = kraft("log", "--directory", str(tmp_path), *option.split())
    assert refused.exit_code == 2
    assert f"--directory reads files, not a server: leave out {option.split(maxsplit=1)[0]}" in refused.stderr


def test_record_without_time_shows_dash(capsys: pytest.CaptureFixture[str]) -> None:
    """A farm without the log time of an entry sends -1."""
    printer = log_command.Printer(None, as_json=False)
    assert not printer.take(LogRecord(7, 1, -1, None, None, b"x", ()))
    assert capsys.readouterr().out.splitlines()[1].split() == ["7", "1", "-", "Data", "x"]


def test_serve_does_not_import_farm_modules() -> None:
    """Prometheus is imported only with --metrics, and kio when the server runs."""
    program = (
        "import sys; import bridge.cli.kraft.serve; "
        "print(sorted(name for name in sys.modules if name.startswith(('bridge.node', 'bridge.wire', 'gossip')))); "
        "print(sorted({'h11', 'kio', 'prometheus_client'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n[]\n"


def test_record_in_json_has_text_or_base64() -> None:
    """A missing key becomes null, and bytes that are not text become base64."""
    view = KraftRecordView.of(1, 2, 3, "Data", (None, b"\xff"), {"h": b"x"})
    assert (view.key, view.value_base64, view.headers) == (None, b"\xff", {"h": b"x"})
    assert max(map(len, CONTROL_NAMES.values())) <= 13, "the column is as wide as the longest name"
