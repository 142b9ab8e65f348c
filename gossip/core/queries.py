"""Queries: what an application asks all members, and the answers that come straight back.

    ask ──▶ [query] ──gossiped as a user message──▶ received ──answer──▶ a QueryReply straight to the asker, in time

Each member answers once, and a query takes no more answers than the directory has places. The queries open on either
side are bounded: a further own one ends at once, a further one of others replaces the oldest.

A reply goes to the address in the query. So replies have a rate of their own, and those to addresses at which no member
has proved to receive have a much lower one. Queries in the name of a third party then cannot have it flooded, and take
no replies from members that ask in their own name.

One query every member answers by itself: `gossip:keys`, with a summary of its keyring.
"""

from dataclasses import dataclass, field
from typing import Final

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
"""An operator's commands ask a few times, of which each member answers each once."""


@dataclass(slots=True)
class _OwnQuery:
    """A query of this node."""

    ticket: int
    deadline: int
    responders: set[NodeId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Open:
    """A query of another member that this node may still answer."""

    address: Address
    deadline: int


class Queries:
    """The queries open on either side."""

    def __init__(self, context: Context, user_events: UserEvents, keyring: KeyringExchange) -> None:
        self._context = context
        self._user_events = user_events
        self._keyring = keyring
        self._asked: dict[UserMessageId, _OwnQuery] = {}
        self._open: dict[UserMessageId, _Open] = {}
        self._replies = TokenBucket(REPLIES_PER_SECOND, REPLIES_BURST)
        self._unproved = TokenBucket(UNPROVED_PER_SECOND, UNPROVED_BURST)

    @property
    def deadline(self) -> int | None:
        """When the next query of this node ends."""
        return min((asked.deadline for asked in self._asked.values()), default=None)

    @property
    def clock(self) -> int:
        """The Lamport time of the user messages that this node knows."""
        return self._user_events.clock

    def sync_clock(self, clock: int) -> None:
        """A join told the group's clock: messages of this node that were not sent yet get later ids."""
        for old, new in self._user_events.sync_clock(clock).items():
            asked = self._asked.pop(old, None)
            if asked is not None:
                self._asked[new] = asked

    def ask(self, ticket: int, name: str, body: bytes, timeout_ms: int) -> None:
        """Ask all members; the answers carry `ticket` until the deadline."""
        if not 0 < timeout_ms <= QUERY_TIMEOUT_LIMIT_MS:
            raise ValueError(f"a query's timeout of {timeout_ms} ms must be from 1 to {QUERY_TIMEOUT_LIMIT_MS} ms")
        query_id = self._user_events.next_id(name, body)
        if len(self._asked) >= self._context.options.queries_limit:
            self._context.drop(DropReason.QUERIES_FULL)
            self._context.emit(QueryEnded(ticket))
            return
        self._asked[query_id] = _OwnQuery(ticket, self._context.now + timeout_ms)
        self._user_events.send(Query(query_id, name, body, self._context.local.info.address, timeout_ms))

    def answer(self, query_id: UserMessageId, body: bytes) -> None:
        """Answer a query of another member: once, and in time."""
        if len(body) > BODY_LIMIT_BYTES:
            raise ValueError(f"an answer of {len(body)} bytes is over the limit of {BODY_LIMIT_BYTES}")
        query = self._open.pop(query_id, None)
        if query is None or query.deadline <= self._context.now:
            self._context.drop(DropReason.ANSWER_TOO_LATE)
        else:
            self._reply(query.address, query_id, body)

    def receive(self, query: Query) -> None:
        """A new query of another member."""
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
        """An answer to a query of this node: the first of each member counts."""
        asked = self._asked.get(reply.query_id)
        if asked is None or len(reply.body) > BODY_LIMIT_BYTES:
            self._context.drop(DropReason.UNSOLICITED)
        elif len(asked.responders) >= self._context.options.directory_limit or reply.responder in asked.responders:
            self._context.drop(DropReason.ANSWER_REPEATED)
        else:
            asked.responders.add(reply.responder)
            self._context.emit(QueryAnswered(asked.ticket, reply.responder, reply.body))

    def expire(self) -> None:
        """End the queries of this node whose deadline has come."""
        for query_id, asked in list(self._asked.items()):
            if asked.deadline <= self._context.now:
                del self._asked[query_id]
                self._context.emit(QueryEnded(asked.ticket))
