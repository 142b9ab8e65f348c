"""Requests of replicas to a server: Vote, Begin/EndQuorumEpoch, Fetch and FetchSnapshot, passed to the core.

    listener ─▶ FetchDispatch ─┬─ replica id ≥ 0 ─▶ QuorumService ─▶ mapping ─▶ `Receiver.ask` ─▶ QuorumReplies
                               └─ consumers ──────▶ the clients' service

Kafka has one Fetch for replicas and consumers. A replica reads to the end of the leader's log, and reports its
position; a consumer reads below the high watermark. So each service has its own Fetch.

docs/reference/kraft.md has the rules of the cluster id and of authorization ('Trust'): `may_join` selects the replicas
among the authenticated clients. Others get CLUSTER_AUTHORIZATION_FAILED, as with Kafka's `ClusterAction`.

*Whole batches* (`FETCH_SIZES`). If a fetch requests less than one batch, the core is queried for more until the reply
has a whole one. The reply of a busy core is BROKER_NOT_AVAILABLE; then Kafka's replicas retry.

*Replies* (`QuorumReplies`, `AnsweringLeader`). The records of a reply are encoded once for all followers. A new leader
omits the high watermark until it has committed its first entries, because followers may know a higher value.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import trio
from msgspec.structs import replace

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
"""Encodes entries as record batches, given the index of the first entry (`entries.batches_for_replicas`)."""
Learned = Callable[[Mapping[int, tuple[str, int]]], None]
"""Receives addresses of replicas, by id, from a message of the quorum."""

FETCH_SIZES: Final = "garlicfarm.fetch.version"
"""The feature of a server that respects the size of a Fetch: it returns at least one batch, or nothing for size 0."""
_FETCH_GROWTH: Final = 4
_FIRST_FETCH_VERSION_OF_REPLICAS: Final = 12
"""From here on Fetch contains the epoch at the log's end, and the reply the place of divergence (KIP-595)."""


def _any_caller(_caller: Caller) -> bool:
    return True


def not_noted(_endpoints: Mapping[int, tuple[str, int]]) -> None:
    """Ignore the addresses, because another source provides them."""


def _ends_batch(_entry: Entry) -> bool:
    return True


class AnsweringLeader:
    """The server's data for replies. A new leader's high watermark counts once it has committed its first entries."""

    def __init__(self, soft_state: Callable[[], SoftState]) -> None:
        self._soft_state = soft_state
        self._began = LogId(0, -1)

    def now(self) -> Answering:
        """Return the present data."""
        raft = self._soft_state()
        if raft.role is Role.LEADER and raft.term != self._began.term:
            self._began = LogId(raft.last.index, raft.term)
        return Answering(raft.leader, raft.log_start.index, raft.term, self._began)


class QuorumReplies:
    """The core's replies as responses, with the records of their entries."""

    def __init__(self, names: Names, write_entries: WriteEntries, answering: Callable[[], Answering]) -> None:
        """Make the converter; `answering` returns the server's data when a reply is sent."""
        self._names = names
        self._write_entries = write_entries
        self._answering = answering
        self._written: tuple[Index, tuple[Entry, ...], bytes] = 0, (), b""

    def response(self, request: core.Request, reply: core.Reply) -> QuorumResponse:
        """Return the response to `request`; raises `KafkaWireError` for a reply without a message in KRaft."""
        records = b""
        if isinstance(request, core.Fetch) and isinstance(reply, core.FetchReply) and reply.entries:
            records = self._records(request.position.index + 1, reply.entries)
        return reply_to_wire(reply, self._answering(), self._names, records)

    def _records(self, first: Index, entries: tuple[Entry, ...]) -> bytes:
        written_first, written, records = self._written
        if written_first != first or written != entries:
            records = self._write_entries(first, entries)
            self._written = first, entries, records
        return records


class QuorumService:
    """A `Service` that passes requests of replicas to a server, and returns the server's replies."""

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
        """See `QuorumReplies`. `ends_batch` returns True for the last entry of a batch."""
        self._receiver = receiver
        self._names = names
        self._replies = QuorumReplies(names, write_entries, answering)
        self._may_join = may_join
        self._learned = learned
        self._ends_batch = ends_batch

    def apis(self) -> Mapping[int, ServedApi]:
        """Return the five APIs of the quorum."""
        fetch = ServedApi(_FIRST_FETCH_VERSION_OF_REPLICAS, VERSIONS[ApiKey.FETCH][1], self.answer)
        others = (ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.FETCH_SNAPSHOT)
        apis: dict[int, ServedApi] = {key: ServedApi(*VERSIONS[key], self.answer) for key in others}
        apis[ApiKey.FETCH] = fetch
        return apis

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        """Return the feature of fetches; `AdminService` reports the level of `kraft.version`."""
        return {FETCH_SIZES: (1, 1, None)}

    async def answer(self, request: QuorumRequest, caller: Caller) -> QuorumResponse:
        """Pass a request to the core and return the response. Raises `ServerStoppedError`."""
        if not self._may_join(caller):
            return refusal(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        core_request = request_from_wire(request, next_call(), self._names)
        if isinstance(core_request, RefusedRequest):
            return core_request.response
        endpoints = named_endpoints(request)
        if endpoints:
            self._learned(endpoints)
        try:
            reply = await self._call_server(core_request)
            while (
                isinstance(core_request, core.Fetch)
                and isinstance(reply, core.FetchReply)
                and self._is_part(reply.entries)
            ):
                core_request = replace(
                    core_request, max_bytes=_FETCH_GROWTH * core_request.max_bytes, correlation=next_call()
                )
                before, reply = reply, await self._call_server(core_request)
                if not isinstance(reply, core.FetchReply) or len(reply.entries) <= len(before.entries):
                    break
        except ServerBusyError:
            return refusal(request, ErrorCode.BROKER_NOT_AVAILABLE)
        return self._replies.response(core_request, reply)

    def _is_part(self, entries: tuple[Entry, ...]) -> bool:
        """Return True if these are entries of one batch without its end."""
        return bool(entries) and not any(map(self._ends_batch, reversed(entries)))

    async def _call_server(self, request: core.Request) -> core.Reply:
        reply_received = trio.Event()
        replies: list[core.Reply | None] = []

        def take(reply: core.Reply | None) -> None:
            replies.append(reply)
            reply_received.set()

        self._receiver.ask(sender_of(request), request, take)
        if not replies:
            try:
                await reply_received.wait()
            except BaseException:
                self._receiver.forget(request.correlation)
                raise
        if replies[0] is None:
            raise ServerStoppedError("the server has stopped")
        return replies[0]


class FetchDispatch:
    """Combines two services that both have Fetch: the replicas' and the consumers'."""

    def __init__(self, replicas: Service, consumers: Service) -> None:
        """Combine two services; `apis` raises `ValueError` if another API than Fetch is in both."""
        self._replicas = replicas
        self._consumers = consumers

    def apis(self) -> Mapping[int, ServedApi]:
        """Return the APIs of both."""
        of_replicas, of_consumers = self._replicas.apis(), self._consumers.apis()
        duplicates = of_replicas.keys() & of_consumers.keys() - {ApiKey.FETCH}
        if duplicates:
            raise ValueError(f"API {min(duplicates)} is served twice")
        both = {**of_replicas, **of_consumers}
        if ApiKey.FETCH in of_replicas and ApiKey.FETCH in of_consumers:
            both[ApiKey.FETCH] = fetch_dispatch(of_replicas[ApiKey.FETCH], of_consumers[ApiKey.FETCH])
        return both

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        """Return the features of both."""
        return {**self._replicas.features(), **self._consumers.features()}


def fetch_dispatch(replicas: ServedApi, consumers: ServedApi) -> ServedApi:
    """Combine two services with Fetch."""

    async def answer(request: clients.FetchRequest, caller: Caller) -> Any:
        chosen = replicas if is_of_replica(request) else consumers
        if not chosen.min_version <= caller.api_version <= chosen.max_version:
            return clients.FetchResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, responses=())
        return await chosen.answer(request, caller)

    lowest = min(replicas.min_version, consumers.min_version)
    return ServedApi(lowest, max(replicas.max_version, consumers.max_version), answer)


def is_of_replica(request: clients.FetchRequest) -> bool:
    """Return True for a replica's request; consumers have -1. The id has moved into a structure in version 15."""
    return max(request.replica_state.replica_id, request.replica_id) >= 0


def sender_of(request: core.Request) -> ServerId:
    """Return the replica that a request names as its sender."""
    match request:
        case core.RequestVote():
            return request.candidate
        case core.Fetch() | core.FetchSnapshot():
            return request.replica
        case _:
            return request.leader
