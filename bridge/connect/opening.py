"""Opens a stream to the first leaf (an I2P destination of the farm) that the router reaches.

    order of the leaves ─▶ attempt ─▶ the router confirms ─▶ the stream
                             ├─▶ half of the timeout ─▶ a concurrent attempt at the next leaf; the first stream wins
                             └─▶ refused, or the timeout ─▶ the leaf is last, an attempt at the next one

Until a client has opened its first stream, it tries all leaves twice: the first look-ups of a new session may fail.

An attempt that lost the race continues until its timeout, so that its outcome counts for later streams. A Java router
confirms a stream after the leaf has replied. i2pd confirms it earlier, also for a dead leaf. In this case the watch
over replies (`reply_watch`) detects the dead leaf.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Final

import trio
from msgspec import Struct

from bridge.connect.errors import NoLeafError, NoSessionError, StreamLimitError
from bridge.connect.sessions import SessionPool
from bridge.connect.status import ClientCounter, ClientCounters
from bridge.connect.structure_keeper import StructureKeeper
from bridge.core.connecting.leaves import LeafFailure, LeafTable
from bridge.core.connecting.reply_times import TIMEOUT_MAX_S
from bridge.sam.connection import LeafUnreachableError, SamError
from bridge.sam.session import SamSession
from bridge.wire.i2p.structures import address_of

STREAMS_LIMIT: Final = 512
ATTEMPTS_AT_A_TIME: Final = 3
FAILED_AFTER_S: Final = 2.5
"""While an attempt runs, a failed leaf is tried only after these seconds."""
SESSION_TRIES: Final = 4
FIRST_ROUNDS: Final = 2
LATE_LIMIT: Final = 32
LATE_S: Final = 15.0
"""Time to wait for a late reply: i2pd repeats a lost first packet only after 9 s."""
FORGIVEN_WITHIN_S: Final = 1.0
"""If the session ends within these seconds after a stream's failure, the failure does not count for the leaf."""
_TIMEOUT: Final = "TIMEOUT"


class LeafStream(Struct, frozen=True):
    """An open stream of SAM to a leaf."""

    leaf_hash: bytes
    session: SamSession
    stream: trio.SocketStream
    opened_s: float
    """The time that the router needed to open it."""


class _SessionLostError(Exception):
    pass


@dataclass(slots=True)
class _Race:
    """The attempts to open one stream. An outcome is a stream, None if the leaf failed, or an error of the session."""

    session: SamSession
    send: trio.MemorySendChannel["LeafStream | _SessionLostError | None"]
    is_over: bool = field(default=False)


@dataclass(slots=True, eq=False, kw_only=True)
class LeafOpener:
    """Opens streams, and records the failures of leaves."""

    table: LeafTable
    pool: SessionPool
    keeper: StructureKeeper
    counters: ClientCounters
    random: Random
    nursery: trio.Nursery
    unix_s: Callable[[], float]
    on_suspect: Callable[[bytes], None]
    on_failed: Callable[[bytes, LeafFailure], None]
    streams: int = field(default=0, init=False)
    """Open streams, and streams that are being opened."""
    _late: int = field(default=0, init=False)
    """Failed streams whose reply may still arrive."""

    async def open(self, excluded: Collection[bytes] = ()) -> LeafStream:
        """Open a stream to a leaf, except to excluded leaves; raise `ConnectError`."""
        if self.streams >= STREAMS_LIMIT:
            raise StreamLimitError(f"{STREAMS_LIMIT} streams are open, which is the limit: close some of them")
        self.streams += 1
        try:
            opened = await self._open(excluded)
        except BaseException:
            self.streams -= 1
            raise
        self.counters[ClientCounter.STREAMS_OPENED] += 1
        return opened

    def closed(self, opened: LeafStream) -> None:
        """Record that a stream is closed."""
        self.streams -= 1
        self.table[opened.leaf_hash].streams -= 1

    def did_not_reply(self, opened: LeafStream) -> None:
        """Use the other session after a leaf received bytes and did not reply in time: a tunnel may be dead."""
        self.pool.change(opened.session)

    def await_late_reply(self, opened: LeafStream, since_s: float) -> bool:
        """Close a failed stream later: a late reply shows that the leaf is alive. Return False if too many wait."""
        if self._late >= LATE_LIMIT:
            return False
        self._late += 1
        self.nursery.start_soon(self._receive_late_reply, opened, since_s)
        return True

    async def _receive_late_reply(self, opened: LeafStream, since_s: float) -> None:
        try:
            async with opened.stream:
                with trio.move_on_after(LATE_S), suppress(trio.BrokenResourceError):
                    if await opened.stream.receive_some(1) and opened.leaf_hash in self.table:
                        now_s = trio.current_time()
                        self.table.replied_late(opened.leaf_hash, now_s - since_s, now_s)
        finally:
            self._late -= 1

    def ended_early(self, opened: LeafStream) -> None:
        """Record a failure of a leaf that ended its stream before the first byte of a reply, if the session lasts."""
        if self.pool.is_ready(opened.session):
            reason = f"{address_of(opened.leaf_hash)} ended the stream without a reply"
            self.on_failed(opened.leaf_hash, LeafFailure(reason=reason))
            self.nursery.start_soon(self._forgive_if_session_ends, opened)

    def did_not_greet(self, leaf_hash: bytes) -> None:
        """Record that a leaf did not send first bytes (a greeting) on a stream, but a later leaf did."""
        if leaf_hash in self.table:
            reason = f"{address_of(leaf_hash)} did not send its first bytes in time, as other leaves do"
            self.on_failed(leaf_hash, LeafFailure(reason=reason))

    async def _forgive_if_session_ends(self, opened: LeafStream) -> None:
        with trio.move_on_after(FORGIVEN_WITHIN_S):
            await opened.session.wait_ended()
            if opened.leaf_hash in self.table:
                self.table.forgive(opened.leaf_hash)

    async def _open(self, excluded: Collection[bytes]) -> LeafStream:
        rounds = 1 if self.pool.has_worked else FIRST_ROUNDS
        for _ in range(SESSION_TRIES):
            session = await self.pool.session()
            await self.keeper.wait_usable()
            order = self.table.order(trio.current_time(), self.unix_s(), self.random)
            order = [each for each in order if each not in excluded]
            if excluded and not order:
                raise NoLeafError(f"no other leaf is left: {self.keeper.describe()}")
            tried = len(order)
            send, receive = trio.open_memory_channel["LeafStream | _SessionLostError | None"](tried)
            race = _Race(session, send)
            try:
                opened = await self._first(race, receive, order)
            except _SessionLostError:
                continue
            finally:
                race.is_over = True
                self._close_late(receive)
            if opened is not None:
                self.pool.worked(session)
                return opened
            rounds -= 1
            if rounds:
                continue
            self.counters[ClientCounter.STREAMS_FAILED] += 1
            raise NoLeafError(self._no_leaf(tried))
        self.counters[ClientCounter.STREAMS_FAILED] += 1
        raise NoSessionError(self.pool.last_error or f"sessions of the SAM bridge {self.pool.bridge} end immediately")

    def _no_leaf(self, tried: int) -> str:
        failed = [each for each in self.table.listed() if each.failed_at_s is not None]
        newest = max(failed, key=lambda each: each.failed_at_s or 0.0, default=None)
        last = "" if newest is None else f"; last failure: {newest.last_failure}"
        text = f"no leaf answered: {tried} tried, {self.keeper.describe()}{last}"
        if self.keeper.newest is not None and self.keeper.newest.demo:
            return f"{text}; its leaves exist only at the SAM bridge of the demonstration that signed it"
        return f"{text}; if the router is connected to I2P, report this to the operator of the service"

    async def _first(
        self,
        race: _Race,
        receive: trio.MemoryReceiveChannel["LeafStream | _SessionLostError | None"],
        order: list[bytes],
    ) -> LeafStream | None:
        """Try the leaves in this order; return the first open stream, or None if all attempts fail."""
        running, began_s, next_at_s = 0, -inf, -inf
        trying = b""
        while order or running:
            # A newer structure may have dropped the records of its unlisted leaves.
            order = [each for each in order if each in self.table]
            if order and running and self.table[order[0]].is_failed(trio.current_time()):
                next_at_s = max(next_at_s, began_s + FAILED_AFTER_S, self._sort_failed(order))
            may_start = bool(order) and running < ATTEMPTS_AT_A_TIME
            if may_start and trio.current_time() >= next_at_s:
                if running and next_at_s > -inf:
                    self.counters[ClientCounter.RACES] += 1
                    self.on_suspect(trying)
                trying = order.pop(0)
                began_s = trio.current_time()
                next_at_s = began_s + self.timeout_s(trying) / 2
                self.table[trying].streams += 1
                self.nursery.start_soon(self._attempt, race, trying)
                running += 1
                continue
            with trio.move_on_at(next_at_s if may_start else inf):
                outcome = await receive.receive()
                running -= 1
                match outcome:
                    case LeafStream():
                        return outcome
                    case _SessionLostError():
                        raise outcome
                    case None:
                        self.counters[ClientCounter.LEAF_CHANGES] += 1
                        next_at_s = -inf
        return None

    def _sort_failed(self, order: list[bytes]) -> float:
        """Sort the leaves by the earliest time of their next attempt; return that time for the first leaf.

        i2pd confirms a stream to a dead leaf while it still looks up the other leaves. So if only one leaf is left, and
        it has just failed, its next attempt waits for the outcome of the running attempts. Several failed leaves do not
        wait, because some of them are probably alive.
        """
        now_s = trio.current_time()
        order.sort(key=lambda each: max(now_s, self.table[each].retry_at_s))
        at_s = self.table[order[0]].retry_at_s
        return inf if len(order) == 1 and at_s > now_s else at_s

    def timeout_s(self, leaf_hash: bytes) -> float:
        """Return the time that a leaf has for its first byte."""
        return min(self.table.timeout_s(leaf_hash), TIMEOUT_MAX_S)

    async def _attempt(self, race: _Race, leaf_hash: bytes) -> None:
        began_s = trio.current_time()
        outcome: LeafStream | _SessionLostError | None = None
        try:
            timeout_s = min(self.table.opening_timeout_s(leaf_hash), TIMEOUT_MAX_S)
            stream = await race.session.connect(leaf_hash, timeout_s)
            outcome = LeafStream(leaf_hash, race.session, stream, trio.current_time() - began_s)
        except LeafUnreachableError as error:
            self.pool.prefer_other(race.session)
            since_s = began_s if error.result == _TIMEOUT else None
            failure = LeafFailure(reason=str(error), unanswered_since_s=since_s, is_opened=False)
            self.on_failed(leaf_hash, failure)
        except SamError as error:
            self.pool.failed(race.session, str(error))
            outcome = _SessionLostError()
        finally:
            if not isinstance(outcome, LeafStream) or race.is_over:
                self.table[leaf_hash].streams -= 1
        if not race.is_over:
            race.send.send_nowait(outcome)
        elif isinstance(outcome, LeafStream):
            await outcome.stream.aclose()

    def _close_late(self, receive: trio.MemoryReceiveChannel["LeafStream | _SessionLostError | None"]) -> None:
        """Close the opened streams that the caller does not use: it has another stream, or was canceled.

        This does not have a checkpoint: a cancellation here would leave streams open, including the caller's stream.
        """
        while True:
            try:
                outcome = receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                return
            if isinstance(outcome, LeafStream):
                self.table[outcome.leaf_hash].streams -= 1
                outcome.stream.socket.close()
