"""The connections of a KRaft quorum, with requests and responses as bytes of Kafka's protocol.

    core ─▶ mapping ─▶ codec ─▶ bytes ──a connection, in order──▶ codec ─▶ mapping ─▶ core
    core ◀─ mapping ◀─ codec ◀─ bytes ◀───────────────────────── codec ◀─ mapping ◀─ core

The production transport and service run here; only the streams, and the tasks that wait for them, are replaced. Entries
are sent as record batches.

*The asker* has two connections to a peer, like `KraftTransport`: a waiting fetch delays only fetches. A request goes to
the address of the peer in the configuration, regardless of the server that listens there now. A successor has the same
id and another directory. When a connection opens, the asker receives the other end's version of Vote. Responses arrive
in the order of the requests, so the next one belongs to the oldest request; the correlation id confirms it. If requests
cannot be sent, the newest of each kind waits. The asker pauses between its tries, longer after each failure.

*The answerer* processes one request of a connection after another. It may build a response a moment after the reply of
the core, when the core may be in another epoch.

A connection breaks when the link is cut, either end stops, the peer's address changes, or a request has waited too
long. Everything in transit is lost then.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

from consensus.core.events import Event, PeerExtensions
from consensus.core.features import Extensions
from consensus.core.messages import Fetch, Reply, Request
from consensus.core.model import ReplicaKey, ServerId
from consensus.net import Backoff
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode, version_for
from consensus.protocols.kafka.wire.codec import (
    ApiRequest,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kafka.wire.messages_clients import FetchResponse
from consensus.protocols.kafka.wire.schemas import api_key_of
from consensus.protocols.kraft.replica.peer_transport import Purpose, has_no_form, purpose_of
from consensus.protocols.kraft.replica.quorum_service import sender_of
from consensus.protocols.kraft.wire.mapping import (
    FIRST_PRE_VOTE_VERSION,
    QuorumResponse,
    RefusedRequest,
    named_endpoints,
    refusal,
    reply_from_wire,
    request_from_wire,
    request_to_wire,
)
from consensus.protocols.kraft.wire.replica_names import replica
from tests.simulation.consensus.checker import ViolationError
from tests.simulation.consensus.connections import TcpConnections, Way
from tests.simulation.consensus.kafka_node import KafkaNode, host_of
from tests.simulation.consensus.marks import Marks
from tests.simulation.consensus.profile import KafkaRates, Profile

_CLIENT_ID: Final = "raft-client"
_WAITING_MAX: Final = 64
_LATE_ANSWER_MS: Final = 4


class Host(Protocol):
    """A server as its connections see it."""

    @property
    def node(self) -> KafkaNode | None:
        """Return the parts of its run; None while it is down."""

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Return the supported versions of the quorum's requests, by API."""

    def when_awake(self, action: Callable[[], None]) -> None:
        """Run `action` now or after a pause, if this run has not ended by then."""

    def step(self, event: Event) -> None:
        """Pass an event to its core."""


class Judge(Protocol):
    """Rules for the messages between servers."""

    def check_response(self, answerer: ServerId, request: Request, response: QuorumResponse) -> None:
        """Check a response when it leaves."""

    def response_received(self, asker: ServerId, request: Request, response: QuorumResponse) -> None:
        """Check a received response before the core processes it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request without a response."""

    correlation_id: int
    api_key: ApiKey
    version: int
    request: Request


@dataclass(slots=True, eq=False)
class _Connection:
    lane: "_Lane"
    answerer: ServerId
    endpoint: tuple[str, int]
    versions: Mapping[int, tuple[int, int]]
    waiting: deque[_Waiting] = field(default_factory=deque)
    unread: deque[bytes] = field(default_factory=deque)
    """Frames received while the answerer processes an earlier request."""
    is_answering: bool = False
    correlation_id: int = 0
    requests_until_ms: int = 0
    responses_until_ms: int = 0
    is_broken: bool = False


@dataclass(slots=True, eq=False)
class _Lane:
    """The connection from one run of a server to one peer, for one purpose."""

    asker: ServerId
    node: KafkaNode
    peer: ReplicaKey
    connection: _Connection | None = None
    queued: dict[type[Request], tuple[Request, int]] = field(default_factory=dict)
    """The newest request of each kind that waits for a connection, and its deadline."""
    is_busy: bool = False
    """True while it connects, or pauses between two tries."""
    backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self.backoff = self.node.transport.backoff()


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """A request passed to the answerer's core."""

    connection: _Connection
    incoming: ApiRequest
    request: Request
    node: KafkaNode


class KafkaLinks(TcpConnections[_Connection]):
    """All connections of one history."""

    def __init__(
        self,
        random: Random,
        profile: Profile,
        rates: KafkaRates,
        hosts: Mapping[ServerId, Host],
        judge: Judge,
        marks: Marks,
        way: Way,
    ) -> None:
        super().__init__(random, way)
        self._rates = rates
        self._timeout_ms = profile.reply_timeout_ms
        self._hosts = hosts
        self._judge = judge
        self._marks = marks
        self._lanes: dict[tuple[ServerId, ReplicaKey, Purpose], _Lane] = {}
        self._taken: dict[tuple[ServerId, int], _Taken] = {}
        # A forger's messages have correlation 1.
        self._correlation = 1

    def send_request(self, asker: ServerId, recipient: ServerId, request: Request) -> None:
        node, peer, purpose = self._hosts[asker].node, replica(recipient), purpose_of(request)
        if node is None:
            return
        lane = self._lanes.get((asker, peer, purpose))
        if lane is None:
            lane = self._lanes[asker, peer, purpose] = _Lane(asker, node, peer)
        connection = lane.connection
        if connection is not None and node.names.endpoint(peer) != connection.endpoint:
            self._marks.see("connection ended because the peer has another address")
            self._break(connection)
        if lane.connection is not None:
            self._start(lane.connection, request)
            return
        lane.queued[type(request)] = request, self._way.now + self._timeout_ms
        if not lane.is_busy:
            self._connect(lane)

    def send_reply(self, answerer: ServerId, recipient: ServerId, reply: Reply) -> None:
        """Send the reply of a core to a request."""
        taken = self._taken.pop((answerer, reply.correlation), None)
        if taken is None or sender_of(taken.request) != recipient:
            self.lost += 1
            return
        late_ms = self._random.randrange(_LATE_ANSWER_MS) if self._random.random() < self._rates.late_answers else 0
        self._way.after(late_ms, lambda: self._in_run(taken.node, answerer, lambda: self._make_answer(taken, reply)))

    def stopped(self, server: ServerId) -> None:
        """Break all connections of a stopped server."""
        stopping = {key: lane for key, lane in self._lanes.items() if key[0] == server}
        for key in stopping:
            del self._lanes[key]
        for lane in (*stopping.values(), *self._lanes.values()):
            if lane.connection is not None and server in (lane.asker, lane.connection.answerer):
                self._break(lane.connection)
        self._taken = {key: taken for key, taken in self._taken.items() if key[0] != server}

    def keep_members(self, server: ServerId, members: frozenset[ServerId]) -> None:
        """Close the server's idle connections to non-members."""
        for key, lane in list(self._lanes.items()):
            idle = not lane.queued and (lane.connection is None or not lane.connection.waiting)
            if key[0] == server and key[1] not in members and idle:
                del self._lanes[key]
                if lane.connection is not None:
                    self._break(lane.connection)

    def _connect(self, lane: _Lane) -> None:
        lane.is_busy = True
        endpoint = lane.node.names.endpoint(lane.peer)
        if endpoint is None:
            self._marks.see("request to a replica without a known address")
            self.lost += len(lane.queued)
            lane.queued.clear()
            lane.is_busy = False
            return
        delay_ms = self._way.draw_delay_ms() + self._way.draw_delay_ms()
        self._way.after(delay_ms, lambda: self._of_lane(lane, lambda: self._connected(lane, endpoint)))

    def _connected(self, lane: _Lane, endpoint: tuple[str, int]) -> None:
        answerer = self._listening_at(endpoint[0])
        if answerer is None or not self._is_open(lane.asker, answerer):
            self._rest(lane)
            return
        if answerer != lane.peer:
            self._marks.see("connection to a server with another directory than the peer's")
        versions = self._hosts[answerer].versions
        connection = lane.connection = _Connection(lane, answerer, endpoint, versions)
        lane.is_busy = False
        self._drop_expired(lane)
        queued, lane.queued = lane.queued, {}
        vote = version_for(ApiKey.VOTE, versions)
        pre_vote = vote is not None and vote >= FIRST_PRE_VOTE_VERSION
        self._hosts[lane.asker].step(PeerExtensions(lane.peer, Extensions(pre_vote=pre_vote)))
        for request, _ in queued.values():
            if not connection.is_broken:
                self._start(connection, request)

    def _listening_at(self, host: str) -> ServerId | None:
        return next((each for each in self._hosts if self._hosts[each].node and host_of(each) == host), None)

    def _rest(self, lane: _Lane) -> None:
        """Pause before the next try, longer after each failure."""
        lane.is_busy = True
        pause_ms = math.ceil(lane.backoff.next_s() * 1000)
        self._way.after(pause_ms, lambda: self._of_lane(lane, lambda: self._try_again(lane)))

    def _try_again(self, lane: _Lane) -> None:
        lane.is_busy = False
        self._drop_expired(lane)
        if lane.queued:
            self._marks.see("request sent again after a pause")
            self.repeated += len(lane.queued)
            self._connect(lane)

    def _drop_expired(self, lane: _Lane) -> None:
        kept = {kind: each for kind, each in lane.queued.items() if each[1] > self._way.now}
        self.lost += len(lane.queued) - len(kept)
        lane.queued = kept

    def _start(self, connection: _Connection, request: Request) -> None:
        lane, versions = connection.lane, connection.versions
        if has_no_form(request, version_for(ApiKey.VOTE, versions)):
            self._marks.see("pre-vote unsupported by the peer's version")
            return
        if len(connection.waiting) >= _WAITING_MAX:
            self.lost += 1
            return
        connection.correlation_id += 1
        try:
            message = request_to_wire(request, lane.peer, lane.node.names)
            api_key = api_key_of(message)
            version = versions[api_key][1]
            frame = encode_request(api_key, version, connection.correlation_id, _CLIENT_ID, message)
        except KafkaWireError as error:
            raise ViolationError(f"wire: {lane.asker} has {request}, which cannot be sent: {error}") from error
        waiting = _Waiting(connection.correlation_id, api_key, version, request)
        connection.waiting.append(waiting)
        connection.requests_until_ms = self._arrival_ms(connection, connection.requests_until_ms)
        self._at(connection.requests_until_ms, lambda: self._arrive(connection, frame))
        wait_ms = request.max_wait_ms if isinstance(request, Fetch) else 0
        self._way.after(self._timeout_ms + wait_ms, lambda: self._check_age(connection, waiting))

    def _check_age(self, connection: _Connection, waiting: _Waiting) -> None:
        if not connection.is_broken and any(each is waiting for each in connection.waiting):
            self._break(connection)

    def _arrive(self, connection: _Connection, frame: bytes) -> None:
        if self._is_whole(connection, connection.lane.asker, connection.answerer):
            connection.unread.append(frame)
            self._hosts[connection.answerer].when_awake(lambda: self._read(connection))

    def _read(self, connection: _Connection) -> None:
        """Process the next request after the response to the previous one."""
        answerer = connection.answerer
        node = self._hosts[answerer].node
        if connection.is_broken or connection.is_answering or not connection.unread or node is None:
            return
        connection.is_answering = True
        try:
            incoming = decode_request(connection.unread.popleft(), self._hosts[answerer].versions)
        except KafkaWireError as error:
            raise ViolationError(f"wire: {connection.lane.asker} sends an invalid message: {error}") from error
        self._correlation += 1
        request = request_from_wire(incoming.message, self._correlation, node.names)
        if isinstance(request, RefusedRequest):
            self._marks.see("request for another directory refused")
            self._respond(connection, incoming, request.response)
            return
        node.names.learned(named_endpoints(incoming.message))
        if self._random.random() < self._rates.busy:
            self._marks.see("request refused by a busy server")
            self._respond(connection, incoming, refusal(incoming.message, ErrorCode.BROKER_NOT_AVAILABLE))
            return
        self._taken[answerer, self._correlation] = _Taken(connection, incoming, request, node)
        self._way.deliver(sender_of(request), answerer, request)

    def _make_answer(self, taken: _Taken, reply: Reply) -> None:
        connection = taken.connection
        if connection.is_broken:
            self.lost += 1
            return
        try:
            response = taken.node.replies.response(taken.request, reply)
        except KafkaWireError as error:
            raise ViolationError(f"wire: {connection.answerer} has {reply}, which cannot be sent: {error}") from error
        self._judge.check_response(connection.answerer, taken.request, response)
        self._respond(connection, taken.incoming, response)

    def _respond(self, connection: _Connection, incoming: ApiRequest, response: Any) -> None:
        frame = encode_response(incoming.api_key, incoming.api_version, incoming.correlation_id, response)
        connection.is_answering = False
        connection.responses_until_ms = self._arrival_ms(connection, connection.responses_until_ms)
        self._at(connection.responses_until_ms, lambda: self._arrive_back(connection, frame))
        self._read(connection)

    def _arrive_back(self, connection: _Connection, frame: bytes) -> None:
        if self._is_whole(connection, connection.answerer, connection.lane.asker):
            self._hosts[connection.lane.asker].when_awake(lambda: self._take(connection, frame))

    def _take(self, connection: _Connection, frame: bytes) -> None:
        """Process a response; it belongs to the oldest request."""
        lane = connection.lane
        if connection.is_broken:
            self.lost += 1
            return
        waiting, names = connection.waiting.popleft(), lane.node.names
        correlation_id, response = decode_response(waiting.api_key, waiting.version, frame)
        if correlation_id != waiting.correlation_id:
            raise ViolationError(f"wire: response {correlation_id} to request {waiting.correlation_id}")
        lane.backoff.reset()
        names.learned(named_endpoints(response))
        try:
            reply = reply_from_wire(response, waiting.request, names, lane.node.transport.read_entries)
        except KafkaWireError as error:
            if not has_no_raft_meaning(response):
                raise ViolationError(f"wire: {connection.answerer} sends an invalid response: {error}") from error
            self._marks.see("response without information about the quorum")
            return
        self._judge.response_received(lane.asker, waiting.request, response)
        self._way.deliver(lane.peer, lane.asker, reply)

    def _in_run(self, node: KafkaNode, server: ServerId, action: Callable[[], None]) -> None:
        if self._hosts[server].node is node:
            self._hosts[server].when_awake(action)

    def _of_lane(self, lane: _Lane, action: Callable[[], None]) -> None:
        is_kept = any(each is lane for each in self._lanes.values())
        if is_kept and lane.connection is None:
            self._in_run(lane.node, lane.asker, action)

    def _is_up(self, server: ServerId) -> bool:
        return self._hosts[server].node is not None

    def _is_open(self, one: ServerId, other: ServerId) -> bool:
        return self._way.reaches(one, other) and self._way.reaches(other, one)

    def _break(self, connection: _Connection) -> None:
        if connection.is_broken:
            return
        lane = connection.lane
        connection.is_broken = True
        self.broken += 1
        self.lost += len(connection.waiting)
        lane.connection = None
        if self._hosts[lane.asker].node is lane.node:
            self._rest(lane)


def has_no_raft_meaning(response: QuorumResponse) -> bool:
    """Return True for an error without a meaning for the core: of a busy server, or for another replica."""
    topics = response.responses if isinstance(response, FetchResponse) else response.topics
    codes = {response.error_code, *(partition.error_code for topic in topics for partition in topic.partitions)}
    return bool(codes & {ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.INVALID_VOTER_KEY})
