"""A ØMQ socket in a trio run: one task reads the socket, and other calls on the socket wake this task if necessary.

    ZmqSocket.run:   read until EAGAIN ──▶ EVENTS has POLLIN? ──yes──▶ read again
                                              └─no──▶ wait until it is readable, or another call wakes the task

pyzmq waits with asyncio or threads, not with trio. libzmq gives each socket an edge-triggered descriptor, `ZMQ_FD`. Any
call on the socket may consume the descriptor's wake-up, and only `ZMQ_EVENTS` shows waiting messages. So the task reads
`ZMQ_EVENTS` last before it waits. Each other call (send, connect, …) reads it as well, and wakes the task if a message
is readable. Only one task reads a socket.

*Bounds.* If a frame is larger than `max_message_bytes`, libzmq refuses it and closes its connection. A message with
more frames or bytes than the options permit is dropped and counted. After `SLICE_FRAMES` frames other tasks have their
turn. libzmq itself limits neither the frames of a message nor the number of connections.

*Keys.* A CURVE server queries a handler in the same context for each key (ZAP, RFC 27). `ZapAuthenticator` is that
handler: a REP socket, read in the same trio run and not in a thread. So the list of keys cannot change while it is
being read. `receive` gets the sender's public key with each message. It does not get the client's name, because an
operator may give the name to another key after the handshake. Without a handler the server refuses every client.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio
import zmq
from msgspec import Struct

from consensus.protocols.zmq_raft.counters import EndpointEvent, SocketDrop
from consensus.protocols.zmq_raft.wire.frames import DEFAULT_LIMITS
from consensus.server.callbacks import log_failure

ZmqContext = zmq.Context[zmq.Socket[bytes]]
Receive = Callable[[list[bytes], str | None], None]
"""Gets the frames of a message and, at a CURVE server, the sender's public key (hex). It must not wait. An
error in it is logged, and drops only this message."""

SLICE_FRAMES: Final = 512
KEY_BYTES: Final = 32
KEEPALIVE_IDLE_S: Final = 60
# As plain numbers: pyzmq's flags are enumerations, and combining two of them costs more than sending four frames.
_NO_WAIT: Final = int(zmq.NOBLOCK)
_SEND_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_MORE_FOLLOWS: Final = int(zmq.RCVMORE)
_EVENTS: Final = int(zmq.EVENTS)
_CLOSED: Final = frozenset({zmq.EHOSTUNREACH, zmq.ENOTSOCK})
"""Errors of a send: the connection of a ROUTER, or the socket itself, is closed."""
_READABLE: Final = int(zmq.POLLIN)
_ZAP_URL: Final = "inproc://zeromq.zap.01"
_ZAP_VERSION: Final = b"1.0"
_ZAP_DOMAIN: Final = "zmq-raft"
_ZAP_FRAMES: Final = 7


SocketKind = zmq.SocketType
"""Pattern of a socket (RFC 28, 29).

At a ROUTER, the first frame of each message is the identity of its connection, in both directions. At a REP, each
received message needs a reply before the next one is read.
"""


class CurveServer(Struct, frozen=True):
    """Encryption of a server's connections; the context's `ZapAuthenticator` checks the clients' keys."""

    secret_key: bytes
    """The secret key, of 32 bytes."""


class CurveClient(Struct, frozen=True):
    """Encryption of a client's connections; each key has 32 bytes."""

    server_public_key: bytes
    public_key: bytes
    secret_key: bytes


class SocketOptions(Struct, frozen=True):
    """Options of a socket. Each connection has its own queues; their limits are numbers of messages."""

    send_queue: int = 1000
    receive_queue: int = 1000
    only_connected: bool = False
    """True if a DEALER queues messages only for connected addresses (ZMQ_IMMEDIATE)."""
    linger_ms: int = 0
    """Time that the socket continues to send in the background after it was closed."""
    reconnect_ms: int = 100
    reconnect_max_ms: int = 0
    """Upper limit of the interval, which doubles; 0: the interval is constant."""
    connect_ms: int = 5_000
    """Timeout of an attempt to connect; then the attempt is repeated."""
    handshake_ms: int = 5_000
    """Time limit of a handshake; then the connection is closed."""
    unacknowledged_ms: int = 10_000
    """Time limit for a TCP acknowledgment; then the connection is closed, and the connecting side opens it again."""
    max_frames: int = DEFAULT_LIMITS.max_frames
    max_message_bytes: int = DEFAULT_LIMITS.max_message_bytes
    curve: CurveServer | CurveClient | None = None


DEFAULT_OPTIONS: Final = SocketOptions()


@contextmanager
def zmq_context() -> Iterator[ZmqContext]:
    """Open a context with one thread for its input and output; close all its sockets at the end."""
    context = zmq.Context[zmq.Socket[bytes]](io_threads=1)
    try:
        yield context
    finally:
        context.destroy()


class ZmqSocket:
    """One socket; everything is called from one trio run. `run` closes it, or `close` if `run` never begins.

    Raises `OSError` if the process has the maximum number of sockets.
    """

    def __init__(
        self,
        context: ZmqContext,
        kind: SocketKind,
        receive: Receive | None = None,
        options: SocketOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.counters: Counter[SocketDrop] = Counter()
        self._receive = receive
        self._reads = kind is not SocketKind.PUB
        self._options = options
        self._asks_for_keys = isinstance(options.curve, CurveServer)
        self._discarding = False
        self._waiting: trio.CancelScope | None = None
        try:
            self._socket: zmq.Socket[bytes] = context.socket(kind)
        except zmq.ZMQError as error:
            raise _os_error("cannot make a socket", error) from error
        self._configure(kind)
        self._descriptor = int(self._socket.get(zmq.FD))

    def bind(self, url: str) -> str:
        """Listen at `tcp://host:port`; returns the URL with the actual port in place of `*` or 0. Raises `OSError`."""
        try:
            self._allow(url)
            self._socket.bind(url)
        except zmq.ZMQError as error:
            raise _os_error(f"cannot listen at {url}", error) from error
        self._wake()
        return self._socket.get_string(zmq.LAST_ENDPOINT)

    def connect(self, url: str) -> None:
        """Connect, and reconnect when the connection is lost; raises `OSError` for an invalid URL."""
        try:
            self._allow(url)
            self._socket.connect(url)
        except zmq.ZMQError as error:
            raise _os_error(f"cannot connect to {url}", error) from error
        self._wake()

    def subscribe(self, prefix: bytes) -> None:
        """Receive messages that begin with `prefix` (SUB only)."""
        self._socket.set(zmq.SUBSCRIBE, prefix)
        self._wake()

    def send(self, frames: Sequence[bytes]) -> bool:
        """Queue a message of one frame or more; return False if it was dropped and counted.

        A message is dropped if the queue is full, no peer is connected, or the ROUTER's connection has ended. A message
        after the end of `run` is dropped too: a server that stops still replies to its waiting requests.
        """
        try:
            send, *before, last = self._socket.send, *frames
            for frame in before:
                send(frame, _SEND_MORE)
            send(last, _NO_WAIT)
        except zmq.Again:
            self.counters[SocketDrop.QUEUE_FULL] += 1
            return False
        except zmq.ZMQError as error:
            if error.errno not in _CLOSED:
                raise
            self.counters[SocketDrop.CONNECTION_GONE] += 1
            return False
        finally:
            self._wake()
        return True

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receive until canceled, and close the socket."""
        try:
            task_status.started()
            while True:
                if self._read_slice():
                    await trio.lowlevel.checkpoint()
                else:
                    await self._wait()
        finally:
            self.close()

    def close(self) -> None:
        """Close every connection. A socket whose `run` has begun is closed by canceling `run`."""
        self._socket.close()

    def _allow(self, url: str) -> None:
        """Switch IPv6 on for IPv6 URLs only: with it, an IPv4 address would be bound as `[::ffff:…]`."""
        self._socket.set(zmq.IPV6, int("[" in url))

    def _configure(self, kind: SocketKind) -> None:
        options, settings = self._options, self._socket
        settings.set(zmq.LINGER, options.linger_ms)
        settings.set(zmq.SNDHWM, options.send_queue)
        settings.set(zmq.RCVHWM, options.receive_queue)
        settings.set(zmq.IMMEDIATE, int(options.only_connected))
        settings.set(zmq.RECONNECT_IVL, options.reconnect_ms)
        settings.set(zmq.RECONNECT_IVL_MAX, options.reconnect_max_ms)
        settings.set(zmq.CONNECT_TIMEOUT, options.connect_ms)
        settings.set(zmq.HANDSHAKE_IVL, options.handshake_ms)
        settings.set(zmq.TCP_MAXRT, options.unacknowledged_ms)
        settings.set(zmq.TCP_KEEPALIVE, 1)
        settings.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
        settings.set(zmq.MAXMSGSIZE, options.max_message_bytes)
        if kind is SocketKind.ROUTER:
            # Without this option, a message to a lost connection, or to one with a full queue, is dropped without an
            # error.
            settings.set(zmq.ROUTER_MANDATORY, 1)
        match options.curve:
            case CurveServer(secret_key):
                settings.set(zmq.CURVE_SERVER, 1)
                settings.set(zmq.CURVE_SECRETKEY, secret_key)
                settings.set(zmq.ZAP_DOMAIN, _ZAP_DOMAIN.encode())
                settings.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
            case CurveClient(server_public_key, public_key, secret_key):
                settings.set(zmq.CURVE_SERVERKEY, server_public_key)
                settings.set(zmq.CURVE_PUBLICKEY, public_key)
                settings.set(zmq.CURVE_SECRETKEY, secret_key)
            case None:
                pass

    def _read_slice(self) -> bool:
        """Hand over messages; return False if no message was waiting, and none has arrived since.

        After messages the result is True, so the caller reads again before it waits. Under load more messages have
        arrived by then, and a wait would cost more than a read.
        """
        budget = SLICE_FRAMES if self._reads else 0
        try:
            while budget > 0:
                budget -= self._discard() if self._discarding else self._read_message()
        except zmq.Again:
            pass
        return (budget < SLICE_FRAMES and self._reads) or self._has_messages()

    def _read_message(self) -> int:
        """Hand over one message; return the number of read frames. Raises `zmq.Again` without a message."""
        socket, options = self._socket, self._options
        user = None
        if self._asks_for_keys:
            first = socket.recv(zmq.NOBLOCK, copy=False)
            frames = [first.bytes]
            user = _user_of(first)
        else:
            frames = [socket.recv(_NO_WAIT)]
        room = options.max_message_bytes - len(frames[0])
        while socket.get(_MORE_FOLLOWS):
            if len(frames) == options.max_frames or room < 0:
                self._discarding = True
                self.counters[SocketDrop.TOO_LARGE] += 1
                return len(frames)
            frames.append(socket.recv(_NO_WAIT))
            room -= len(frames[-1])
        if room < 0:
            self.counters[SocketDrop.TOO_LARGE] += 1
        elif self._receive is not None:
            try:
                self._receive(frames, user)
            except Exception as error:  # noqa: BLE001 - logged
                log_failure(self._receive, error)
        return len(frames)

    def _discard(self) -> int:
        self._socket.recv(zmq.NOBLOCK, copy=False)
        self._discarding = bool(self._socket.get(zmq.RCVMORE))
        return 1

    async def _wait(self) -> None:
        try:
            with trio.CancelScope() as self._waiting:
                await trio.lowlevel.wait_readable(self._descriptor)
        finally:
            self._waiting = None

    def _wake(self) -> None:
        """Wake the reading task if the previous call on the socket may have consumed its wake-up."""
        if self._waiting is not None and self._has_messages():
            self._waiting.cancel()

    def _has_messages(self) -> bool:
        """Return True if a message is readable. Reading the events also re-arms the descriptor."""
        return bool(int(self._socket.get(_EVENTS)) & _READABLE)


class ZapAuthenticator:
    """Checks the keys of all clients that connect to a CURVE server of this context, by ZAP (RFC 27).

    `is_listed` gets a public key of 32 bytes, and returns True to accept the key. Make the authenticator before the
    servers bind. Raises `OSError` if the context has an authenticator already.
    """

    def __init__(self, context: ZmqContext, is_listed: Callable[[bytes], bool]) -> None:
        self._is_listed = is_listed
        self._keys: Counter[EndpointEvent] = Counter()
        self._socket = ZmqSocket(context, SocketKind.REP, self._judge)
        self._socket.bind(_ZAP_URL)

    @property
    def counters(self) -> Counter[EndpointEvent | SocketDrop]:
        """Return the counts of accepted and refused keys, and of the socket's drops."""
        return self._keys + self._socket.counters

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reply to authentication requests until canceled; later connections are refused."""
        await self._socket.run(task_status=task_status)

    def _judge(self, frames: list[bytes], _user: str | None) -> None:
        """Process a request: version, request id, domain, address, identity, mechanism, credentials."""
        is_key = len(frames) == _ZAP_FRAMES and frames[5] == b"CURVE" and len(frames[6]) == KEY_BYTES
        try:
            is_listed = is_key and self._is_listed(frames[6])
        except Exception as error:  # noqa: BLE001 - logged. A REP socket without a reply could not receive again.
            log_failure(self._is_listed, error)
            is_listed = False
        self._keys[EndpointEvent.KEYS_ACCEPTED if is_listed else EndpointEvent.KEYS_REFUSED] += 1
        user = frames[6].hex().encode() if is_listed else b""
        verdict = (b"200", b"OK", user) if is_listed else (b"400", b"the key is not listed", user)
        self._socket.send([_ZAP_VERSION, frames[1] if len(frames) > 1 else b"", *verdict, b""])


def _os_error(what: str, error: zmq.ZMQError) -> OSError:
    number = error.errno or 0
    return OSError(number, f"{what}: {zmq.strerror(number)}")


def _user_of(frame: zmq.Frame) -> str | None:
    """Return the public key of the frame's connection, as set by the authenticator."""
    try:
        user = frame.get("User-Id")
    except zmq.ZMQError:
        return None
    return user if isinstance(user, str) else None
