"""What the replicas of a quorum ask a server: Vote, Begin/EndQuorumEpoch, Fetch and FetchSnapshot, handed to the core.

    listener ─▶ FetchDispatch ─┬─ replica id ≥ 0 ─▶ QuorumService ─▶ mapping ─▶ Receiver.ask ─▶ QuorumReplies
                               └─ consumers ──────▶ the clients' service

Kafka has one Fetch for replicas and consumers; only the replica's id tells them apart. A replica reads to the end of
the leader's log, and says what it holds; a consumer reads below the high watermark. So each service keeps its own
Fetch, with the versions that it serves, and `FetchDispatch` makes one of both.

*The cluster id.* A request may have none: a replica that starts does not know it, and Vote had none once. One that
contradicts ours is refused with INCONSISTENT_CLUSTER_ID, by the core, since what follows depends on roles: only the
leader refuses a Fetch so, a server that does not lead says who does, and none ends by what it hears from a server that
is not an elected leader. Otherwise one server with wrong settings could stop a healthy quorum.

*Who may ask.* A listener for replicas is protected by TLS or SASL; `may_join` says which of the authenticated are
replicas. The others get CLUSTER_AUTHORIZATION_FAILED, as with Kafka's `ClusterAction`. The id of a replica is not bound
to its principal, as in Kafka: a replica of the quorum can speak as another.

*Whole batches* (`FETCH_SIZES`). A fetch may ask for less than one batch has. The core cuts between entries, and part of
a batch would be another batch to the replica. So the core is asked for more until the answer has a whole one. A server
tells by a feature in ApiVersions that it does so, and that it takes signs of life: others are asked for all that fits.

A core that is busy answers BROKER_NOT_AVAILABLE, after which Kafka's replicas ask again.

*What an answer says beside the reply* (`QuorumReplies`, `AnsweringLeader`; neither waits for anything). The records of
an answer are encoded once for all followers: mostly each gets the same. The high watermark of a new leader is not told
before it has committed what it began its epoch with: until then it may lie below what followers were told before.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import trio

from consensus.core import messages as core
from consensus.core.effects import Role
from consensus.core.model import Entry, Index, LogId, ServerId
from consensus.core.status import SoftState
from consensus.protocols.kafka.connections.service import Caller, ServedApi, Service
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode
from consensus.protocols.kraft.wire.mapping import (
    Answering,
    QuorumRequest,
    QuorumResponse,
    RefusedRequest,
    named_endpoints,
    refusal,
    reply_to_wire,
    request_from_wire,
)
from consensus.protocols.kraft.wire.replica_names import Names
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.interfaces import Receiver, next_call

WriteEntries = Callable[[Index, tuple[Entry, ...]], bytes]
"""Record batches of entries, the first of which has this index (`entries.batches_for_replicas`)."""
Learned = Callable[[Mapping[int, tuple[str, int]]], None]
"""Told where replicas can be reached, by id, as a message of the quorum says it."""

FETCH_SIZES: Final = "garlicfarm.fetch.version"
"""The feature of a server that answers a Fetch by its size: with one batch at least, or with nothing for size 0."""
_FETCH_GROWTH: Final = 4
_FIRST_FETCH_VERSION_OF_REPLICAS: Final = 12
"""From here on Fetch says the epoch at the log's end, and the answer where logs part (KIP-595)."""


def _any_caller(_caller: Caller) -> bool:
    return True


def not_noted(_endpoints: Mapping[int, tuple[str, int]]) -> None:
    """Addresses are known otherwise."""


def _ends_batch(_entry: Entry) -> bool:
    return True


class AnsweringLeader:
    """What answers tell of the server. A new leader's high watermark counts once it committed what it began with."""

    def __init__(self, soft_state: Callable[[], SoftState]) -> None:
        self._soft_state = soft_state
        self._began = LogId(0, -1)

    def now(self) -> Answering:
        """At this moment."""
        raft = self._soft_state()
        if raft.role is Role.LEADER and raft.term != self._began.term:
            self._began = LogId(raft.last.index, raft.term)
        return Answering(raft.leader, raft.log_start.index, raft.term, self._began)


class QuorumReplies:
    """The core's replies as responses, with the records of their entries."""

    def __init__(self, names: Names, write_entries: WriteEntries, answering: Callable[[], Answering]) -> None:
        """`answering` tells what the server knows when an answer leaves; it is asked for each."""
        self._names = names
        self._write_entries = write_entries
        self._answering = answering
        self._written: tuple[Index, tuple[Entry, ...], bytes] = 0, (), b""

    def response(self, asked: core.Request, reply: core.Reply) -> QuorumResponse:
        """The response to `asked`; raises `KafkaWireError` for a reply that KRaft has no message for."""
        records = b""
        if isinstance(asked, core.Fetch) and isinstance(reply, core.FetchReply) and reply.entries:
            records = self._records(asked.position.index + 1, reply.entries)
        return reply_to_wire(reply, self._answering(), self._names, records)

    def _records(self, first: Index, entries: tuple[Entry, ...]) -> bytes:
        written_first, written, records = self._written
        if written_first != first or written != entries:
            records = self._write_entries(first, entries)
            self._written = first, entries, records
        return records


class QuorumService:
    """Hands the requests of replicas to a server, and its answers back."""

    def __init__(
        self,
        receiver: Receiver,
        names: Names,
        write_entries: WriteEntries,
        answering: Callable[[], Answering],
        *,
        may_join: Callable[[Caller], bool] = _any_caller,
        learned: Learned = not_noted,
        ends_batch: Callable[[Entry], bool] = _ends_batch,
    ) -> None:
        """See `QuorumReplies`. `ends_batch`: whether an entry is the last one of its batch."""
        self._receiver = receiver
        self._names = names
        self._replies = QuorumReplies(names, write_entries, answering)
        self._may_join = may_join
        self._learned = learned
        self._ends_batch = ends_batch

    def apis(self) -> Mapping[int, ServedApi]:
        """The five of the quorum."""
        fetch = ServedApi(_FIRST_FETCH_VERSION_OF_REPLICAS, VERSIONS[ApiKey.FETCH][1], self.answer)
        others = (ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.FETCH_SNAPSHOT)
        apis: dict[int, ServedApi] = {key: ServedApi(*VERSIONS[key], self.answer) for key in others}
        apis[ApiKey.FETCH] = fetch
        return apis

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        """Of fetches; the level of `kraft.version` is for the one to tell who knows the log."""
        return {FETCH_SIZES: (1, 1, None)}

    async def answer(self, request: QuorumRequest, caller: Caller) -> QuorumResponse:
        """Ask the server. Raises `ServerStoppedError`."""
        if not self._may_join(caller):
            return refusal(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        asked = request_from_wire(request, next_call(), self._names)
        if isinstance(asked, RefusedRequest):
            return asked.response
        endpoints = named_endpoints(request)
        if endpoints:
            self._learned(endpoints)
        try:
            reply = await self._ask(asked)
            while isinstance(asked, core.Fetch) and isinstance(reply, core.FetchReply) and self._is_part(reply.entries):
                asked = replace(asked, max_bytes=_FETCH_GROWTH * asked.max_bytes, correlation=next_call())
                before, reply = reply, await self._ask(asked)
                if not isinstance(reply, core.FetchReply) or len(reply.entries) <= len(before.entries):
                    break
        except ServerBusyError:
            return refusal(request, ErrorCode.BROKER_NOT_AVAILABLE)
        return self._replies.response(asked, reply)

    def _is_part(self, entries: tuple[Entry, ...]) -> bool:
        """Whether these are entries of one batch, whose end is not among them."""
        return bool(entries) and not any(map(self._ends_batch, reversed(entries)))

    async def _ask(self, asked: core.Request) -> core.Reply:
        answered = trio.Event()
        replies: list[core.Reply | None] = []

        def take(reply: core.Reply | None) -> None:
            replies.append(reply)
            answered.set()

        self._receiver.ask(sender_of(asked), asked, take)
        if not replies:
            try:
                await answered.wait()
            except BaseException:
                self._receiver.forget(asked.correlation)
                raise
        if replies[0] is None:
            raise ServerStoppedError("the server has stopped")
        return replies[0]


class FetchDispatch:
    """Two services as one, where both have Fetch: the replicas' and the consumers'."""

    def __init__(self, replicas: Service, consumers: Service) -> None:
        """Raises `ValueError` when asked for `apis` if another API is in both."""
        self._replicas = replicas
        self._consumers = consumers

    def apis(self) -> Mapping[int, ServedApi]:
        """Of both."""
        ours, theirs = self._replicas.apis(), self._consumers.apis()
        twice = ours.keys() & theirs.keys() - {ApiKey.FETCH}
        if twice:
            raise ValueError(f"API {min(twice)} is served twice")
        both = {**ours, **theirs}
        if ApiKey.FETCH in ours and ApiKey.FETCH in theirs:
            both[ApiKey.FETCH] = fetch_dispatch(ours[ApiKey.FETCH], theirs[ApiKey.FETCH])
        return both

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        """Of both."""
        return {**self._replicas.features(), **self._consumers.features()}


def fetch_dispatch(replicas: ServedApi, consumers: ServedApi) -> ServedApi:
    """One Fetch of two."""

    async def answer(request: clients.FetchRequest, caller: Caller) -> Any:
        chosen = replicas if is_of_replica(request) else consumers
        if not chosen.min_version <= caller.api_version <= chosen.max_version:
            return clients.FetchResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, responses=())
        return await chosen.answer(request, caller)

    lowest = min(replicas.min_version, consumers.min_version)
    return ServedApi(lowest, max(replicas.max_version, consumers.max_version), answer)


def is_of_replica(request: clients.FetchRequest) -> bool:
    """Whether a replica asks; consumers say -1. The id has moved into a structure in version 15."""
    return max(request.replica_state.replica_id, request.replica_id) >= 0


def sender_of(asked: core.Request) -> ServerId:
    """The replica that a request names as its sender."""
    match asked:
        case core.RequestVote():
            return asked.candidate
        case core.Fetch() | core.FetchSnapshot():
            return asked.replica
        case _:
            return asked.leader
