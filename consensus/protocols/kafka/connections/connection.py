"""A connection to a server of Kafka's protocol, from the client's side.

    connect ─▶ TCP ─▶ [TLS] ─▶ ApiVersions ─▶ [SaslHandshake, SaslAuthenticate twice] ─▶ KafkaConnection
    `start(message, on_reply)`   sends a request immediately, in the newest common version
    `ask(message)`               sends a request, and waits for the response
    `run()`                      receives the replies

Replies come in the order of the requests, so the next frame belongs to the head of a queue. If the head does not get
its reply in time, the connection ends, as in Kafka's clients: later replies would wait for it. The connection has one
deadline. If the request has its reply when the deadline passes, the deadline is set for the next request. So a request
does not cost a task, a scope, or a change of the deadline.

The timeout detects an unresponsive peer. Bytes of an incomplete reply extend it (`net.transfer_time`), and `arriving`
reports them to the caller: a slow reply would otherwise be requested again and again. A larger request has a longer
timeout.

ApiVersions is sent in its newest known version. An older server replies in version 0 with error 35 and its versions,
and gets a second request (KIP-511). A response does not contain its version, but it begins with the error code in every
version.
"""

import math
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from os import urandom
from typing import Any, Final

import trio
from msgspec import Struct, field

from consensus.core.model import endpoint_text
from consensus.net.failed_connection import connection_failure
from consensus.net.tls_stream import TlsStream
from consensus.net.transfer_time import TransferTime, time_for
from consensus.protocols.kafka.connections.framing import FrameStream
from consensus.protocols.kafka.connections.security import ClientSecurity, Login
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode, error_name, version_for
from consensus.protocols.kafka.wire.codec import decode_response, encode_request
from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, KafkaWireError, Limits
from consensus.protocols.kafka.wire.schemas import api_key_of
from consensus.protocols.kafka.wire.scram import ScramClient
from consensus.server.block_nursery import block_nursery
from consensus.server.callbacks import run_callback
from consensus.server.pending_calls import CallbackResult

_SOFTWARE: Final = ("garlic-farm", "1")
_CORRELATION_MODULUS: Final = 2**31
_ERROR_OF_API_VERSIONS: Final = struct.Struct(">ih")
"""Correlation id and error code, at the beginning of the response in every version."""

OnReply = Callable[[Any | None], None]
"""Gets the response, or None if no response will come."""
Arriving = Callable[[], None]
"""Called each time when bytes of an incomplete response have arrived."""


def not_reported() -> None:
    """Do nothing when bytes arrive."""


class KafkaConnectionError(Exception):
    """No connection, or no reply on it; the text contains the peer and the reason."""


class DialOptions(Struct, frozen=True):
    """Options of a connection.

    The times are Kafka's `socket.connection.setup.timeout.ms` and `request.timeout.ms`, with shorter defaults.
    """

    client_id: str = "garlic-farm"
    security: ClientSecurity = field(default_factory=ClientSecurity)
    limits: Limits = DEFAULT_LIMITS
    connect_timeout_ms: int = 5_000
    request_timeout_ms: int = 2_000
    max_waiting: int = 64
    """Limit of requests without a reply."""


class _SentRequest(Struct, frozen=True):
    correlation_id: int
    api_key: ApiKey
    version: int
    deadline_s: float
    on_reply: OnReply
    arriving: Arriving


class KafkaConnection:
    """A connection that is ready for requests. The caller must run `run` in a task."""

    def __init__(self, frames: FrameStream, peer: str, options: DialOptions) -> None:
        self.peer = peer
        """Host and port, for messages to people."""
        self.versions: Mapping[int, tuple[int, int]] = {}
        """The server's versions, by API."""
        self.features: Mapping[str, tuple[int, int]] = {}
        """Levels that the server supports, by feature."""
        self.ended: str | None = None
        """Reason for the end of the connection, once it has ended."""
        self._frames = frames
        self._options = options
        self._waiting: deque[_SentRequest] = deque()
        self._correlation_id = 0
        self._scope = trio.CancelScope()
        self._unsent = trio.Event()
        self._transfer = TransferTime(options.request_timeout_ms / 1000)

    def version_of(self, api_key: ApiKey) -> int | None:
        """Return the newest common version of an API, or None."""
        return version_for(api_key, self.versions)

    @property
    def waiting(self) -> int:
        """Number of requests without a reply."""
        return len(self._waiting)

    def start(
        self,
        message: Any,
        on_reply: OnReply,
        *,
        wait_ms: int = 0,
        arriving: Arriving = not_reported,
    ) -> None:
        """Send a request immediately. The request permits the server to wait for `wait_ms`.

        `on_reply` is called once, later; `arriving` is called when parts of the reply arrive. Raises
        `KafkaConnectionError` if the connection has ended, has too many waiting requests, or lacks a common version of
        this API. Raises `KafkaWireError` for a message that this version cannot express.
        """
        if self.ended is not None:
            raise KafkaConnectionError(f"the connection to {self.peer} is over: {self.ended}")
        if len(self._waiting) >= self._options.max_waiting:
            raise KafkaConnectionError(f"{len(self._waiting)} requests to {self.peer} wait for an answer already")
        api_key, chosen, correlation_id, frame = self._encoded(message)
        timeout_s = (self._options.request_timeout_ms + wait_ms) / 1000 + time_for(len(frame))
        deadline_s = trio.current_time() + timeout_s
        self._waiting.append(_SentRequest(correlation_id, api_key, chosen, deadline_s, on_reply, arriving))
        if self._scope.deadline > deadline_s and len(self._waiting) == 1:
            self._scope.deadline = deadline_s
        try:
            if not self._frames.send_now(frame):
                self._unsent.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            # The task of `run` resolves all waiting requests, including this one.
            self.ended = str(error) or "the connection broke"
            self._scope.cancel()

    async def ask(self, message: Any, *, wait_ms: int = 0) -> Any:
        """Return the response to a request. Raises as `start` does, and `KafkaConnectionError` without a response."""
        result: CallbackResult[Any] = CallbackResult()
        self.start(message, result.give, wait_ms=wait_ms)
        response = await result.wait()
        if response is None:
            raise KafkaConnectionError(f"{self.peer} did not answer {type(message).__name__}: {self.ended}")
        return response

    async def run(self) -> None:
        """Receive replies until the connection ends (`ended` has the reason) or this is canceled; close it."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._flush)
                while self.ended is None:
                    with self._scope:
                        await self._receive()
                    self._keep_time()
                nursery.cancel_scope.cancel()
        finally:
            self.ended = self.ended or "it was closed here"
            waiting, self._waiting = self._waiting, deque()
            for each in waiting:
                run_callback(each.on_reply, None)
            await self.aclose()

    def _keep_time(self) -> None:
        """End the connection if a request without a reply has reached its deadline; then set the next deadline."""
        due_s = self._due_s()
        if due_s <= trio.current_time():
            self.ended = self.ended or f"no answer within {self._options.request_timeout_ms} ms"
        self._scope = trio.CancelScope(deadline=due_s)

    def _due_s(self) -> float:
        return max(self._waiting[0].deadline_s, self._transfer.until_s) if self._waiting else math.inf

    def close(self, why: str) -> None:
        """End the connection; `run` returns soon."""
        self.ended = self.ended or why
        self._scope.cancel()

    async def aclose(self) -> None:
        """Close the stream immediately."""
        with trio.CancelScope(shield=True):
            await self._frames.aclose()

    async def exchange(self, message: Any, version: int | None = None) -> Any:
        """Send a request and return its response, before `run` runs. Raises as `ask` does."""
        api_key, chosen, correlation_id, frame = self._encoded(message, version)
        await self._frames.send(frame)
        frame = await self._frames.receive()
        if api_key is ApiKey.API_VERSIONS and len(frame) >= _ERROR_OF_API_VERSIONS.size:
            _, error_code = _ERROR_OF_API_VERSIONS.unpack_from(frame)
            chosen = 0 if error_code == ErrorCode.UNSUPPORTED_VERSION else chosen
        answered_id, response = decode_response(api_key, chosen, frame, self._options.limits)
        if answered_id != correlation_id:
            raise KafkaWireError(f"response {answered_id} to request {correlation_id}")
        return response

    def _encoded(self, message: Any, version: int | None = None) -> tuple[ApiKey, int, int, bytes]:
        """Return the API of a request, its version, its new id and its frame."""
        api_key = api_key_of(message)
        chosen = self.version_of(api_key) if version is None else version
        if chosen is None:
            raise KafkaConnectionError(f"{self.peer} and this program do not share a version of {api_key.name}")
        self._correlation_id = number = (self._correlation_id + 1) % _CORRELATION_MODULUS
        return api_key, chosen, number, encode_request(api_key, chosen, number, self._options.client_id, message)

    async def _receive(self) -> None:
        try:
            while True:
                while not self._frames.has_frame:
                    self._count(await self._frames.read())
                self._take(await self._frames.receive())
        except (trio.BrokenResourceError, trio.ClosedResourceError, KafkaWireError) as error:
            self.ended = self.ended or str(error) or "the connection broke"

    def _count(self, arrived_bytes: int) -> None:
        """Count arriving bytes, perhaps only a part of a reply."""
        if self._waiting and not self._frames.has_frame:
            self._transfer.arrived(arrived_bytes, trio.current_time(), self._due_s())
            self._waiting[0].arriving()

    def _take(self, frame: bytes) -> None:
        if not self._waiting:
            raise KafkaWireError("a response to no request")
        waiting = self._waiting[0]
        correlation_id, response = decode_response(waiting.api_key, waiting.version, frame, self._options.limits)
        if correlation_id != waiting.correlation_id:
            raise KafkaWireError(f"response {correlation_id} to request {waiting.correlation_id}")
        self._waiting.popleft()
        self._transfer.completed(trio.current_time())
        waiting.on_reply(response)

    async def _flush(self) -> None:
        """Send the bytes that the kernel did not take immediately."""
        while True:
            await self._unsent.wait()
            self._unsent = trio.Event()
            try:
                await self._frames.flush()
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self.close(str(error) or "the connection broke")
                return


async def connect(host: str, port: int, options: DialOptions | None = None) -> KafkaConnection:
    """Connect, agree on versions, and log in if there is a login. Raises `KafkaConnectionError`."""
    options = options or DialOptions()
    peer = endpoint_text(host, port)
    connection: KafkaConnection | None = None
    try:
        with trio.fail_after(options.connect_timeout_ms / 1000):
            stream = await _open_stream(host, port, options.security.tls)
            frames = FrameStream(stream, options.limits.max_response_bytes)
            connection = KafkaConnection(frames, peer, options)
            await _first_exchange(connection, is_secured=options.security.tls is not None)
            if options.security.login is not None:
                await _log_in(connection, options.security.login)
    except BaseException as error:
        if connection is not None:
            await connection.aclose()
        if isinstance(error, trio.TooSlowError):
            late = f"within {options.connect_timeout_ms} ms"
            raise KafkaConnectionError(
                f"{peer} did not answer {late}"
                if connection is None
                else f"{peer} accepts connections, and did not reply {late}: is a Kafka listener there?"
            ) from error
        if isinstance(error, ssl.SSLCertVerificationError):
            raise KafkaConnectionError(
                f"the certificate of {peer} is refused ({error.verify_message}): an authority of the CA file must have "
                f"signed it, and it must name {host}"
            ) from error
        if isinstance(error, UnicodeError):
            # Addresses come from received messages, and the resolver's encoding does not accept every text.
            raise KafkaConnectionError(f"no connection to {peer}: it is not a host name") from error
        if isinstance(error, OSError | trio.BrokenResourceError | KafkaWireError):
            raise KafkaConnectionError(f"no connection to {peer}: {connection_failure(error)}") from error
        raise
    return connection


@asynccontextmanager
async def open_connection(host: str, port: int, options: DialOptions | None = None) -> AsyncIterator[KafkaConnection]:
    """Open a connection that runs until the block ends. Raises `KafkaConnectionError`.

    An error of the block is raised without an exception group.
    """
    connection = await connect(host, port, options)
    async with block_nursery() as nursery:
        nursery.start_soon(connection.run)
        yield connection


async def _open_stream(host: str, port: int, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    transport = await trio.open_tcp_stream(host, port)
    if tls is None:
        return transport
    stream = TlsStream(transport, tls, server_side=False, name=host)
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(transport)
        raise
    return stream


async def _first_exchange(connection: KafkaConnection, *, is_secured: bool) -> None:
    """Run `_negotiate`, and explain errors of servers that are not Kafka's or require another kind of connection."""
    try:
        await _negotiate(connection)
    except trio.BrokenResourceError as error:
        requirement = "a certificate (ssl.keystore.location)" if is_secured else "TLS (security.protocol)"
        raise KafkaConnectionError(
            f"no connection to {connection.peer}: it ended the connection without a reply ({error}); it may require"
            f" {requirement}, or not be a Kafka listener"
        ) from error
    except KafkaWireError as error:
        raise KafkaConnectionError(
            f"no connection to {connection.peer}: its answer is not Kafka's ({error})"
        ) from error


async def _negotiate(connection: KafkaConnection) -> None:
    software, software_version = _SOFTWARE
    request = clients.ApiVersionsRequest(client_software_name=software, client_software_version=software_version)
    response = await connection.exchange(request, VERSIONS[ApiKey.API_VERSIONS][1])
    offered = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        response = await connection.exchange(request, version_for(ApiKey.API_VERSIONS, offered) or 0)
        offered = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    if response.error_code:
        raise KafkaConnectionError(f"{connection.peer} refuses ApiVersions: {error_name(response.error_code)}")
    connection.versions = offered
    connection.features = {one.name: (one.min_version, one.max_version) for one in response.supported_features}


async def _log_in(connection: KafkaConnection, login: Login) -> None:
    mechanism = login.mechanism.value
    answer = await connection.exchange(clients.SaslHandshakeRequest(mechanism=mechanism), 1)
    if answer.error_code:
        offered = ", ".join(answer.mechanisms) or "none"
        raise KafkaConnectionError(
            f"{connection.peer} refuses {mechanism} ({error_name(answer.error_code)}): it has {offered}"
        )
    scram = ScramClient(login.mechanism, login.user, login.password, urandom)
    first = await _authenticate(connection, login, scram.first())
    scram.check(await _authenticate(connection, login, scram.final(first)))


async def _authenticate(connection: KafkaConnection, login: Login, message: bytes) -> bytes:
    answer = await connection.exchange(clients.SaslAuthenticateRequest(auth_bytes=message))
    if answer.error_code:
        raise KafkaConnectionError(
            f"{connection.peer} refuses user {login.user}: {answer.error_message or error_name(answer.error_code)}"
        )
    return bytes(answer.auth_bytes)
