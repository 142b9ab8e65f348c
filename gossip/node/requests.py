"""The application's requests to its group, kept until the owner of the core handles them; and replies to its queries.

A call never waits and never accesses the core, which may be in the middle of a step. It queues its request here and
rings the doorbell. Metadata and maintenance are slots that keep the last value; changed keyrings are merged into one;
seeds are a bounded set. User events and queries are a bounded queue with a rate. Replies have a separate queue: other
nodes determine the number of replies, and replies must not displace the application's own requests. A call beyond its
rate or length is refused immediately; otherwise the application would assume a loss in the network.

The replies to a query come through a channel. If the application does not read, the channel fills; further replies are
counted, without waiting. The core reports the end of a query. But a stopped core does not report it: an identity
conflict has halted it, or it waits for a generation to be on the disk. So a query that is still open a moment after its
deadline is closed here.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from math import inf
from typing import Final

import trio
from msgspec import Struct

from gossip.core.effects import QueryAnswered
from gossip.core.events import (
    AnswerGiven,
    Event,
    KeyringChanged,
    LeaveRequested,
    MaintenanceSwitched,
    MetadataChanged,
    QueryRequested,
    SeedsGiven,
    UserEventRequested,
)
from gossip.core.keyring import Keyring
from gossip.core.member import METADATA_LIMIT_BYTES, Address
from gossip.core.messages import BODY_LIMIT_BYTES, QUERY_TIMEOUT_LIMIT_MS
from gossip.core.options import SEED_ADDRESSES_LIMIT, TokenBucket
from gossip.core.user_events import broken_limit

WAITING_LIMIT: Final = 64
REQUESTS_PER_SECOND: Final = 20.0
REQUESTS_BURST: Final = 40.0
ANSWERS_LIMIT: Final = 1024
GRACE_S: Final = 0.5
"""The time left to the core to end a query after its deadline: replies may be in flight."""

_BEFORE_MESSAGES: Final = (MetadataChanged, MaintenanceSwitched, KeyringChanged)
Request = UserEventRequested | QueryRequested | AnswerGiven


class BusyError(Exception):
    """Too many requests in a short time: nothing was sent, so repeat the call later."""


class _OriginQueue:
    """Requests of one origin, limited in number and rate."""

    def __init__(self) -> None:
        self._rate = TokenBucket(REQUESTS_PER_SECOND, REQUESTS_BURST)
        self.waiting: deque[Request] = deque()

    def add(self, request: Request, now_ms: int) -> bool:
        if len(self.waiting) >= WAITING_LIMIT or not self._rate.take(now_ms):
            return False
        self.waiting.append(request)
        return True


class Requests:
    """The requests since the owner last took them."""

    def __init__(self, ring_doorbell: Callable[[], None]) -> None:
        self._ring_doorbell = ring_doorbell
        self._last: dict[type[Event], Event] = {}
        """The last metadata, maintenance, keyring and leave request, by kind."""
        self._seeds: dict[Address, None] = {}
        self._former_seeds: dict[Address, None] = {}
        self._own, self._answers = _OriginQueue(), _OriginQueue()
        self.done = trio.Event()
        """Set when all requests up to now have been executed."""

    def set_metadata(self, metadata: bytes) -> None:
        """Replace the metadata."""
        _require_bytes("metadata", metadata)
        if len(metadata) > METADATA_LIMIT_BYTES:
            raise ValueError(f"metadata has {len(metadata)} bytes, the limit is {METADATA_LIMIT_BYTES}")
        self._replace(MetadataChanged(metadata))

    def add_seeds(self, addresses: Iterable[Address], former: Iterable[Address] = ()) -> None:
        """Add seeds; remove the seeds in `former`."""
        for address in former:
            self._seeds.pop(address, None)
            if len(self._former_seeds) < SEED_ADDRESSES_LIMIT:
                self._former_seeds[address] = None
        for address in addresses:
            self._former_seeds.pop(address, None)
            if len(self._seeds) < SEED_ADDRESSES_LIMIT:
                self._seeds[address] = None
        self._ring_doorbell()

    def set_maintenance(self, *, on: bool) -> None:
        """Turn maintenance on or off."""
        self._replace(MaintenanceSwitched(on))

    def change_keyring(self, keyring: Keyring) -> None:
        """Queue a changed keyring.

        The queue never refuses it, because a node that does not follow its group's keys is cut off.
        """
        earlier = self._last.get(KeyringChanged)
        self._replace(
            KeyringChanged(earlier.keyring.merge(keyring) if isinstance(earlier, KeyringChanged) else keyring)
        )

    def leave(self) -> None:
        """Request to leave the group."""
        self._replace(LeaveRequested())

    def _replace(self, request: Event) -> None:
        self._last[type(request)] = request
        self._ring_doorbell()

    def add(self, request: Request, now_ms: int) -> None:
        """Queue one more request; raise BusyError beyond the rate, or if too many wait."""
        _check(request)
        is_answer = isinstance(request, AnswerGiven)
        if not (self._answers if is_answer else self._own).add(request, now_ms):
            what = "answers" if is_answer else "user events and queries"
            raise BusyError(
                f"more than {REQUESTS_PER_SECOND:.0f} {what} per second: gossip is for few and small messages; this"
                " message was not sent, try again in a moment"
            )
        self._ring_doorbell()

    def take(self) -> tuple[trio.Event, list[Event]]:
        """Return all requests, in an order that executes each of them, and the event to set after their execution."""
        done, self.done = self.done, trio.Event()
        events: list[Event] = []
        if self._seeds or self._former_seeds:
            events.append(SeedsGiven(tuple(self._seeds), tuple(self._former_seeds)))
            self._seeds, self._former_seeds = {}, {}
        last, self._last = self._last, {}
        leave = last.pop(LeaveRequested, None)
        events += [last[kind] for kind in _BEFORE_MESSAGES if kind in last]
        for lane in (self._own, self._answers):
            events.extend(lane.waiting)
            lane.waiting.clear()
        if leave is not None:
            events.append(leave)
        return done, events


def _require_bytes(what: str, value: object) -> None:
    if not isinstance(value, bytes):
        raise TypeError(f"{what} must be bytes, not {type(value).__name__}: encode it first")


def _check(request: Request) -> None:
    """Reject requests that the core would reject: the core's errors reach its owner, not the caller."""
    match request:
        case AnswerGiven(_, body):
            _require_bytes("an answer", body)
            if len(body) > BODY_LIMIT_BYTES:
                raise ValueError(f"an answer has at most {BODY_LIMIT_BYTES} bytes, not {len(body)}")
            return
        case UserEventRequested(name, body) | QueryRequested(_, name, body):
            _require_bytes("the body", body)
            if not isinstance(name, str):
                raise TypeError(f"the name must be text, not {type(name).__name__}")
            broken = broken_limit(name, body)
            if broken is not None:
                raise ValueError(broken)
    if isinstance(request, QueryRequested) and not 0 < request.timeout_ms <= QUERY_TIMEOUT_LIMIT_MS:
        raise ValueError(
            f"a query's timeout is from 1 ms to {QUERY_TIMEOUT_LIMIT_MS // 1000} s, not {request.timeout_ms} ms"
        )


class Answer(Struct, frozen=True):
    """One member's reply to a query."""

    responder: bytes
    body: bytes


class _OpenQuery(Struct, frozen=True):
    channel: trio.MemorySendChannel[Answer]
    ends_at: float


class OpenQueries:
    """The open queries of this node's application, by ticket."""

    def __init__(self) -> None:
        self._tickets = count(1)
        self._open: dict[int, _OpenQuery] = {}
        self._query_opened = trio.Event()

    def begin(self, timeout_ms: int) -> tuple[int, trio.MemoryReceiveChannel[Answer]]:
        """Return a ticket, and the channel of its replies."""
        ticket = next(self._tickets)
        channel, answers = trio.open_memory_channel[Answer](ANSWERS_LIMIT)
        self._open[ticket] = _OpenQuery(channel, trio.current_time() + timeout_ms / 1000 + GRACE_S)
        self._query_opened.set()
        return ticket, answers

    def forward_reply(self, effect: QueryAnswered) -> bool:
        """Forward a reply; return False if its channel was full or closed."""
        try:
            self._open[effect.ticket].channel.send_nowait(Answer(effect.responder, effect.body))
        except (KeyError, trio.WouldBlock, trio.BrokenResourceError):
            return False
        return True

    def end(self, ticket: int) -> None:
        """Close a query's channel."""
        query = self._open.pop(ticket, None)
        if query is not None:
            query.channel.close()

    def end_all(self) -> None:
        """Close all channels at the end of the group."""
        for ticket in list(self._open):
            self.end(ticket)

    async def end_overdue(self) -> None:
        """Close each query that the core does not end, until canceled."""
        while True:
            self._query_opened = trio.Event()
            with trio.move_on_at(min((each.ends_at for each in self._open.values()), default=inf)):
                await self._query_opened.wait()
            now = trio.current_time()
            for ticket in [ticket for ticket, each in self._open.items() if each.ends_at <= now]:
                self.end(ticket)
