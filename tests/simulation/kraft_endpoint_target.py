"""The endpoint target of the KRaft fuzz: conversations of a listener with many clients, mostly hostile.

    the steps   ─▶ connect │ send │ stop reading │ log in │ hang up │ pause │ change the log
                     └─▶ every response is checked against the requests; at the end a correct client reads the log

The listener has all services. The service of the quorum uses a server that leaves some requests unanswered. The
services of administrators, consumers, producers and groups use a topic in memory. A second listener requires a login.
The checks: no connection ends the listener or another connection. A client gets the responses to its requests, in
order, each in the requested version. A client without a login gets only responses that a login needs. After the clients
have left, nothing is held: no connection, no byte of a budget, no group member, no request that waits at the server.
Then a correct client logs in and reads the complete log.

The limits are small, so that each is reached. A mock clock provides the time, so the program never really waits.
"""

import socket
import struct
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import trio
import trio.testing
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.effects import ChangeOutcome, ChangeRefusal, ConfigurationResolved, Role, RoleChanged
from consensus.core.messages import Reply, Request
from consensus.core.model import Configuration, LogId, ReplicaKey, Server
from consensus.protocols.kafka.connections.connection import DialOptions
from consensus.protocols.kafka.connections.counters import ListenerClose, ListenerEvent
from consensus.protocols.kafka.connections.listener import KafkaListener, ListenerOptions
from consensus.protocols.kafka.connections.security import ListenerSecurity
from consensus.protocols.kafka.groups.service import GroupService
from consensus.protocols.kafka.topic.consumer_service import ConsumerService
from consensus.protocols.kafka.topic.produce_service import ProduceService
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode
from consensus.protocols.kafka.wire.codec import (
    UnsupportedVersionError,
    decode_request,
    decode_response,
    encode_request,
)
from consensus.protocols.kafka.wire.limits import KafkaWireError, Limits
from consensus.protocols.kafka.wire.scram import Mechanism, ScramClient
from consensus.protocols.kraft.operators.settings import Endpoint
from consensus.protocols.kraft.replica.admin_service import AdminService
from consensus.protocols.kraft.replica.quorum_names import QuorumNames
from consensus.protocols.kraft.replica.quorum_service import FetchDispatch
from consensus.protocols.kraft.wire.entries import leader_head
from consensus.server.errors import ServerBusyError
from consensus.server.server import ConsensusServer
from tests.node.kraft_replicas import ScriptedReceiver, service
from tests.node.kraft_topic import TOPIC_ID, MemoryOffsets, MemoryTopic, values_in
from tests.simulation.fuzzing import FuzzError, Subject
from tests.simulation.kraft_clients import USERS, Wire, framed, hostile
from tests.simulation.kraft_targets import NAMES, RequestTarget

REQUESTS: Final = 64
"""Approximate number of requests in a conversation."""
_STEPS: Final = 48
_SOURCES: Final = 3
_LIMITS: Final = Limits(max_request_bytes=256 * 1024, max_request_elements=200, max_batch_bytes=32 * 1024)
_BUDGET_BYTES: Final = 32 * 1024
_OPTIONS: Final = ListenerOptions(
    limits=_LIMITS,
    max_connections=9,
    max_connections_per_source=5,
    max_incomplete_bytes=_BUDGET_BYTES,
    max_untaken_bytes=_BUDGET_BYTES,
    answer_s=50.0,
)
_LONG_S: Final = 2_000.0
"""Longer than any timeout that a client may request."""
_SERVED: Final = frozenset(
    {
        *(ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.SASL_HANDSHAKE),
        *(ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID, ApiKey.SASL_AUTHENTICATE, ApiKey.VOTE),
        *(ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.DESCRIBE_QUORUM, ApiKey.FETCH_SNAPSHOT),
        *(ApiKey.DESCRIBE_CLUSTER, ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT),
        *(ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP),
        *(ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.LIST_GROUPS),
        *(
            ApiKey.DESCRIBE_GROUPS,
            ApiKey.CONTROLLER_REGISTRATION,
            ApiKey.ADD_RAFT_VOTER,
            ApiKey.REMOVE_RAFT_VOTER,
            ApiKey.UPDATE_RAFT_VOTER,
        ),
    }
)
_LOGINS: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_PLACES: Final = 20
"""Number of clients; the odd ones use the listener that requires a login."""


class Step(msgspec.Struct, array_like=True):
    """One action of the client at `place`, a pause, or a change of the log."""

    kind: str
    place: int = 0
    data: bytes = b""
    number: int = 0


class _NoNetwork(trio.abc.HostnameResolver, trio.abc.SocketFactory):
    """A network without names or reachable hosts: addresses in messages lead nowhere."""

    async def getaddrinfo(self, *_: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "no network")

    async def getnameinfo(self, *_: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "no network")

    def socket(self, *_: Any, **__: Any) -> Any:
        raise OSError("no network")


class _StubLeader:
    """A leader of a quorum of three: it describes itself, and decides changes by the number of voters."""

    def __init__(self) -> None:
        self.role = RoleChanged(Role.LEADER, 5, ReplicaKey(1))
        voters = tuple(Server(ReplicaKey(number, bytes([number]) * 16), f"127.0.0.1:{number}") for number in (1, 2, 3))
        self._raft = SimpleNamespace(
            role=Role.LEADER,
            term=5,
            leader=ReplicaKey(1),
            log_start=LogId(0, 0),
            configuration=Configuration(voters),
            server_id=ReplicaKey(1),
            followers=(),
            last=LogId(9, 5),
            commit_index=9,
        )

    def describe(self) -> Any:
        return SimpleNamespace(raft=self._raft)

    def soft_state(self) -> Any:
        return self._raft

    async def change_configuration(self, voters: tuple[Server, ...], *, head: bytes) -> ConfigurationResolved:
        del head
        await trio.sleep(0.05)
        if len(voters) % 2:
            return ConfigurationResolved(change_id=0, outcome=ChangeOutcome.COMMITTED)
        return ConfigurationResolved(change_id=0, outcome=ChangeOutcome.REFUSED, refusal=ChangeRefusal.BUSY)


def _reply_to(request: Request) -> Reply:
    match request:
        case core.RequestVote():
            return core.VoteReply(
                term=request.term,
                granted=request.term % 2 == 1,
                correlation=request.correlation,
                pre_vote=request.pre_vote,
            )
        case core.BeginQuorumEpoch():
            return core.BeginQuorumEpochReply(term=request.term, leader=ReplicaKey(1), correlation=request.correlation)
        case core.EndQuorumEpoch():
            return core.EndQuorumEpochReply(term=request.term, leader=ReplicaKey(1), correlation=request.correlation)
        case core.FetchSnapshot():
            return core.FetchSnapshotReply(
                term=request.term,
                leader=ReplicaKey(1),
                snapshot=request.snapshot,
                offset=0,
                correlation=request.correlation,
                data=b"x",
            )
        case core.Fetch():
            return core.FetchReply(term=request.term, leader=ReplicaKey(1), commit=4, correlation=request.correlation)
        case _:
            raise FuzzError(f"unexpected request: {request}")


class _Server(ScriptedReceiver):
    """Answers a replica's requests, except fetches that may wait; occasionally it is busy."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, Any] = {}

    def ask(self, sender: Any, request: Request, on_reply: Any) -> None:
        del sender
        if self.busy:
            raise ServerBusyError("busy")
        if isinstance(request, core.Fetch) and request.max_wait_ms:
            self.waiting[request.correlation] = on_reply
        else:
            on_reply(_reply_to(request))

    def forget(self, number: int) -> None:
        self.waiting.pop(number, None)


class _Client:
    """One client; `judge` checks its responses."""

    def __init__(self, listener: KafkaListener, *, must_login: bool) -> None:
        self.wire = Wire()
        self.logged_in = not must_login
        self._listener = listener

    def judge(self, outcomes: set[str]) -> None:
        """Raise `FuzzError` unless the responses match the requests, in order."""
        answers = _cut(bytes(self.wire.received))
        expected = self._answerable_requests()
        for answer in answers:
            if not expected:
                raise FuzzError(f"a response without a request: {answer.hex()}")
            key, version, correlation_id = expected.pop(0)
            try:
                answered_id, message = decode_response(key, version, answer)
            except KafkaWireError as error:
                raise FuzzError(f"the response to {key.name} v{version} is invalid: {error}: {answer.hex()}") from error
            if answered_id != correlation_id:
                raise FuzzError(f"{key.name} {correlation_id} is answered as {answered_id}")
            if not self.logged_in and key not in _LOGINS:
                raise FuzzError(f"{key.name} is answered before the login")
            del message
            outcomes.add(key.name)

    def _answerable_requests(self) -> list[tuple[ApiKey, int, int]]:
        """Return the requests that a correct listener answers: API, version and correlation id."""
        expected: list[tuple[ApiKey, int, int]] = []
        for frame in _cut(bytes(self.wire.sent)):
            try:
                request = decode_request(frame, self._listener._served, _LIMITS)
            except UnsupportedVersionError as error:
                if error.api_key != ApiKey.API_VERSIONS:
                    break
                expected.append((ApiKey.API_VERSIONS, 0, error.correlation_id))
                continue
            except KafkaWireError:
                break
            if not (request.api_key is ApiKey.PRODUCE and request.message.acks == 0):
                expected.append((request.api_key, request.api_version, request.correlation_id))
        return expected


def _cut(data: bytes) -> list[bytes]:
    """Return the complete frames, up to one with an impossible length."""
    frames, at = [], 0
    while len(data) - at >= 4:
        (length,) = struct.unpack_from(">i", data, at)
        if not 0 <= length <= len(data) - at - 4:
            break
        frames.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return frames


class Conversation:
    """Two listeners on the same services, and their clients."""

    def __init__(self) -> None:
        self.topic = MemoryTopic()
        self.topic.offsets = MemoryOffsets()
        self.groups = GroupService(self.topic)
        for number in range(20):
            self.topic.write(b"%d" % number * 4_000)
        self.server = _Server()
        self.outcomes: set[str] = set()
        names = QuorumNames(ReplicaKey(1), (Endpoint("CONTROLLER", "127.0.0.1", 1),), Configuration(()))
        leader = cast("ConsensusServer", _StubLeader())
        administrators = AdminService(
            leader, names, "cluster", lambda: 1_000, lambda: leader_head(1_000), DialOptions(), is_dynamic=True
        )
        services = (
            FetchDispatch(service(self.server, NAMES), ConsumerService(self.topic, describes_cluster=False)),
            ProduceService(self.topic),
            self.groups,
            administrators,
        )
        self.listeners = tuple(
            KafkaListener(services, replace(_OPTIONS, security=security))
            for security in (ListenerSecurity(), ListenerSecurity(credentials=USERS))
        )
        self._clients: dict[int, _Client] = {}
        self._closed_clients: list[_Client] = []

    async def play(self, steps: Sequence[Step]) -> None:
        """Run all steps; then run a correct client after the others have left."""
        trio.socket.set_custom_hostname_resolver(_NoNetwork())
        trio.socket.set_custom_socket_factory(_NoNetwork())
        async with trio.open_nursery() as nursery:
            for step in steps:
                await self._take(step, nursery)
                await trio.testing.wait_all_tasks_blocked()
                self._check_budgets()
            for place in list(self._clients):
                self._hang_up(place)
            self.server.busy = self.topic.is_stuck = False
            await trio.sleep(_LONG_S)
            self._check_closed()
            for listener in self.listeners:
                await self._run_correct_client(listener, nursery)
            nursery.cancel_scope.cancel()
        for client in self._closed_clients:
            client.judge(self.outcomes)
        for listener in self.listeners:
            self.outcomes.update(listener.counters)

    async def _take(self, step: Step, nursery: trio.Nursery) -> None:
        client = self._clients.get(step.place)
        match step.kind:
            case "pause":
                await trio.sleep(step.number / 10)
            case "log":
                self._change_log(step.number)
            case "open" if client is None:
                self._open(step.place, step.number, nursery)
            case "open":
                self._hang_up(step.place)
            case _ if client is None:
                return
            case "send":
                client.wire.put(step.data)
            case "half":
                client.wire.end()
            case "taking":
                client.wire.take(takes=step.number % 2 == 0)
            case _:
                await _log_in(client)

    def _open(self, place: int, number: int, nursery: trio.Nursery) -> None:
        listener = self.listeners[place % 2]
        client = self._clients[place] = _Client(listener, must_login=bool(place % 2))
        client.wire.take(takes=number % 4 != 0)
        nursery.start_soon(listener.serve, client.wire, f"192.0.2.{number % _SOURCES}", 1_000 + place)

    def _hang_up(self, place: int) -> None:
        client = self._clients.pop(place)
        client.wire.take(takes=True)
        client.wire.end()
        self._closed_clients.append(client)

    def _change_log(self, number: int) -> None:
        match number % 8:
            case 0:
                self.topic.is_stuck = True
            case 1:
                self.server.busy = True
            case 2:
                self.topic.leader_id = 2
            case 3:
                self.topic.write(b"x" * (number * 97 % 9_000))
            case 4:
                for correlation in list(self.server.waiting):
                    respond = self.server.waiting.pop(correlation)
                    respond(None if number % 3 == 0 else _fetched(correlation))
            case 5:
                self.topic.takes_records = False
            case _:
                self.topic.is_stuck = self.server.busy = False
                self.topic.leader_id, self.topic.takes_records = 1, True

    def _check_budgets(self) -> None:
        for listener in self.listeners:
            if listener._open.total() > _OPTIONS.max_connections:
                raise FuzzError(f"{listener._open.total()} connections")
            for budget in (listener._budget, listener._untaken):
                # One connection may hold more than the budget if no other holds any.
                if budget.others_bytes > _BUDGET_BYTES and len(budget._others) > 1:
                    raise FuzzError(f"{budget.others_bytes} bytes held by {len(budget._others)} connections")

    def _check_closed(self) -> None:
        for listener in self.listeners:
            held_bytes = listener._budget.others_bytes + listener._untaken.others_bytes
            if listener._open.total() or held_bytes or self.server.waiting:
                rest = f"{listener._open.total()} connections, {held_bytes} bytes, {len(self.server.waiting)} requests"
                raise FuzzError(f"{rest} are left after all clients have closed")
        coordinator = self.groups._coordinator
        coordinator.advance(*coordinator.groups())
        if members := coordinator.groups():
            raise FuzzError(f"the groups {list(members)} have members after all clients have closed")

    async def _run_correct_client(self, listener: KafkaListener, nursery: trio.Nursery) -> None:
        """Log in if required, and read the complete log."""
        self.topic.leader_id = 1
        client = _Client(listener, must_login=listener is self.listeners[1])
        nursery.start_soon(listener.serve, client.wire, "192.0.2.77", 1)
        if not client.logged_in:
            await _log_in(client)
        values: list[bytes] = []
        while len(values) < self.topic.end:
            client.wire.received.clear()
            partition = clients.FetchRequestPartition(partition=0, fetch_offset=len(values), partition_max_bytes=2**20)
            fetch = clients.FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                topics=(clients.FetchRequestTopic(topic_id=TOPIC_ID, partitions=(partition,)),),
            )
            client.wire.put(framed(encode_request(ApiKey.FETCH, 17, 7, "correct", fetch)))
            await trio.testing.wait_all_tasks_blocked()
            answers = _cut(bytes(client.wire.received))
            if len(answers) != 1:
                raise FuzzError(f"a correct client gets {len(answers)} responses")
            _, response = decode_response(ApiKey.FETCH, 17, answers[0])
            read = values_in(response.responses[0].partitions[0].records)
            if not read:
                raise FuzzError(f"a correct client reads nothing at {len(values)}")
            values += read
        if values != [value for _, _, data in self.topic.batches for value in values_in(data)]:
            raise FuzzError("a correct client reads another log")
        client.wire.end()


def _fetched(correlation: int) -> Reply:
    return core.FetchReply(term=3, leader=ReplicaKey(1), commit=5, correlation=correlation)


async def _log_in(client: _Client) -> None:
    """Log in correctly, unless earlier requests are still pending."""
    scram = ScramClient(Mechanism.SCRAM_SHA_256, "alice", "pencil", bytes)
    handshake = clients.SaslHandshakeRequest(mechanism="SCRAM-SHA-256")
    await _exchange(client, ApiKey.SASL_HANDSHAKE, handshake)
    first = await _exchange(client, ApiKey.SASL_AUTHENTICATE, clients.SaslAuthenticateRequest(auth_bytes=scram.first()))
    if first is None or first.error_code:
        return
    proof = clients.SaslAuthenticateRequest(auth_bytes=scram.final(first.auth_bytes))
    end = await _exchange(client, ApiKey.SASL_AUTHENTICATE, proof)
    if end is not None and end.error_code == ErrorCode.NONE:
        scram.check(end.auth_bytes)
        client.logged_in = True


async def _exchange(client: _Client, key: ApiKey, message: Any) -> Any:
    """Return the response, if it is the next one."""
    before = len(client.wire.received)
    version = 1
    client.wire.put(framed(encode_request(key, version, 9, "login", message)))
    await trio.testing.wait_all_tasks_blocked()
    answers = _cut(bytes(client.wire.received[before:]))
    try:
        return decode_response(key, version, answers[0])[1] if len(answers) == 1 else None
    except KafkaWireError:
        return None


_UNREACHABLE_CLOSES = {
    ListenerClose.ANSWER_ELSEWHERE,
    ListenerClose.CROWDED,
    ListenerClose.EXHAUSTED,
    ListenerClose.HUNG_UP_EARLY,
    ListenerClose.SILENT,
    ListenerClose.TLS_FAILED,
}
"""Reasons of a close that need a socket, TLS or other services."""


class EndpointTarget(Subject[bytes]):
    """Listeners with all services, and their clients."""

    name = "endpoint"
    steps = REQUESTS
    expected = frozenset(
        {
            *(key.name for key in _SERVED),
            *(set(ListenerEvent) - {ListenerEvent.CONNECTIONS_ACCEPTED}),
            *(set(ListenerClose) - _UNREACHABLE_CLOSES),
        }
    )

    def __init__(self) -> None:
        self._known = RequestTarget().known

    def make(self, random: Random) -> bytes:
        """Return the steps of a conversation."""
        steps = [Step("open", place, number=random.randrange(9)) for place in range(_PLACES) if random.random() < 0.8]
        steps += [self._step(random) for _ in range(_STEPS)]
        return msgspec.msgpack.encode(steps)

    def check(self, data: bytes, random: Random) -> list[str]:
        """Check that every response is right, and that nothing is left."""
        del random
        conversation = Conversation()
        steps = msgspec.msgpack.decode(data, type=list[Step])
        try:
            trio.run(conversation.play, steps, clock=trio.testing.MockClock(autojump_threshold=0))
        except ExceptionGroup as group:
            error: Exception = group
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            raise error from group
        return sorted(conversation.outcomes)

    def _step(self, random: Random) -> Step:  # noqa: PLR0911 - one case per kind of step
        place = random.randrange(_PLACES)
        match random.randrange(16):
            case 0:
                return Step("pause", number=random.choice((0, 1, 5, 50, 400, 700, 7_000)))
            case 1:
                return Step("log", number=random.randrange(1_000))
            case 2:
                return Step("open", place, number=random.randrange(9))
            case 3:
                return Step("taking", place, number=random.randrange(4))
            case 4:
                return Step("login", place | 1)
            case 5 if random.random() < 0.3:
                return Step("half", place)
            case _:
                return Step("send", place, hostile(random, self._known))
