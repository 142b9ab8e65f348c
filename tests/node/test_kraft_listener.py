"""A listener for Kafka's protocol: its own replies, access, and bounds on the cost of hostile connections."""

import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from consensus.net.tls import CertificateError, authority_context, server_context
from consensus.protocols.kafka.connections.connection import DialOptions, KafkaConnectionError, connect, open_connection
from consensus.protocols.kafka.connections.counters import ListenerClose, ListenerEvent
from consensus.protocols.kafka.connections.listener import KafkaListener, ListenerOptions, open_listener
from consensus.protocols.kafka.connections.query_budget import BURST_S, MAX_PAUSE_S, REQUEST_S, SHARE, QueryBudget
from consensus.protocols.kafka.connections.security import ClientSecurity, ListenerSecurity, Login
from consensus.protocols.kafka.connections.service import Caller, ServedApi
from consensus.protocols.kafka.topic.consumer_service import ConsumerService
from consensus.protocols.kafka.topic.quorum_view import QuorumView, QuorumViewService
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode
from consensus.protocols.kafka.wire.codec import decode_response, encode_request
from consensus.protocols.kafka.wire.limits import TOPIC_NAME, Limits
from consensus.protocols.kafka.wire.scram import Mechanism, ScramUsers, scram_credential
from consensus.server.errors import ServerBusyError
from tests.node.certificates import Authority
from tests.node.kraft_topic import MemoryTopic
from tests.node.memory_server import until

LOOPBACK = "127.0.0.1"
TIMEOUT_S = 60
USERS = ScramUsers(
    {"alice": {mechanism: scram_credential(mechanism, "pencil", b"salt" * 4) for mechanism in Mechanism}}
)
REQUEST = clients.MetadataRequest(topics=())
QUERIES: tuple[tuple[ApiKey, int, Any], ...] = (
    (
        ApiKey.FETCH,
        12,
        clients.FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            topics=(
                clients.FetchRequestTopic(
                    topic="farm",
                    partitions=(clients.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=100),),
                ),
            ),
        ),
    ),
    (
        ApiKey.LIST_OFFSETS,
        7,
        clients.ListOffsetsRequest(
            replica_id=-1,
            topics=(
                clients.ListOffsetsRequestTopic(
                    name="farm", partitions=(clients.ListOffsetsRequestPartition(partition_index=0, timestamp=1),)
                ),
            ),
        ),
    ),
    (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        clients.OffsetForLeaderEpochRequest(
            topics=(
                clients.OffsetForLeaderEpochRequestTopic(
                    topic="farm",
                    partitions=(clients.OffsetForLeaderEpochRequestPartition(partition=0, leader_epoch=1),),
                ),
            )
        ),
    ),
    (
        ApiKey.DESCRIBE_QUORUM,
        1,
        admin.DescribeQuorumRequest(
            topics=(
                admin.DescribeQuorumRequestTopic(
                    topic_name=TOPIC_NAME, partitions=(admin.DescribeQuorumRequestPartition(partition_index=0),)
                ),
            )
        ),
    ),
)


class MetadataService:
    """A service that replies to Metadata with a list of equal topics, and records its callers."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.port = 0
        self.before: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.key = ApiKey.METADATA
        self.name, self.topics = "log", 1
        self.overlaps = False

    def apis(self) -> Mapping[int, ServedApi]:
        """Return the one served API."""
        return {self.key: ServedApi(0, 12, self.answer, overlaps=self.overlaps)}

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        return {"kraft.version": (0, 1, 1)}

    async def answer(self, request: Any, caller: Caller) -> Any:
        """Return the same reply to every caller, after the test's condition."""
        assert isinstance(request, clients.MetadataRequest)
        self.callers.append(caller)
        await self.before()
        partition = clients.MetadataResponsePartition(
            partition_index=0, leader_id=1, replica_nodes=(1,), isr_nodes=(1,), offline_replicas=()
        )
        return clients.MetadataResponse(
            brokers=(clients.MetadataResponseBroker(node_id=1, host=LOOPBACK, port=self.port, rack=None),),
            cluster_id="cluster",
            controller_id=1,
            topics=(clients.MetadataResponseTopic(name=self.name, partitions=(partition,)),) * self.topics,
        )


@asynccontextmanager
async def listening(
    service: MetadataService | None = None, security: ListenerSecurity | None = None, **changed: Any
) -> AsyncIterator[tuple[KafkaListener, MetadataService]]:
    service = service or MetadataService()
    options = replace(ListenerOptions(security=security or ListenerSecurity()), **changed)
    with trio.fail_after(TIMEOUT_S):
        async with open_listener((service,), options) as listener:
            service.port = listener.port
            yield listener, service


async def until_counted(listener: KafkaListener, event: ListenerEvent | ListenerClose) -> None:
    while not listener.counters[event]:
        await trio.lowlevel.checkpoint()


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def metadata(correlation_id: int) -> bytes:
    return framed(encode_request(ApiKey.METADATA, 12, correlation_id, "client", REQUEST))


async def one_frame(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        more = await stream.receive_some(4 if len(data) < 4 else 4 + struct.unpack_from(">i", data)[0] - len(data))
        assert more
        data += bytes(more)
    return data[4:]


STOCK_CLIENT = """
import sys
from kafka import KafkaConsumer

port, mechanism = sys.argv[1:]
consumer = KafkaConsumer(
    bootstrap_servers=f"127.0.0.1:{port}", security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
    sasl_plain_username="alice", sasl_plain_password="pencil", request_timeout_ms=20_000,
)
print(*consumer.topics())
consumer.close()
"""
"""Runs in a separate process: the library warns during its import, and warnings are errors here."""


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_stock_client_logs_in_and_reads_metadata(mechanism: str) -> None:
    async with listening(security=ListenerSecurity(credentials=USERS)) as (listener, service):
        command = [sys.executable, "-c", STOCK_CLIENT, str(listener.port), mechanism]
        ended = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert ended.stdout.decode().split() == ["log"], ended.stderr.decode()
        assert {caller.principal for caller in service.callers} == {"User:alice"}
        assert listener.counters[ListenerEvent.LOGINS] >= 1


async def test_client_receives_versions_features_and_ordered_replies() -> None:
    async with listening() as (listener, service), open_connection(LOOPBACK, listener.port) as connection:
        assert connection.versions[ApiKey.METADATA] == (0, 12)
        assert connection.features == {"kraft.version": (0, 1)}
        (finalized,) = (await connection.ask(clients.ApiVersionsRequest())).finalized_features
        assert (finalized.name, finalized.max_version_level) == ("kraft.version", 1)
        answers: list[str] = []

        def note(number: int, answer: Any) -> None:
            answers.append(f"{number} {answer.cluster_id}")

        for number in range(3):
            connection.start(REQUEST, partial(note, number))
        answer = await connection.ask(REQUEST)
        assert answer.topics[0].name == "log"
        assert answers == ["0 cluster", "1 cluster", "2 cluster"]
        assert service.callers[0].listener == "PLAINTEXT"
        assert service.callers[0].principal is None


async def test_unknown_api_versions_version_gets_error_35_in_version_0() -> None:
    async with listening() as (listener, _):
        stream = await trio.open_tcp_stream(LOOPBACK, listener.port)
        await stream.send_all(framed(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1) + b"whatever"))
        correlation_id, response = decode_response(ApiKey.API_VERSIONS, 0, await one_frame(stream))
        assert (correlation_id, response.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
        assert {api.api_key for api in response.api_keys} == {
            ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE,
        }  # fmt: skip
        await stream.aclose()


async def test_next_request_waits_for_previous_reply() -> None:
    service, gate = MetadataService(), trio.Event()
    service.before = gate.wait
    async with listening(service) as (listener, _):
        stream = await trio.open_tcp_stream(LOOPBACK, listener.port)
        await stream.send_all(metadata(1) + metadata(2))
        other = await trio.open_tcp_stream(LOOPBACK, listener.port)
        await other.send_all(metadata(3))
        while len(service.callers) < 2:
            await trio.lowlevel.checkpoint()
        assert sorted(caller.correlation_id for caller in service.callers) == [1, 3]
        gate.set()
        assert [decode_response(ApiKey.METADATA, 12, await one_frame(stream))[0] for _ in range(2)] == [1, 2]
        await stream.aclose()
        await other.aclose()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\x7f\xff\xff\xff", ListenerClose.MALFORMED),
        (b"\xff\xff\xff\xff", ListenerClose.MALFORMED),
        (b"GET / HTTP/1.1\r\n\r\n", ListenerClose.MALFORMED),
        (framed(b""), ListenerClose.MALFORMED),
        (framed(struct.pack(">hhih", 999, 0, 7, -1)), ListenerClose.MALFORMED),
        (framed(struct.pack(">hhih", ApiKey.METADATA, 99, 7, -1)), ListenerClose.UNSERVED_VERSION),
    ],
    ids=["giant-length", "negative-length", "another-protocol", "empty", "unknown-api", "unknown-version"],
)
async def test_invalid_frame_closes_connection(sent: bytes, reason: ListenerClose) -> None:
    async with listening() as (listener, _):
        stream = await trio.open_tcp_stream(LOOPBACK, listener.port)
        await stream.send_all(sent)
        assert await stream.receive_some() == b""
        assert listener.counters[reason] == 1
        await until_closed(listener)
        await stream.aclose()


async def until_closed(listener: KafkaListener) -> None:
    while listener._open.total():
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (metadata(1)[:20], ListenerClose.REQUEST_INCOMPLETE),
        (metadata(1)[:2], ListenerClose.REQUEST_INCOMPLETE),
        (b"", ListenerClose.IDLE),
    ],
    ids=["half-frame", "half-length", "nothing"],
)
async def test_stalled_connection_is_closed_in_time(
    sent: bytes, reason: ListenerClose, autojump_clock: trio.testing.MockClock
) -> None:
    listener = KafkaListener((MetadataService(),), ListenerOptions(frame_s=30, idle_s=600))
    ours, theirs = trio.testing.memory_stream_pair()
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, theirs, LOOPBACK, 1)
        if sent:
            await ours.send_all(sent)
    assert listener.counters[reason] == 1
    assert trio.current_time() - began_s == pytest.approx(30 if sent else 600)


async def test_client_that_does_not_receive_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    listener = KafkaListener((MetadataService(),), ListenerOptions(send_s=60))
    ours, theirs = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, theirs, LOOPBACK, 1)
        await ours.send_all(metadata(1))
    assert listener.counters[ListenerClose.ANSWER_TIMEOUT] == 1


async def test_service_timeout_closes_connection(autojump_clock: trio.testing.MockClock) -> None:
    service = MetadataService()
    service.before = trio.sleep_forever
    listener = KafkaListener((service,), ListenerOptions(answer_s=300))
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, theirs, LOOPBACK, 1)
        await ours.send_all(metadata(1))
    assert listener.counters[ListenerClose.SERVICE_TIMEOUT] == 1


async def time_of_queries(topic: MemoryTopic, query: tuple[ApiKey, int, Any], *, grows: bool) -> float:
    """Return the time of 200 queries of one connection, each sent after the reply to the previous one."""
    began_s = 0.0
    quorum = QuorumView(1, 1, leader_is_listed=False, leader_epoch=1, high_watermark=0, voters=(), observers=())
    describing = QuorumViewService(lambda: replace(quorum, high_watermark=topic.end), lambda: 0)
    listener = KafkaListener((ConsumerService(topic), describing), ListenerOptions())
    ours, theirs = trio.testing.memory_stream_pair()

    async def write() -> None:
        while grows:
            topic.write(b"record")
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, theirs, LOOPBACK, 1)
        nursery.start_soon(write)
        for number in range(201):
            await ours.send_all(framed(encode_request(*query[:2], number, "scan", query[2])))
            await one_frame(ours)
            if number == 0:
                await trio.sleep(1)
                began_s = trio.current_time()
        took_s = trio.current_time() - began_s
        nursery.cancel_scope.cancel()
    return took_s


@pytest.mark.parametrize("query", QUERIES, ids=[query[0].name.lower() for query in QUERIES])
async def test_scanning_client_pauses_while_log_grows(
    query: tuple[ApiKey, int, Any], autojump_clock: trio.testing.MockClock
) -> None:
    topic = MemoryTopic()
    topic.write(b"old")
    assert await time_of_queries(topic, query, grows=False) == 0
    took_s = await time_of_queries(topic, query, grows=True)
    assert took_s == pytest.approx(200 * REQUEST_S / SHARE - BURST_S, rel=0.02)


async def test_query_budget_counts_time_and_limits_pause(autojump_clock: trio.testing.MockClock) -> None:
    budget = QueryBudget()
    owed_s = (0.05 + REQUEST_S) / SHARE - 0.05
    for high_watermark, pause_s in ((5, 0), (6, owed_s - BURST_S), (6, 2 * owed_s - BURST_S), (6, MAX_PAUSE_S)):
        began_s = trio.current_time()
        await trio.sleep(0.05)
        budget.charge(began_s, high_watermark)
        assert budget.pause_s == pytest.approx(pause_s)
    # Without a commit for a second nothing is charged.
    await trio.sleep(10)
    budget.charge(trio.current_time() - 0.9, 6)
    assert budget.pause_s == 0


async def test_connections_beyond_limits_are_closed() -> None:
    listener = KafkaListener((MetadataService(),), ListenerOptions(max_connections=3, max_connections_per_source=2))
    async with trio.open_nursery() as nursery:
        streams = []
        for source in ("192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3"):
            ours, theirs = trio.testing.memory_stream_pair()
            streams.append(ours)
            nursery.start_soon(listener.serve, theirs, source, 1)
            await trio.testing.wait_all_tasks_blocked()
        assert listener._open.total() == 3
        assert listener.counters[ListenerClose.TOO_MANY_OF_SOURCE] == 1
        assert listener.counters[ListenerClose.TOO_MANY] == 1
        nursery.cancel_scope.cancel()
    assert listener._open.total() == 0


async def test_incomplete_frames_share_a_budget(nursery: trio.Nursery) -> None:
    options = ListenerOptions(max_incomplete_bytes=2**20, limits=Limits(max_request_bytes=2**20))
    listener = KafkaListener((MetadataService(),), options)
    streams = []
    for number in range(4):
        ours, theirs = trio.testing.memory_stream_pair()
        streams.append(ours)
        nursery.start_soon(listener.serve, theirs, f"192.0.2.{number}", 1)
        await ours.send_all(struct.pack(">i", 2**20) + bytes(600_000))
        await trio.testing.wait_all_tasks_blocked()
    assert listener._open.total() == 1
    assert listener.counters[ListenerClose.REQUEST_BYTES] == 3


async def test_unreceived_replies_share_a_budget(nursery: trio.Nursery) -> None:
    service = MetadataService()
    service.name, service.topics = "n" * 30_000, 5
    listener = KafkaListener((service,), ListenerOptions(max_untaken_bytes=2**16))
    streams = []
    for number in range(4):
        ours, theirs = trio.testing.lockstep_stream_pair()
        streams.append(ours)
        nursery.start_soon(listener.serve, theirs, f"192.0.2.{number}", 1)
        await ours.send_all(framed(encode_request(ApiKey.METADATA, 12, 1, "", REQUEST)))
        await trio.testing.wait_all_tasks_blocked()
    assert listener._open.total() == 1
    assert listener.counters[ListenerClose.ANSWER_BYTES] == 3


async def test_busy_service_closes_connection() -> None:
    service = MetadataService()

    async def busy() -> None:
        await trio.lowlevel.checkpoint()
        raise ServerBusyError("busy")

    service.before = busy
    async with listening(service) as (listener, _), open_connection(LOOPBACK, listener.port) as connection:
        with pytest.raises(KafkaConnectionError, match="did not answer MetadataRequest"):
            await connection.ask(REQUEST)
        assert listener.counters[ListenerClose.SERVER_BUSY] == 1


def test_services_with_same_api_are_refused() -> None:
    with pytest.raises(ValueError, match="API 3 is served twice"):
        KafkaListener((MetadataService(), MetadataService()), ListenerOptions())


def login(user: str, password: str, mechanism: Mechanism = Mechanism.SCRAM_SHA_512) -> DialOptions:
    return DialOptions(security=ClientSecurity(login=Login(user, password, mechanism)))


@pytest.mark.parametrize(("user", "password"), [("alice", "pen"), ("bob", "pencil")])
async def test_wrong_login_gets_one_error_then_close(user: str, password: str) -> None:
    async with listening(security=ListenerSecurity(credentials=USERS), refused_login_s=0.0) as (listener, _):
        with pytest.raises(KafkaConnectionError, match=f"refuses user {user}: authentication failed"):
            await connect(LOOPBACK, listener.port, login(user, password))
        await until_counted(listener, ListenerClose.LOGIN_FAILED)
        assert not listener.counters[ListenerEvent.LOGINS]


async def test_requests_before_login_are_refused() -> None:
    async with listening(security=ListenerSecurity(credentials=USERS)) as (listener, service):
        stream = await trio.open_tcp_stream(LOOPBACK, listener.port)
        await stream.send_all(metadata(1))
        assert await stream.receive_some() == b""
        assert listener.counters[ListenerClose.REQUEST_BEFORE_LOGIN] == 1
        await stream.aclose()
        stream = await trio.open_tcp_stream(LOOPBACK, listener.port)
        await stream.send_all(struct.pack(">i", 100_000))
        assert await stream.receive_some() == b""
        assert listener.counters[ListenerClose.MALFORMED] == 1
        await stream.aclose()
        assert service.callers == []


async def test_unknown_mechanism_error_lists_known_ones() -> None:
    security = ListenerSecurity(credentials=USERS, mechanisms=(Mechanism.SCRAM_SHA_256,))
    async with listening(security=security) as (listener, _):
        with pytest.raises(KafkaConnectionError, match=r"UNSUPPORTED_SASL_MECHANISM.*it has SCRAM-SHA-256$"):
            await connect(LOOPBACK, listener.port, login("alice", "pencil"))
        with trio.fail_after(TIMEOUT_S):
            connection = await connect(LOOPBACK, listener.port, login("alice", "pencil", Mechanism.SCRAM_SHA_256))
        await connection.aclose()


async def test_handshake_version_0_is_listed_but_refused() -> None:
    """Some releases of librdkafka do not log in if version 0 is missing, although they use version 1."""
    async with listening(security=ListenerSecurity(credentials=USERS)) as (listener, service):
        connection = await connect(LOOPBACK, listener.port, login("alice", "pencil"))
        assert connection.versions[ApiKey.SASL_HANDSHAKE] == (0, 1)
        await connection.aclose()
        request = clients.SaslHandshakeRequest(mechanism="SCRAM-SHA-512")
        first = clients.SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=nonce")
        stream = await trio.open_tcp_stream(LOOPBACK, listener.port)
        for key, version, message, response_of, response in (
            (ApiKey.SASL_HANDSHAKE, 0, request, clients.SaslHandshakeResponse, ErrorCode.UNSUPPORTED_VERSION),
            (ApiKey.SASL_AUTHENTICATE, 2, first, clients.SaslAuthenticateResponse, ErrorCode.ILLEGAL_SASL_STATE),
        ):
            await stream.send_all(framed(encode_request(key, version, 1, "client", message)))
            _, answer = decode_response(key, version, await one_frame(stream))
            assert isinstance(answer, response_of)
            assert answer.error_code == response
        await stream.send_all(metadata(1))
        assert await stream.receive_some() == b""
        await stream.aclose()
        assert listener.counters[ListenerEvent.LOGINS] == 1
        assert service.callers == []


async def test_login_without_configured_users_is_an_error() -> None:
    async with listening() as (listener, _):
        with pytest.raises(KafkaConnectionError, match="ILLEGAL_SASL_STATE"):
            await connect(LOOPBACK, listener.port, login("alice", "pencil"))


async def test_login_timeout_closes_connection(autojump_clock: trio.testing.MockClock) -> None:
    options = ListenerOptions(security=ListenerSecurity(credentials=USERS), first_s=30)
    listener = KafkaListener((MetadataService(),), options)
    ours, theirs = trio.testing.memory_stream_pair()
    request = framed(encode_request(ApiKey.API_VERSIONS, 4, 1, "client", clients.ApiVersionsRequest()))
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, theirs, LOOPBACK, 1)
        for _ in range(4):
            # Each request gets a reply, and does not extend the time.
            await ours.send_all(request)
            await trio.sleep(9)
    assert listener.counters[ListenerClose.HANDSHAKE_TIMEOUT] == 1
    assert listener.counters[ListenerEvent.REQUESTS_ANSWERED] == 4
    assert trio.current_time() - began_s == pytest.approx(36)


async def test_mutual_tls_uses_certificate_subject_as_user(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.certificate(LOOPBACK), authority.certificate("voter-2")
    security = ListenerSecurity(tls=server_context(server.path, authority.file))
    async with listening(security=security) as (listener, service):
        trusted = ClientSecurity(tls=authority_context(authority.file, client.path))
        async with open_connection(LOOPBACK, listener.port, DialOptions(security=trusted)) as connection:
            await connection.ask(REQUEST)
        assert service.callers[0].principal == "User:CN=voter-2"
        bare = ClientSecurity(tls=authority_context(authority.file))
        with pytest.raises(KafkaConnectionError, match="no connection to"):
            await connect(LOOPBACK, listener.port, DialOptions(security=bare))
        await until_counted(listener, ListenerClose.TLS_FAILED)


async def test_client_refuses_certificate_of_other_authority(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    security = ListenerSecurity(tls=server_context(authority.certificate(LOOPBACK).path))
    async with listening(security=security) as (listener, _):
        other_authority = ClientSecurity(tls=authority_context(other.file))
        with pytest.raises(KafkaConnectionError, match=r"the certificate of .* is refused"):
            await connect(LOOPBACK, listener.port, DialOptions(security=other_authority))


def test_unusable_certificate_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"none\.pem cannot be used"):
        server_context(tmp_path / "none.pem")
    loose = Authority(tmp_path).certificate(LOOPBACK).path
    loose.chmod(0o644)
    with pytest.raises(CertificateError, match="chmod 600"):
        server_context(loose)
    with pytest.raises(CertificateError, match="authority's certificate"):
        authority_context(tmp_path / "none.pem")


@pytest.mark.parametrize("overlaps", [False, True])
async def test_fault_in_service_ends_only_its_connection(caplog: pytest.LogCaptureFixture, *, overlaps: bool) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    service = MetadataService()
    service.overlaps = overlaps
    async with listening(service) as (listener, _):
        service.before = fail
        async with await trio.open_tcp_stream(LOOPBACK, listener.port) as broken:
            await broken.send_all(metadata(1))
            assert await broken.receive_some() == b""
        service.before = trio.lowlevel.checkpoint
        async with await trio.open_tcp_stream(LOOPBACK, listener.port) as working:
            await working.send_all(metadata(2))
            assert await one_frame(working)
        await until(lambda: "ZeroDivisionError" in caplog.text)
