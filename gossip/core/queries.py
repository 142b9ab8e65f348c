"""Queries: an application's questions to all members, and their replies, sent directly to the origin.

    send ──▶ [query] ──gossiped as a user message──▶ received ──answer──▶ QueryReply straight to the origin, in time

Each member replies once, and a query accepts as many replies as the directory has places. The number of open queries
is limited. At the limit, a further query of this node ends immediately, and a further query of another node replaces
the oldest.

A reply goes to the address in the query, and that address may be forged. So the rate of replies is limited. Addresses
without proof that a member receives there share a separate, much lower rate. So forged queries cannot flood a third
party, and do not use up the replies to members with a proved address.

Every member answers the query `gossip:keys` automatically, with a summary of its keyring.
"""

from typing import Final

from msgspec import Struct, field

from gossip.core.effects import Context, QueryAnswered, QueryEnded, QueryReceived
from gossip.core.keyring_exchange import KEYS_QUERY, KeyringExchange
from gossip.core.member import Address, NodeId
from gossip.core.messages import BODY_LIMIT_BYTES, QUERY_TIMEOUT_LIMIT_MS, DropReason, Query, QueryReply, UserMessageId
from gossip.core.options import TokenBucket
from gossip.core.user_events import UserEvents

REPLIES_PER_SECOND: Final = 20.0
REPLIES_BURST: Final = 40.0
UNPROVED_PER_SECOND: Final = 1.0
UNPROVED_BURST: Final = 8.0
"""Burst of replies, for an operator's command that sends a few queries; each member replies once to each query."""


class _OwnQuery(Struct):
    ticket: int
    deadline: int
    responders: set[NodeId] = field(default_factory=set)


class _Open(Struct, frozen=True):
    address: Address
    deadline: int


class Queries:
    """The open queries of this node and of other members."""

    def __init__(self, context: Context, user_events: UserEvents, keyring: KeyringExchange) -> None:
        self._context = context
        self._user_events = user_events
        self._keyring = keyring
        self._own: dict[UserMessageId, _OwnQuery] = {}
        self._open: dict[UserMessageId, _Open] = {}
        self._replies = TokenBucket(REPLIES_PER_SECOND, REPLIES_BURST)
        self._unproved = TokenBucket(UNPROVED_PER_SECOND, UNPROVED_BURST)

    @property
    def deadline(self) -> int | None:
        """The time of the next end of a query of this node."""
        return min([own.deadline for own in self._own.values()]) if self._own else None

    @property
    def clock(self) -> int:
        """The Lamport time of the known user messages."""
        return self._user_events.clock

    def sync_clock(self, clock: int) -> None:
        """Adopt the group's clock from a join: unsent messages of this node get later ids."""
        for old, new in self._user_events.sync_clock(clock).items():
            own = self._own.pop(old, None)
            if own is not None:
                self._own[new] = own

    def start(self, ticket: int, name: str, body: bytes, timeout_ms: int) -> None:
        """Send a query to all members; the replies carry `ticket` until the deadline."""
        if not 0 < timeout_ms <= QUERY_TIMEOUT_LIMIT_MS:
            raise ValueError(f"a query's timeout of {timeout_ms} ms must be from 1 to {QUERY_TIMEOUT_LIMIT_MS} ms")
        query_id = self._user_events.next_id(name, body)
        if len(self._own) >= self._context.options.queries_limit:
            self._context.drop(DropReason.QUERIES_FULL)
            self._context.emit(QueryEnded(ticket))
            return
        self._own[query_id] = _OwnQuery(ticket, self._context.now + timeout_ms)
        self._user_events.send(Query(query_id, name, body, self._context.local.info.address, timeout_ms))

    def answer(self, query_id: UserMessageId, body: bytes) -> None:
        """Reply to a query of another member: once, and in time."""
        if len(body) > BODY_LIMIT_BYTES:
            raise ValueError(f"an answer of {len(body)} bytes is over the limit of {BODY_LIMIT_BYTES}")
        query = self._open.pop(query_id, None)
        if query is None or query.deadline <= self._context.now:
            self._context.drop(DropReason.ANSWER_TOO_LATE)
        else:
            self._reply(query.address, query_id, body)

    def receive(self, query: Query) -> None:
        """Handle a new query of another member."""
        if query.name == KEYS_QUERY:
            self._reply(query.address, query.message_id, self._keyring.summary)
        elif 0 < query.timeout_ms <= QUERY_TIMEOUT_LIMIT_MS:
            if len(self._open) >= self._context.options.queries_limit:
                del self._open[next(iter(self._open))]
            self._open[query.message_id] = _Open(query.address, self._context.now + query.timeout_ms)
            self._context.emit(QueryReceived(query))
        else:
            self._context.drop(DropReason.BAD_USER_MESSAGE)

    def _reply(self, address: Address, query_id: UserMessageId, body: bytes) -> None:
        is_proved = (address.host, address.port) in self._context.members.proved
        if (self._replies if is_proved else self._unproved).take(self._context.now):
            self._context.send(address, QueryReply(query_id, self._context.local.node_id, body), query_id.origin)
        else:
            self._context.drop(DropReason.RATE_LIMITED)

    def receive_reply(self, reply: QueryReply) -> None:
        """Handle a reply to a query of this node: the first of each member counts."""
        own = self._own.get(reply.query_id)
        if own is None or len(reply.body) > BODY_LIMIT_BYTES:
            self._context.drop(DropReason.UNSOLICITED)
        elif len(own.responders) >= self._context.options.directory_limit or reply.responder in own.responders:
            self._context.drop(DropReason.ANSWER_REPEATED)
        else:
            own.responders.add(reply.responder)
            self._context.emit(QueryAnswered(own.ticket, reply.responder, reply.body))

    def expire(self) -> None:
        """End the queries of this node that reached their deadline."""
        for query_id, own in list(self._own.items()):
            if own.deadline <= self._context.now:
                del self._own[query_id]
                self._context.emit(QueryEnded(own.ticket))
