"""A listener: accepts Kafka's connections, and serves their requests with the given services.

    accept ─▶ [TLS] ─▶ ┌ frame ─▶ decode ─▶ ApiVersions, SASL: here │ all others: the service ─▶ encode ─▶ frame ┐
                       └──────────────────────────────────────────────────────────────────────────────────────────┘

*In order, one at a time.* The next request of a connection is read after the reply to the previous one. Clients expect
responses in the order of their requests. And a fast client fills its own socket instead of this process's memory. The
consequence is that a waiting fetch delays later requests on its connection. Only commits of offsets and heartbeats
overlap (`look_ahead`), since a commit may wait longer than in Kafka.

*Limits* are listed in docs/reference/kafka.md, unsupported requests in its section 'APIs'. All incomplete frames share
one budget of bytes (`net.receive_budget`), and all untaken replies share another. Each connection has one deadline,
which each step after the login sets again.

*SASL.* Before a required login only ApiVersions, SaslHandshake and SaslAuthenticate are served. On any other listener a
handshake gets ILLEGAL_SASL_STATE, so that a misconfigured client reports the mistake. Version 0 of SaslHandshake is
listed, since librdkafka 2.6 requires it for its login by version 1. A client that uses version 0 is refused.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from os import urandom
from typing import Any, Final

import trio
from msgspec import Struct, field

from consensus.net.accepting import AcceptOptions, AcceptQueue, CloseReason, source_of
from consensus.net.receive_budget import BudgetOptions, ReceiveBudget
from consensus.net.tls_stream import TlsStream
from consensus.net.transfer_time import time_for
from consensus.protocols.kafka.connections.counters import ListenerClose, ListenerEvent
from consensus.protocols.kafka.connections.framing import FrameStream
from consensus.protocols.kafka.connections.look_ahead import LookAhead
from consensus.protocols.kafka.connections.query_budget import QueryBudget
from consensus.protocols.kafka.connections.security import ListenerSecurity, certificate_principal
from consensus.protocols.kafka.connections.service import AskElsewhereError, Caller, ServedApi, Service
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode
from consensus.protocols.kafka.wire.codec import ApiRequest, UnsupportedVersionError, decode_request, encode_response
from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, KafkaWireError, Limits
from consensus.protocols.kafka.wire.scram import Mechanism, ScramError, ScramServer
from consensus.server.block_nursery import block_nursery
from consensus.server.errors import ServerBusyError, ServerStoppedError

_OWN_APIS: Final[Mapping[int, tuple[int, int]]] = {
    ApiKey.SASL_HANDSHAKE: VERSIONS[ApiKey.SASL_HANDSHAKE],
    ApiKey.API_VERSIONS: VERSIONS[ApiKey.API_VERSIONS],
    ApiKey.SASL_AUTHENTICATE: VERSIONS[ApiKey.SASL_AUTHENTICATE],
}
_FIRST_VERSION_WITH_LEVEL_0: Final = 4
"""First version of ApiVersions whose clients accept 0 as the lowest level of a feature."""
_FIRST_HANDSHAKE_WITH_AUTHENTICATE: Final = 1
"""First version of SaslHandshake with SaslAuthenticate.

After version 0, clients send messages without a header, which this listener does not read.
"""
_TOLERANCE: Final = 0.02
"""Fraction of the time limit that a deadline may be early."""
_MAX_FRAME_BYTES_BEFORE_LOGIN: Final = 64 * 1024
_CLOSE_OF: Final[Mapping[CloseReason, ListenerClose]] = {
    CloseReason.CROWDED: ListenerClose.CROWDED,
    CloseReason.SILENT: ListenerClose.SILENT,
    CloseReason.GONE: ListenerClose.HUNG_UP_EARLY,
    CloseReason.EXHAUSTED: ListenerClose.EXHAUSTED,
}
_API_KEY_BYTES: Final = 2
"""Size of the API key at the beginning of a request's header."""


class ListenerOptions(Struct, frozen=True):
    """One listener. `host` is an address of this machine, or empty for all of them; port 0 means any free port."""

    name: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 0
    security: ListenerSecurity = field(default_factory=ListenerSecurity)
    limits: Limits = DEFAULT_LIMITS
    max_connections: int = 512
    max_connections_per_source: int = 256
    max_incomplete_bytes: int = 64 * 2**20
    """Limit of incomplete or unanswered frames, of all connections together."""
    max_untaken_bytes: int = 64 * 2**20
    """Limit of replies that clients have not taken yet, of all connections together."""
    idle_s: float = 600.0
    """Time between two requests; Kafka's `connections.max.idle.ms`."""
    first_s: float = 30.0
    """Time from the connection to the end of TLS and SASL."""
    frame_s: float = 30.0
    """Time from the first byte of a request to its last, in addition to the transfer time of its size
    (`net.transfer_time`)."""
    answer_s: float = 600.0
    """Time limit of a service, above the longest wait of a consumer group for its members (300 s)."""
    send_s: float = 60.0
    """Time for the client to take a reply, in addition to the transfer time of its size."""
    refused_login_s: float = 0.1
    """Delay of the reply to a wrong password; Kafka's `connection.failed.authentication.delay.ms`."""


class _EndedError(Exception):
    """The connection must end, and is counted under the reason."""

    def __init__(self, reason: ListenerClose) -> None:
        super().__init__(reason.meaning)
        self.reason = reason


class _ClientSession(Struct):
    """One connection: its identity and its state."""

    frames: FrameStream
    scope: trio.CancelScope
    host: str
    port: int
    principal: str | None
    must_login: bool
    scram: ScramServer | None = None
    overdue: ListenerClose = ListenerClose.IDLE
    """The reason to report if the connection reaches its deadline."""
    budget: QueryBudget = field(default_factory=QueryBudget)


class _Holding(Struct):
    """Functions that record the bytes that a connection holds; each gets the present number."""

    request: Callable[[int], None]
    answer: Callable[[int], None]
    ahead: LookAhead | None = None
    """The requests that overlap, once the connection is past TLS."""

    def buffered(self, size_bytes: int) -> None:
        """Count `size_bytes` in the buffer, in addition to the overlapping requests."""
        self.request(size_bytes + (0 if self.ahead is None else self.ahead.unanswered_bytes))


class KafkaListener:
    """A listener for Kafka's clients; `open_listener` makes and runs one."""

    def __init__(self, services: Sequence[Service], options: ListenerOptions) -> None:
        """Make a listener; raises `ValueError` if two services have the same API.

        `FetchDispatch` (`kraft.replica.quorum_service`) combines two services with Fetch.
        """
        self.options = options
        self.port = options.port
        """The port of the options; while `run` listens, the actual port."""
        self.counters: Counter[ListenerEvent | ListenerClose] = Counter()
        """Accepted connections; closed connections, by reason; served requests, and bytes."""
        self._services = tuple(services)
        self._apis: dict[int, ServedApi] = {}
        self._served: dict[int, tuple[int, int]] = {}
        self._open: Counter[str] = Counter()
        self._budget = ReceiveBudget(BudgetOptions(others_bytes=options.max_incomplete_bytes))
        self._untaken = ReceiveBudget(BudgetOptions(others_bytes=options.max_untaken_bytes))
        self._merge()

    async def run(
        self,
        bound: Sequence[trio.SocketListener] = (),
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen until canceled; every connection ends with it. `task_status` gets the port. Raises `OSError`.

        `bound` are the caller's sockets, if any; otherwise they are made according to the options.
        """
        options = self.options
        listeners = list(bound) or await trio.open_tcp_listeners(options.port, host=options.host or None)
        self.port = int(listeners[0].socket.getsockname()[1])
        waiting = AcceptOptions(
            unknown_max=options.max_connections,
            unknown_per_source_max=options.max_connections_per_source,
            waiting_s=options.first_s,
        )
        queue = AcceptQueue(
            waiting, arrived=lambda: self._count(ListenerEvent.CONNECTIONS_ACCEPTED), dropped=self._dropped
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(queue.serve, listeners, self._accept)
            task_status.started(self.port)

    async def serve(self, stream: trio.abc.Stream, host: str, port: int) -> None:
        """Serve one connection to its end, and close it."""
        source = source_of(host)
        full = self._open.total() >= self.options.max_connections
        if full or self._open[source] >= self.options.max_connections_per_source:
            self._count(ListenerClose.TOO_MANY if full else ListenerClose.TOO_MANY_OF_SOURCE)
            await trio.aclose_forcefully(stream)
            return
        self._open[source] += 1
        scope = trio.CancelScope(deadline=trio.current_time() + self.options.first_s)
        account = self._budget.open(source, is_server=False, close=scope.cancel)
        answer = self._untaken.open(source, is_server=False, close=scope.cancel)
        holding = _Holding(
            lambda size_bytes: self._budget.hold(account, size_bytes),
            lambda size_bytes: self._untaken.hold(answer, size_bytes),
        )
        try:
            await self._serve(stream, scope, host, port, holding)
        finally:
            self._budget.end(account)
            self._untaken.end(answer)
            self._open[source] -= 1
            if not self._open[source]:
                del self._open[source]

    def _merge(self) -> None:
        apis: dict[int, ServedApi] = {}
        for service in self._services:
            for key, api in service.apis().items():
                if key in apis or key in _OWN_APIS:
                    raise ValueError(f"API {key} is served twice")
                apis[key] = api
        self._apis = apis
        self._served = {key: (api.min_version, api.max_version) for key, api in apis.items()} | dict(_OWN_APIS)

    def _count(self, event: ListenerEvent | ListenerClose) -> None:
        self.counters[event] += 1

    def _dropped(self, _: str, why: CloseReason) -> None:
        self._count(_CLOSE_OF[why])

    async def _accept(self, transport: trio.SocketStream, host: str) -> None:
        try:
            port = int(transport.socket.getpeername()[1])
        except OSError:
            self._count(ListenerClose.HUNG_UP)
            await trio.aclose_forcefully(transport)
            return
        await self.serve(transport, host, port)

    async def _serve(
        self, stream: trio.abc.Stream, scope: trio.CancelScope, host: str, port: int, holding: _Holding
    ) -> None:
        session: _ClientSession | None = None
        try:
            with scope:
                stream = await self._secure(stream)
                must_login = self.options.security.credentials is not None
                frames = FrameStream(stream, self.options.limits.max_request_bytes, holding.buffered)
                if must_login:
                    frames.max_frame_bytes = min(frames.max_frame_bytes, _MAX_FRAME_BYTES_BEFORE_LOGIN)
                session = _ClientSession(frames, scope, host, port, certificate_principal(stream), must_login)
                await self._converse(session, holding)
                self._count(ListenerClose.HUNG_UP)
                with trio.move_on_after(1):
                    await frames.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._count(ListenerClose.BROKEN)
        except UnsupportedVersionError:
            self._count(ListenerClose.UNSERVED_VERSION)
        except KafkaWireError:
            self._count(ListenerClose.MALFORMED)
        except _EndedError as error:
            self._count(error.reason)
        finally:
            holding.ahead = None
            if session is not None:
                session.frames.drop()
            await trio.aclose_forcefully(stream)
        if scope.cancelled_caught:
            overdue = ListenerClose.HANDSHAKE_TIMEOUT if session is None or session.must_login else session.overdue
            if trio.current_time() >= scope.deadline:
                self._count(overdue)
            else:
                is_untaken = overdue is ListenerClose.ANSWER_TIMEOUT
                self._count(ListenerClose.ANSWER_BYTES if is_untaken else ListenerClose.REQUEST_BYTES)

    async def _secure(self, stream: trio.abc.Stream) -> trio.abc.Stream:
        tls = self.options.security.tls
        if tls is None:
            return stream
        if not isinstance(stream, trio.SocketStream):
            raise TypeError("TLS needs a socket")
        secured = TlsStream(stream, tls, server_side=True)
        try:
            await secured.do_handshake()
        except (trio.BrokenResourceError, ValueError, OSError) as error:
            # SSLCertVerificationError is a ValueError.
            raise _EndedError(ListenerClose.TLS_FAILED) from error
        return secured

    async def _converse(self, session: _ClientSession, holding: _Holding) -> None:
        """Serve requests in order; some overlap."""
        if not session.must_login:
            session.scope.deadline = trio.current_time() + self.options.idle_s

        async def send(response: bytes | None, size_bytes: int) -> None:
            await self._respond_behind(session, holding, response, size_bytes)

        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            ahead = holding.ahead = LookAhead(nursery, send)
            try:
                await self._read_requests(session, holding, ahead)
            except Exception as error:  # noqa: BLE001 - raised below: out of the nursery it would be in a group
                failure = error
                nursery.cancel_scope.cancel()
        failure = ahead.failure or failure
        if failure is not None:
            raise failure

    async def _read_requests(self, session: _ClientSession, holding: _Holding, ahead: LookAhead) -> None:
        frames, options = session.frames, self.options
        while await frames.begin():
            if not frames.has_frame:
                self._expect(
                    session, ListenerClose.REQUEST_INCOMPLETE, options.frame_s + time_for(frames.announced_bytes)
                )
            frame = await frames.receive()
            self._expect(session, ListenerClose.SERVICE_TIMEOUT, options.answer_s)
            if self._overlaps(frame):
                await ahead.begin(partial(self._answer, session, frame), len(frame))
                holding.buffered(0)
            else:
                await ahead.drain()
                response = await self._answer(session, frame)
                size_bytes = 0 if response is None else len(response)
                if response is not None and not frames.send_now(response):
                    response = None  # Free the response: the stream has its own copy.
                    self._expect(session, ListenerClose.ANSWER_TIMEOUT, options.send_s + time_for(size_bytes))
                    holding.answer(size_bytes)
                    await frames.flush()
                    holding.answer(0)
                self._count_request(len(frame), size_bytes)
                holding.request(0)
                if pause_s := session.budget.pause_s:
                    await trio.sleep(pause_s)
            self._expect(session, ListenerClose.IDLE, options.idle_s)
            if frames.has_begun:
                # Yield here: a client may send thousands of requests together, and none of the steps above may have
                # waited.
                await trio.lowlevel.checkpoint()
        await ahead.drain()

    def _overlaps(self, frame: bytes) -> bool:
        api = self._apis.get(int.from_bytes(frame[:_API_KEY_BYTES]))
        return api is not None and api.overlaps

    async def _respond_behind(
        self, session: _ClientSession, holding: _Holding, response: bytes | None, size_bytes: int
    ) -> None:
        """Send the response to an overlapping request, within its own time: the deadline is for later requests."""
        frames, sent_bytes = session.frames, 0 if response is None else len(response)
        if response is not None and not frames.send_now(response):
            holding.answer(sent_bytes)
            with trio.move_on_after(self.options.send_s + time_for(sent_bytes)) as taking:
                await frames.flush()
            if taking.cancelled_caught:
                raise _EndedError(ListenerClose.ANSWER_TIMEOUT)
            holding.answer(0)
        holding.buffered(-size_bytes)
        self._count_request(size_bytes, sent_bytes)

    def _count_request(self, received_bytes: int, sent_bytes: int) -> None:
        self.counters[ListenerEvent.REQUESTS_ANSWERED] += 1
        self.counters[ListenerEvent.BYTES_RECEIVED] += received_bytes
        self.counters[ListenerEvent.BYTES_SENT] += sent_bytes

    def _expect(self, session: _ClientSession, overdue: ListenerClose, within_s: float) -> None:
        session.overdue = overdue
        if session.must_login:
            return
        deadline_s = trio.current_time() + within_s
        # A change of the deadline would cost more than all else in this function. So in steady traffic the old deadline
        # stays, which is slightly too early.
        if abs(session.scope.deadline - deadline_s) > within_s * _TOLERANCE:
            session.scope.deadline = deadline_s

    async def _answer(self, session: _ClientSession, frame: bytes) -> bytes | None:
        try:
            request = decode_request(frame, self._served, self.options.limits)
        except UnsupportedVersionError as error:
            if error.api_key != ApiKey.API_VERSIONS:
                raise
            versions = self._api_versions(ErrorCode.UNSUPPORTED_VERSION, 0)
            return encode_response(ApiKey.API_VERSIONS, 0, error.correlation_id, versions)
        match request.message:
            case clients.ApiVersionsRequest():
                response: Any = self._api_versions(ErrorCode.NONE, request.api_version)
            case clients.SaslHandshakeRequest():
                response = self._handshake(session, request)
            case clients.SaslAuthenticateRequest():
                response = await self._authenticate(session, request)
            case _:
                response = await self._call_service(session, request)
        if response is None:
            return None
        return _encoded(request, response)

    async def _call_service(self, session: _ClientSession, request: ApiRequest) -> Any:
        if session.must_login:
            raise _EndedError(ListenerClose.REQUEST_BEFORE_LOGIN)
        caller = Caller(
            client_id=request.client_id,
            principal=session.principal,
            host=session.host,
            port=session.port,
            api_version=request.api_version,
            correlation_id=request.correlation_id,
            listener=self.options.name,
            budget=session.budget,
        )
        try:
            return await self._apis[request.api_key].answer(request.message, caller)
        except (ServerBusyError, ServerStoppedError) as error:
            raise _EndedError(ListenerClose.SERVER_BUSY) from error
        except AskElsewhereError as error:
            raise _EndedError(ListenerClose.ANSWER_ELSEWHERE) from error

    def _api_versions(self, error_code: ErrorCode, version: int) -> clients.ApiVersionsResponse:
        self._merge()
        features = {name: range_ for service in self._services for name, range_ in service.features().items()}
        # Clients with earlier versions treat a lowest level of 0 as an error.
        lowest_level = 0 if version >= _FIRST_VERSION_WITH_LEVEL_0 else 1
        return clients.ApiVersionsResponse(
            error_code=error_code,
            api_keys=tuple(
                clients.ApiVersionsResponseApi(api_key=key, min_version=lowest, max_version=highest)
                for key, (lowest, highest) in sorted(self._served.items())
            ),
            supported_features=tuple(
                clients.ApiVersionsResponseSupportedFeature(
                    name=name, min_version=max(lowest, lowest_level), max_version=highest
                )
                for name, (lowest, highest, _) in features.items()
            ),
            finalized_features_epoch=0,
            finalized_features=tuple(
                clients.ApiVersionsResponseFinalizedFeature(name=name, min_version_level=level, max_version_level=level)
                for name, (_, _, level) in features.items()
                if level
            ),
        )

    def _handshake(self, session: _ClientSession, request: ApiRequest) -> clients.SaslHandshakeResponse:
        security, mechanism = self.options.security, request.message.mechanism
        if security.credentials is None or not session.must_login:
            return clients.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if request.api_version < _FIRST_HANDSHAKE_WITH_AUTHENTICATE:
            return clients.SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        names = tuple(known.value for known in security.mechanisms)
        if mechanism not in names:
            return clients.SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=names)
        session.scram = ScramServer(Mechanism(mechanism), security.credentials, urandom)
        return clients.SaslHandshakeResponse(mechanisms=names)

    async def _authenticate(self, session: _ClientSession, request: ApiRequest) -> clients.SaslAuthenticateResponse:
        scram = session.scram
        if scram is None or not session.must_login:
            return clients.SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, auth_bytes=b"")
        try:
            answer = scram.respond(request.message.auth_bytes)
        except ScramError as error:
            await trio.sleep(self.options.refused_login_s)
            code, text = ErrorCode.SASL_AUTHENTICATION_FAILED, f"authentication failed: {error}"
            refusal = clients.SaslAuthenticateResponse(error_code=code, error_message=text, auth_bytes=b"")
            await session.frames.send(_encoded(request, refusal))
            await session.frames.aclose()
            raise _EndedError(ListenerClose.LOGIN_FAILED) from error
        if scram.user is not None:
            session.principal, session.must_login = f"User:{scram.user}", False
            session.frames.max_frame_bytes = self.options.limits.max_request_bytes
            self._count(ListenerEvent.LOGINS)
        return clients.SaslAuthenticateResponse(auth_bytes=answer)


def _encoded(request: ApiRequest, response: Any) -> bytes:
    try:
        return encode_response(request.api_key, request.api_version, request.correlation_id, response)
    except KafkaWireError as error:
        raise _EndedError(ListenerClose.ANSWER_UNENCODABLE) from error


@asynccontextmanager
async def open_listener(
    services: Sequence[Service], options: ListenerOptions | None = None
) -> AsyncIterator[KafkaListener]:
    """Open a running listener; it and its connections end with the block. Raises `OSError` if it cannot listen."""
    listener = KafkaListener(services, options or ListenerOptions())
    async with block_nursery() as nursery:
        await nursery.start(listener.run)
        yield listener
