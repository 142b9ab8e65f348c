"""One I2CP connection to a router: requests, their replies, and events.

    open_i2cp ─▶ byte 0x2a, GetDate ─▶ SetDate ─▶ I2cpConnection ─▶ the end, with its reason in `RouterLost`

A task of the connection reads; each caller waits for its own reply. Dates and statuses arrive in the order of their
requests; the replies to look-ups have a number. When the connection ends, all waiting callers get the reason.

**I2CP does not acknowledge a structure.** A router that refuses a structure disconnects, and a router that accepts it
does not reply. But routers handle messages in order. So the node sends a GetDate after the structure, and the reply
shows that the router has processed the structure without an error.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, Generic, TypeVar

import trio
from msgspec import Struct, field

from bridge.node.events.event_log import clock_ms
from bridge.node.router.link import Credentials, Link, RouterLost, open_stream, shown
from bridge.wire.i2p import i2cp_messages as messages
from bridge.wire.i2p.i2cp import PROTOCOL_BYTE, FrameReader, decode, encode
from bridge.wire.i2p.i2cp_session import SessionConfig
from consensus import block_nursery

CLIENT_VERSION: Final = "0.9.64.1"
"""The protocol version of this client; it includes look-ups by hash, Meta LeaseSet2 and offline keys.

No release of a router has this number. So a reply with this number comes from i2pd, which repeats the number of the
request.
"""
ANSWER_TIMEOUT_S: Final = 10.0
GOODBYE_TIMEOUT_S: Final = 1.0
LOOKUP_GRACE_S: Final = 3.0
LOOKUPS_LIMIT: Final = 8
_READ_BYTES: Final = 16_384
_REFUSALS: Final = {
    messages.Status.DESTROYED: "it destroyed the session",
    messages.Status.INVALID: "it considers the session's configuration invalid: its signature or date is wrong, or"
    " another client uses the destination",
    messages.Status.REFUSED: "it refuses further sessions",
    messages.Status.DUPLICATE_DESTINATION: "another client of it has a session for the same destination",
}

Answer = TypeVar("Answer")


class _Waiter(Struct, Generic[Answer], eq=False):
    answer: Answer | None = None
    event: trio.Event = field(default_factory=trio.Event)

    def resolve(self, answer: Answer) -> None:
        self.answer = answer
        self.event.set()


class RouterDate(Struct, frozen=True):
    """A reading of the router's clock, and its version of the protocol."""

    date_ms: int
    version: str | None
    received_at_s: float
    difference_ms: int
    """The router's clock minus this machine's, in milliseconds."""

    @property
    def is_from_i2pd(self) -> bool:
        """True if the router repeats the version of this client.

        A router with any other version can be Java I2P or a later i2pd.
        """
        return self.version == CLIENT_VERSION

    def now_ms(self) -> int:
        """Return the router's present clock, in milliseconds."""
        return self.date_ms + round((trio.current_time() - self.received_at_s) * 1000)


class I2cpConnection:
    """An open connection; made by `open_i2cp`."""

    def __init__(self, stream: trio.abc.Stream, link: Link, news: Callable[[], None]) -> None:
        self._stream = stream
        self._link = link
        self._news = news
        self._reader = FrameReader()
        self._one_sender = trio.Lock()
        self._dates: deque[_Waiter[messages.SetDate]] = deque()
        self._statuses: deque[_Waiter[messages.SessionStatus]] = deque()
        self._replies: dict[int, _Waiter[messages.HostReply]] = {}
        self._lookups = 0
        self.ended: str | None = None
        """The reason why the connection has ended; None while it is open."""
        self.lease_set_requested = False
        """True after the router requests a lease set; `publish` resets this."""

    # -- requests ------------------------------------------------------------------------------------------------------

    async def greet(self, credentials: Credentials | None) -> RouterDate:
        """Start the protocol; return the reading of the router's clock."""
        async with self._one_sender:
            await self._send_bytes(PROTOCOL_BYTE)
        return await self.get_date(credentials)

    async def get_date(self, credentials: Credentials | None = None) -> RouterDate:
        """Return the router's clock; the reply shows that the router has processed all earlier messages."""
        waiter: _Waiter[messages.SetDate] = _Waiter()
        sent_at_s = trio.current_time()
        options = None
        if credentials is not None:
            options = {"i2cp.username": credentials.username, "i2cp.password": credentials.password}
        async with self._one_sender:
            self._dates.append(waiter)
            await self._send(messages.GetDate(CLIENT_VERSION, options))
        found = await self._answer(waiter, ANSWER_TIMEOUT_S, "no date")
        # The router read its clock about halfway between request and reply.
        now_s = trio.current_time()
        difference_ms = found.date_ms - (clock_ms() - round((now_s - sent_at_s) * 500))
        return RouterDate(found.date_ms, found.version, now_s, difference_ms)

    async def create_session(self, config: SessionConfig) -> int:
        """Make a session; return its id."""
        waiter: _Waiter[messages.SessionStatus] = _Waiter()
        async with self._one_sender:
            self._statuses.append(waiter)
            await self._send(messages.CreateSession(config))
        status = await self._answer(waiter, ANSWER_TIMEOUT_S, "no reply about the session")
        if status.status != messages.Status.CREATED:
            self._end(f"{self._link} made no session: {_refusal(status)}")
            self._check()
        return status.session_id

    async def publish(self, session_id: int, structure: bytes, *, private_key_count: bool) -> RouterDate:
        """Send a signed structure, and wait until the router has processed it."""
        self.lease_set_requested = False
        async with self._one_sender:
            await self._send(messages.CreateLeaseSet2(session_id, structure, private_key_count))
        return await self.get_date()

    async def destroy_session(self, session_id: int) -> None:
        """End the session: the router stops publishing for it."""
        async with self._one_sender:
            await self._send(messages.DestroySession(session_id))

    async def look_up(self, destination_hash: bytes, timeout_s: float) -> messages.HostReply:
        """Look up the destination of a hash."""
        if len(self._replies) >= LOOKUPS_LIMIT:
            raise RouterLost(f"{LOOKUPS_LIMIT} look-ups are under way at {self._link} already")
        self._lookups = self._lookups % 0x7FFF_FFFF + 1
        number, waiter = self._lookups, _Waiter[messages.HostReply]()
        self._replies[number] = waiter
        try:
            async with self._one_sender:
                await self._send(
                    messages.HostLookup(messages.NO_SESSION, number, round(timeout_s * 1000), destination_hash)
                )
            return await self._answer(waiter, timeout_s + LOOKUP_GRACE_S, "no answer to a look-up")
        finally:
            self._replies.pop(number, None)

    async def _answer(self, waiter: _Waiter[Answer], timeout_s: float, lacking: str) -> Answer:
        with trio.move_on_after(timeout_s):
            await waiter.event.wait()
        if waiter.answer is not None:
            return waiter.answer
        self._check()
        # End the connection: dates and statuses do not have a number, so after a missing one, later ones cannot be
        # assigned to requests. A missing reply to a look-up is a fault, too, because a router replies to each look-up,
        # even without a result.
        self._end(f"{self._link} does not respond: {lacking} within {timeout_s:g} s")
        raise RouterLost(self.ended)

    async def _send(self, message: messages.ClientMessage) -> None:
        try:
            data = encode(message)
        except messages.I2cpError as error:
            self._end(f"nothing was sent to {self._link}: {error}")
        else:
            await self._send_bytes(data)
        self._check()

    async def _send_bytes(self, data: bytes) -> None:
        self._check()
        try:
            with trio.fail_after(ANSWER_TIMEOUT_S):
                await self._stream.send_all(data)
        except trio.TooSlowError:
            self._end(f"{self._link} does not accept data for {ANSWER_TIMEOUT_S:g} s")
        except trio.Cancelled:
            # The router would read the next message as a part of this message.
            self._end(f"a request to {self._link} was canceled while it was sent")
            raise
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._end(f"{self._link} closed the connection")
        self._check()

    def _check(self) -> None:
        if self.ended is not None:
            raise RouterLost(self.ended)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read until the connection ends; never raises."""
        while self.ended is None:
            try:
                data = await self._stream.receive_some(_READ_BYTES)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                self._end(f"{self._link} closed the connection")
                return
            try:
                self._reader.feed(bytes(data))
                while (frame := self._reader.next_frame()) is not None:
                    self._handle(decode(frame))
            except messages.I2cpError as error:
                self._end(f"{self._link} does not speak I2CP: {error}")

    def _handle(self, message: messages.RouterMessage) -> None:
        match message:
            case messages.SetDate() if self._dates:
                self._dates.popleft().resolve(message)
            case messages.SessionStatus() if self._statuses:
                self._statuses.popleft().resolve(message)
            case messages.SessionStatus(_, status) if status != messages.Status.UPDATED:
                self._end(f"{self._link} ended the session: {_refusal(message)}")
            case messages.HostReply(_, number) if number in self._replies:
                self._replies.pop(number).resolve(message)
            case messages.RequestVariableLeaseSet():
                self.lease_set_requested = True
                self._news()
            case messages.Disconnect(reason):
                self._end(f"{self._link} disconnected: {shown(reason)}")
            case _:
                pass  # unexpected payload, statuses of messages, replies without a waiting caller

    def _end(self, reason: str) -> None:
        if self.ended is not None:
            return
        self.ended = reason
        events = [waiter.event for waiter in self._dates]
        events += [waiter.event for waiter in self._statuses]
        events += [waiter.event for waiter in self._replies.values()]
        for event in events:
            event.set()
        self._news()

    async def send_disconnect(self) -> None:
        """Send a Disconnect, for at most `GOODBYE_TIMEOUT_S`, and close the stream."""
        with trio.move_on_after(GOODBYE_TIMEOUT_S, shield=True):
            if self.ended is None:
                async with self._one_sender:
                    with suppress(RouterLost):
                        await self._send(messages.Disconnect("the farm's node is done"))
        await trio.aclose_forcefully(self._stream)


def _refusal(status: messages.SessionStatus) -> str:
    known = {kind.value: text for kind, text in _REFUSALS.items()}
    return known.get(status.status, f"its status is {status.status}")


@asynccontextmanager
async def open_i2cp(
    link: Link, credentials: Credentials | None, news: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[I2cpConnection, RouterDate]]:
    """Yield a connection after the greeting, with the router's clock.

    `news` is called when the router requests a lease set, and when the connection ends. Raise `RouterLost` if the
    connection cannot be opened; the methods that send requests raise it after the end.
    """
    stream = await open_stream(link)
    connection = I2cpConnection(stream, link, news)
    async with block_nursery() as nursery:
        nursery.start_soon(connection.read)
        try:
            yield connection, await connection.greet(credentials)
        finally:
            await connection.send_disconnect()
