"""The watch over replies of leaves, a farm's I2P destinations: a missing reply fails the streams that wait for it.

    bytes sent ─▶ waiting ─▶ half of the timeout ─▶ on_suspect: other leaves first, query for a newer structure
                     │                         └─▶ the newer structure withdraws the leaf ─▶ the stream fails
                     ├─▶ the timeout           ─▶ on_failed, the stream fails
                     └─▶ a byte of a reply     ─▶ answered

The timeout begins with the request, and again with each byte that the leaf sends on any stream. A leaf that replies on
another stream is alive, so its service is only slow. The timeout of a long request is one second longer for each 8 KiB,
the rate of a slow tunnel.

Only an exchange that *owes* a reply fails by the timeout: the first exchange of a stream, and the next one after each
`FarmStream.expect_reply`. In another exchange, the service may not reply, for example to a line of chat. Then the
stream fails only if its leaf fails for another reason while the stream has unanswered bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

import trio
from msgspec import Struct

from bridge.core.connecting.leaves import LeafFailure, LeafTable
from bridge.wire.i2p.structures import address_of

LEAST_RATE_BYTES_PER_S: Final = 8_192


class Exchange(Struct, eq=False):
    """The unanswered bytes of one stream."""

    leaf_hash: bytes
    fail: Callable[[str], None]
    """Ends the stream with an error."""
    opened_s: float
    """The time that the router needed to open the stream: a look-up, and on Java a round trip to the leaf."""
    is_quick: bool = False
    """True if the timeout may be below the base, because a repetition of the request is harmless."""
    owes_reply: bool = True
    since_s: float = inf
    """The time of the first unanswered byte; infinite without one."""
    sent_bytes: int = 0
    is_suspect: bool = False

    @property
    def began_s(self) -> float:
        """The time when the request was sent completely, at the rate of a slow tunnel."""
        return self.since_s + self.sent_bytes / LEAST_RATE_BYTES_PER_S


@dataclass(slots=True, eq=False, kw_only=True)
class ReplyWatch:
    """The exchanges that wait for a reply."""

    table: LeafTable
    on_suspect: Callable[[bytes], None]
    on_failed: Callable[[bytes, LeafFailure], None]
    _waiting: dict[Exchange, None] = field(default_factory=dict, init=False)
    _next_s: float = field(default=inf, init=False)
    _wake: trio.Event = field(default_factory=trio.Event, init=False)

    async def run(self) -> None:
        """Act on overdue replies until canceled."""
        while True:
            now_s = trio.current_time()
            self._next_s = min((self._check(each, now_s) for each in tuple(self._waiting)), default=inf)
            with trio.move_on_at(self._next_s):
                await self._wake.wait()
            self._wake = trio.Event()

    def sent(self, exchange: Exchange, sent_bytes: int) -> None:
        """Begin to wait for a reply to these bytes."""
        if exchange.since_s == inf:
            exchange.since_s = trio.current_time()
            self._waiting[exchange] = None
        exchange.sent_bytes += sent_bytes
        if exchange.owes_reply and self._due_s(exchange, 0.5) < self._next_s:
            self._wake.set()

    def received(self, exchange: Exchange) -> None:
        """Record bytes from the leaf: they count as the reply to all earlier bytes."""
        now_s = trio.current_time()
        if exchange.owes_reply and exchange.since_s < inf:
            reply_s = now_s - exchange.began_s
            if exchange.opened_s > self.table.base_timeout_s:
                reply_s = max(exchange.opened_s, reply_s)
            self.table.replied(exchange.leaf_hash, reply_s, now_s)
        else:
            self.table.received(exchange.leaf_hash, now_s)
        exchange.owes_reply = False
        self.remove(exchange)

    def remove(self, exchange: Exchange) -> None:
        """Stop waiting."""
        exchange.since_s = inf
        exchange.sent_bytes = 0
        exchange.is_suspect = False
        self._waiting.pop(exchange, None)

    def fail_overdue(self, leaf_hash: bytes, reason: str) -> int:
        """Fail the streams that have waited for a leaf for at least half of the timeout; return their number."""
        now_s = trio.current_time()
        overdue = [each for each in self._waiting if each.leaf_hash == leaf_hash and self._due_s(each, 0.5) <= now_s]
        for exchange in overdue:
            exchange.fail(reason)
            self.remove(exchange)
        return len(overdue)

    def _due_s(self, exchange: Exchange, part: float) -> float:
        """Return the time when this part of the timeout ends, unless the leaf sends a byte before."""
        received_s = self.table[exchange.leaf_hash].received_at_s
        from_s = exchange.since_s if received_s is None else max(exchange.since_s, received_s)
        return from_s + self._timeout_s(exchange) * part + exchange.sent_bytes / LEAST_RATE_BYTES_PER_S

    def _timeout_s(self, exchange: Exchange) -> float:
        timeout_s = self.table.timeout_s(exchange.leaf_hash)
        return timeout_s if exchange.is_quick else max(timeout_s, self.table.base_timeout_s)

    def _check(self, exchange: Exchange, now_s: float) -> float:
        """Act on one exchange; return the time of its next check."""
        if not exchange.owes_reply or exchange.since_s == inf:
            return inf
        due_s = self._due_s(exchange, 1.0)
        if due_s <= now_s:
            reason = f"{address_of(exchange.leaf_hash)} did not reply within {self._timeout_s(exchange):.1f} s"
            self.on_failed(exchange.leaf_hash, LeafFailure(reason=reason, unanswered_since_s=exchange.since_s))
            return inf
        half_s = self._due_s(exchange, 0.5)
        if half_s > now_s:
            exchange.is_suspect = False
            return half_s
        if not exchange.is_suspect:
            exchange.is_suspect = True
            self.on_suspect(exchange.leaf_hash)
        return due_s
