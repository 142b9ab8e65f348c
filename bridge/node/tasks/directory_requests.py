"""The requests of clients to a node's directory: one request and one reply per stream, all of it bounded.

    stream ─▶ 33 bytes ─▶ rate of this peer and of all ─▶ newest structure ─▶ reply ─▶ the client closes
       └─ at most EXCHANGES_MAX at a time: a further one ends the oldest, so unfinished ones cannot block others

Anyone can make any number of I2P identities, so the limit per peer only slows faulty clients down. The limit of all
peers together protects the node. The stream is closed after the client closes it, because routers may drop the last
bytes of a stream that this side closes first.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from bridge.wire.i2p.structure_exchange import (
    REQUEST_BYTES,
    ExchangeError,
    ReplyStatus,
    StructureReply,
    decode_request,
    encode_reply,
)
from consensus import CountedReason, now_ms
from gossip.node import SourceLimit

EXCHANGES_MAX: Final = 64
EXCHANGE_TIMEOUT_S: Final = 30.0
"""Limit of an exchange: a stream over I2P may need many seconds for its first bytes."""
CLOSE_TIMEOUT_S: Final = 10.0
PEER_PER_SECOND: Final = 0.2
PEER_BURST: Final = 10.0
ALL_PER_SECOND: Final = 20.0


class DirectoryRequest(CountedReason):
    """Requests to the directory, by result."""

    BROKEN = "broken", "streams that the client or the router ended before the reply"
    DISPLACED = "displaced", "exchanges that a newer one ended, because too many were open"
    MALFORMED = "malformed", "streams without a valid request"
    NOTHING_PUBLISHED = "nothing_published", "requests for an address without a valid structure"
    STRUCTURE = "structure", "requests with a structure in the reply"
    TIMEOUT = "timeout", "exchanges that took too long"
    TOO_MANY_REQUESTS = "too_many_requests", "requests above the rate of a client or of all clients"
    UNKNOWN_ADDRESS = "unknown_address", "requests for an address that the farm does not publish"


_REPLIED: Final = {status: DirectoryRequest[status.name] for status in ReplyStatus}


class DirectoryRequests:
    """The exchanges in progress, the limits, and the counters."""

    def __init__(self, reply_for: Callable[[bytes], StructureReply]) -> None:
        self._reply_for = reply_for
        self._rates = SourceLimit(PEER_PER_SECOND, PEER_BURST, ALL_PER_SECOND)
        self._exchanges: dict[trio.CancelScope, None] = {}
        """In the order of their beginning."""
        self.counts = Counter(dict.fromkeys(DirectoryRequest, 0))

    async def serve(self, peer: bytes, stream: trio.abc.Stream) -> None:
        """Carry out one exchange with the destination of this hash, and close the stream; count the result."""
        if len(self._exchanges) >= EXCHANGES_MAX:
            oldest = next(iter(self._exchanges))
            del self._exchanges[oldest]
            oldest.cancel()
        result: DirectoryRequest | None = None
        is_displaced = False
        with trio.move_on_after(EXCHANGE_TIMEOUT_S) as scope:
            self._exchanges[scope] = None
            try:
                result = await self._exchange(peer, stream)
                self.counts[result] += 1
                if result in _REPLIED.values():
                    await self._until_closed(stream)
            finally:
                is_displaced = scope not in self._exchanges
                self._exchanges.pop(scope, None)
                await trio.aclose_forcefully(stream)
        if result is None:
            self.counts[DirectoryRequest.DISPLACED if is_displaced else DirectoryRequest.TIMEOUT] += 1

    async def _exchange(self, peer: bytes, stream: trio.abc.Stream) -> DirectoryRequest:
        try:
            received = b""
            while len(received) < REQUEST_BYTES:
                part = await stream.receive_some(REQUEST_BYTES - len(received))
                if not part:
                    return DirectoryRequest.MALFORMED if received else DirectoryRequest.BROKEN
                received += part
            address_hash = decode_request(received)
            is_allowed = self._rates.allows(peer.hex(), now_ms())
            reply = self._reply_for(address_hash) if is_allowed else StructureReply(ReplyStatus.TOO_MANY_REQUESTS)
            await stream.send_all(encode_reply(reply))
        except ExchangeError:
            return DirectoryRequest.MALFORMED
        except trio.BrokenResourceError:
            return DirectoryRequest.BROKEN
        return _REPLIED[reply.status]

    async def _until_closed(self, stream: trio.abc.Stream) -> None:
        """Wait for the client to close the stream, or to send anything more."""
        with trio.move_on_after(CLOSE_TIMEOUT_S), suppress(trio.BrokenResourceError):
            await stream.receive_some(1)
