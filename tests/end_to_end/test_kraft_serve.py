"""`garlicfarm kraft serve` as three processes: stock clients write and read while servers are killed and changed."""

import gc
import json
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.node.certificates import Authority
from tests.node.kraft_processes import LOOPBACK, WAIT_S, Files, ServeProcess, kraft, served
from tests.processes import free_ports

kafka = pytest.importorskip("kafka", reason="kafka-python is in the extra interop-kafka")
pytestmark = [
    # kafka-python leaves sockets of killed servers to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
]

TOPIC = "__cluster_metadata"
RECORDS = 400
KILL_AT = 100
ELECTED_S = 20.0
"""Time for two servers to elect and commit: ten fetch timeouts, on a machine with other work."""
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}";'


class Quorum:
    """Three running servers."""

    def __init__(self, files: Files, stack: ExitStack) -> None:
        self.files = files
        self.metrics = dict(zip((1, 2, 3, 4), free_ports(4), strict=True))
        self.running: dict[int, ServeProcess] = {}
        self._stack = stack

    def start(self, node_id: int, *arguments: str) -> ServeProcess:
        """Start a server, and wait until it serves."""
        address = f"{LOOPBACK}:{self.metrics[node_id]}"
        server = self._stack.enter_context(served(self.files, node_id, "--metrics", address, *arguments))
        server.event("serving")
        self.running[node_id] = server
        return server

    def ask(self, *arguments: str) -> str:
        """Run a command about the quorum; return its output."""
        result = kraft(*arguments, "--bootstrap-controller", self.files.controllers, "--timeout", "60")
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def leader(self) -> int:
        """Return the node.id of the leader; wait for an election if necessary."""
        return int(json.loads(self.ask("describe", "--json"))["leaderId"])

    def replace(self, node_id: int, settings: Mapping[str, str]) -> ServeProcess:
        """Stop a server, write its settings, and start it again."""
        self.running.pop(node_id).end()
        self.files.write(node_id, settings)
        return self.start(node_id)

    def recorded(self, address: str) -> bool:
        """Return True if the voters' record of the leader has this address."""
        return f'"CONTROLLER://{address}"' in self.ask("describe")

    def wait_recorded(self, address: str) -> None:
        """Wait until the voters' record has this address."""
        deadline = time.monotonic() + WAIT_S
        while not self.recorded(address):
            assert time.monotonic() < deadline, self.ask("describe")
            time.sleep(0.1)

    def lose(self, leader: int) -> None:
        """Kill the leader, and wait until one of the other two servers leads and has committed a record.

        A server's metrics have a separate address, so a wrong address of the server does not matter here.
        """
        committed = self.figures(leader)["kafka_raft_high_watermark"]
        self.running.pop(leader).end(signal.SIGKILL)
        began = time.monotonic()
        while not self._agree_beyond(committed):
            assert time.monotonic() < began + ELECTED_S, {each: self.figures(each) for each in self.running}
            time.sleep(0.1)

    def _agree_beyond(self, committed: float) -> bool:
        found = [self.figures(node_id) for node_id in self.running]
        leaders = {each["kafka_raft_current_leader"] for each in found}
        return len(leaders) == 1 and leaders <= self.running.keys() and _all_beyond(found, committed)

    def wait_until(self, condition: Callable[[dict[int, dict[str, Any]]], bool]) -> None:
        """Wait until `condition` is true for the rows of the replicas, by id."""
        deadline = time.monotonic() + WAIT_S
        while not condition(rows := {row["id"]: row for row in json.loads(self.ask("describe", "--json"))["replicas"]}):
            assert time.monotonic() < deadline, rows
            time.sleep(0.1)

    def figures(self, node_id: int) -> dict[str, float]:
        """Return the metrics of a server."""
        connection = HTTPConnection(LOOPBACK, self.metrics[node_id], timeout=WAIT_S)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def settled(self) -> tuple[dict[str, Any], list[dict[str, float]]]:
        """Return the state of the quorum and the metrics of its replicas, when all know the same committed records.

        A follower receives the high watermark with a later reply than the records.
        """
        deadline = time.monotonic() + WAIT_S
        while True:
            state = json.loads(self.ask("describe", "--json"))
            found = [self.figures(row["id"]) for row in state["replicas"]]
            if {each["kafka_raft_high_watermark"] for each in found} == {state["highWatermark"]}:
                return state, found
            assert time.monotonic() < deadline, found


def _all_beyond(found: list[dict[str, float]], committed: float) -> bool:
    return all(each["kafka_raft_high_watermark"] > committed for each in found)


@pytest.fixture(autouse=True)
def _collect_garbage() -> Iterator[None]:
    """Collect the sockets of a client here: the next test does not expect their warnings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextmanager
def started(path: Path) -> Iterator[Quorum]:
    """Start three servers, and wait for a leader."""
    files = Files(path, 4)
    with ExitStack() as stack:
        found = Quorum(files, stack)
        for node_id in (1, 2, 3):
            files.format(node_id)
            found.start(node_id)
        found.leader()
        yield found


@pytest.fixture
def own_quorum(tmp_path: Path) -> Iterator[Quorum]:
    with started(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def shared_quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quorum]:
    with started(tmp_path_factory.mktemp("quorum")) as found:
        yield found


@pytest.fixture
def quorum(shared_quorum: Quorum) -> Quorum:
    """Return the shared quorum. Servers ended by an earlier test are started again."""
    for node_id in {1, 2, 3} - shared_quorum.running.keys():
        shared_quorum.start(node_id)
    shared_quorum.leader()
    return shared_quorum


def producer(quorum: Quorum) -> Any:
    """Return an idempotent producer: each record is written once, in order."""
    return kafka.KafkaProducer(
        bootstrap_servers=quorum.files.controllers.split(","),
        enable_idempotence=True,
        acks="all",
        retries=1_000,
        retry_backoff_ms=50,
        delivery_timeout_ms=60_000,
        request_timeout_ms=5_000,
        linger_ms=1,
    )


def read_values(quorum: Quorum, count: int) -> list[bytes]:
    """Read `count` values from the beginning with kafka-python's consumer."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=quorum.files.controllers.split(","), auto_offset_reset="earliest", enable_auto_commit=False
    )
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    try:
        partition = kafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        while len(values) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                values += [record.value for record in records]
    finally:
        consumer.close()
    return values


def test_stock_clients_read_each_record_once_after_leader_kill(quorum: Quorum) -> None:
    """The consumer also reads during the election."""
    expected = [b"record %d" % number for number in range(RECORDS)]
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.extend(read_values(quorum, RECORDS)))
    reader.start()
    writer = producer(quorum)
    try:
        sent = []
        for number, value in enumerate(expected):
            sent.append(writer.send(TOPIC, value, partition=0))
            if number == KILL_AT:
                sent[-1].get(timeout=WAIT_S)
                killed = quorum.leader()
                quorum.running.pop(killed).end(signal.SIGKILL)
        offsets = [future.get(timeout=60).offset for future in sent]
    finally:
        writer.close(timeout=WAIT_S)
    reader.join(2 * WAIT_S)
    assert quorum.leader() != killed
    assert offsets == sorted(set(offsets))
    assert read == expected
    # the killed server catches up
    quorum.start(killed)
    quorum.wait_until(lambda rows: rows[killed]["status"] == "Follower" and rows[killed]["lag"] == 0)
    lines = [json.loads(line) for line in quorum.ask("log", "--json").splitlines()]
    assert [line["value"].encode() for line in lines if line["record"] == "Data"] == expected
    assert {line["record"] for line in lines} >= {"LeaderChange", "KRaftVersion", "KRaftVoters", "NewProducerId"}


def test_stopped_leader_hands_over_leadership(quorum: Quorum) -> None:
    """Another server leads before a fetch timeout."""
    old = quorum.leader()
    stopped = quorum.running.pop(old)
    assert stopped.end(signal.SIGTERM) == 0
    assert stopped.event("stopped")["text"] == f"server {old} has stopped"
    assert stopped.errors() == ""
    others = [server.event("role", role="leader") for server in quorum.running.values() if _leads(quorum, server)]
    assert [event["nodeId"] for event in others] == [quorum.leader()]


def _leads(quorum: Quorum, server: ServeProcess) -> bool:
    return server.node_id == quorum.leader()


def advertised(address: str) -> dict[str, str]:
    return {"advertised.listeners": f"CONTROLLER://{address}"}


@pytest.mark.soak
def test_servers_elect_despite_refused_address(own_quorum: Quorum) -> None:
    """The leader does not record an address without a listener, so a quorum remains after the loss of the leader."""
    leader = own_quorum.leader()
    wrong = next(each for each in own_quorum.running if each != leader)
    nowhere, right = f"{LOOPBACK}:{free_ports(1)[0]}", own_quorum.files.address(wrong)
    assert own_quorum.replace(wrong, advertised(nowhere)).event("address-refused")["address"] == nowhere
    assert own_quorum.recorded(right)
    own_quorum.lose(leader)
    own_quorum.replace(wrong, {})
    own_quorum.wait_recorded(right)


@pytest.mark.soak
def test_servers_elect_despite_recorded_wrong_address(own_quorum: Quorum) -> None:
    """A voter moves, then moves back but advertises the address that it left.

    The leader keeps this recorded address without another check. A quorum remains after the loss of the leader.
    """
    leader = own_quorum.leader()
    wrong = next(each for each in own_quorum.running if each != leader)
    old, right = f"{LOOPBACK}:{free_ports(1)[0]}", own_quorum.files.address(wrong)
    own_quorum.replace(wrong, {"listeners": f"CONTROLLER://{old}"})
    own_quorum.wait_recorded(old)
    own_quorum.replace(wrong, advertised(old))
    own_quorum.wait_until(lambda rows: rows[wrong]["lag"] == 0)
    assert own_quorum.recorded(old)
    own_quorum.lose(leader)
    own_quorum.replace(wrong, {})
    own_quorum.wait_recorded(right)


@pytest.mark.soak
def test_observer_becomes_voter_and_voter_is_removed(own_quorum: Quorum) -> None:
    """Each change is committed when the command ends. A repeated command does not change anything."""
    own_quorum.files.format(4)
    own_quorum.start(4)
    config = ("--config", own_quorum.files.config(4))
    assert own_quorum.ask("add-voter", *config) == "Committed: the voters are 1, 2, 3, 4.\n"
    assert own_quorum.ask("add-voter", *config) == "It was so already: the voters are 1, 2, 3, 4.\n"
    removed = next(node_id for node_id in (1, 2, 3) if node_id != own_quorum.leader())
    remaining = ", ".join(str(each) for each in (1, 2, 3, 4) if each != removed)
    leave = ("remove-voter", "--voter-id", str(removed), "--yes")
    assert own_quorum.ask(*leave) == f"Committed: the voters are {remaining}.\n"
    assert own_quorum.ask(*leave) == f"It was so already: the voters are {remaining}.\n"
    rows = json.loads(own_quorum.ask("describe", "--json"))["replicas"]
    assert {row["id"]: row["status"] for row in rows}[removed] == "Observer"
    assert own_quorum.figures(removed)['kafka_raft_current_state{state="observer"}'] == 1


def test_kip_metrics_match_quorum_state(own_quorum: Quorum) -> None:
    """The metrics of KIP-595, on the leader and on a follower."""
    writer = producer(own_quorum)
    for number in range(50):
        writer.send(TOPIC, b"%d" % number, partition=0).get(timeout=WAIT_S)
    writer.close(timeout=WAIT_S)
    state, (leader, follower, _) = own_quorum.settled()
    for figures in (leader, follower):
        assert figures["kafka_raft_current_leader"] == state["leaderId"]
        assert figures["kafka_raft_current_epoch"] == state["leaderEpoch"]
        assert figures["kafka_raft_log_end_epoch"] == state["leaderEpoch"]
        assert figures["kafka_raft_log_end_offset"] == figures["kafka_raft_high_watermark"] == state["highWatermark"]
        assert figures["kafka_raft_number_unknown_voter_connections"] == 0
        assert 0 < figures["kafka_raft_poll_idle_ratio_avg"] <= 1
    assert leader["kafka_raft_current_vote"] == state["leaderId"]
    assert leader['kafka_raft_current_state{state="leader"}'] == 1
    assert follower['kafka_raft_current_state{state="follower"}'] == 1
    assert 0 < leader["kafka_raft_election_latency_avg"] <= leader["kafka_raft_election_latency_max"] < WAIT_S * 1000
    assert 0 < leader["kafka_raft_commit_latency_avg"] <= leader["kafka_raft_commit_latency_max"] < WAIT_S * 1000
    # 50 records in at most 60 s, and at most the whole log in 30 s
    assert 50 / 60 <= leader["kafka_raft_append_records_rate"] <= state["highWatermark"] / 30
    assert 50 / 60 <= follower["kafka_raft_fetch_records_rate"] <= state["highWatermark"] / 30
    assert follower["kafka_raft_append_records_rate"] == leader["kafka_raft_fetch_records_rate"] == 0


@pytest.mark.soak
def test_server_of_another_cluster_ends_after_election(own_quorum: Quorum) -> None:
    """The elected leader rejects the cluster id of the server."""
    foreign = next(each for each in (1, 2, 3) if each != own_quorum.leader())
    own_quorum.running.pop(foreign).end()
    own_quorum.files.write(foreign, {"log.dirs": str(own_quorum.files.path / "other")})
    own_quorum.files.format(foreign, cluster_id="AAAAAAAAAAAAAAAAAAAAAQ")
    with served(own_quorum.files, foreign) as server:
        assert server.ended() == 1
        assert "cluster" in server.errors()


def test_tls_quorum_requires_login_of_servers_and_tools(tmp_path: Path) -> None:
    """Servers with a password elect a leader. Tools with a wrong password, or without TLS, are refused."""
    files, authority = Files(tmp_path), Authority(tmp_path)
    certificate = authority.certificate(LOOPBACK).path
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.file)}
    for node_id in files.ports:
        files.write(
            node_id,
            {
                **trust,
                "listener.security.protocol.map": "CONTROLLER:SASL_SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(certificate),
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
                "sasl.jaas.config": JAAS.format("quorum", "right"),
            },
        )
        files.format(node_id, "--add-scram", "SCRAM-SHA-512=[name=quorum,password=right]")
    with ExitStack() as stack:
        for node_id in files.ports:
            stack.enter_context(served(files, node_id)).event("serving")
        for password, code, reason in (("right", 0, ""), ("wrong", 1, "refuses user quorum: authentication failed")):
            tool = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", **trust}
            tool["sasl.jaas.config"] = JAAS.format("quorum", password)
            config = tmp_path / "tool.properties"
            config.write_text("".join(f"{name}={text}\n" for name, text in tool.items()))
            where = ("--bootstrap-controller", files.controllers, "--timeout", "60" if not code else "3")
            result = kraft("describe", "--json", "--command-config", str(config), *where)
            assert (result.exit_code, reason in result.stderr) == (code, True), result.stderr
        assert kraft("describe", "--bootstrap-controller", files.address(1), "--timeout", "1").exit_code == 1


def test_port_in_use_ends_server_with_remedy(quorum: Quorum) -> None:
    quorum.files.write(4, {"listeners": f"CONTROLLER://{quorum.files.address(1)}"})
    quorum.files.format(4)
    with served(quorum.files, 4) as server:
        assert server.ended() == 1
        address = quorum.files.address(1)
        assert server.errors() == (
            f"garlicfarm: cannot listen on {address}: Address already in use. Stop the program that listens there, or"
            " change listeners\n"
        )
