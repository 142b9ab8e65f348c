"""What applications say to one another: broadcasts to everybody, and queries with an answer from each who has one.

    say ──▶ [user message] ──rides on pings, lambda * log n times──▶ heard once by each, and told on
    ask ──▶ [query]  ──the same way──▶ heard ──answer──▶ a QueryReply straight to the asker, until its deadline

A user message is named by (Lamport time, origin, generation). The time orders user messages as far as one could have
caused the other, and it is what bounds memory: the names heard last are remembered, and when the oldest of them is
forgotten its time becomes the floor; at or below the floor nothing is taken any more. A list of names alone would, once
full, hear old user messages for new.

A node that has just started knows no floor, and somebody who recorded the group's datagrams could play old user
messages to it. So it takes none until a join has told it the group's clock: the JoinAck that it asked for in this life
(a recorded one names an earlier life), or a JoinReq that shows a fresh token. What was said before is not for it.

A lie may put some members' floors far above what the others have reached (a clock beyond the horizon is refused, see
`clock_bound`, but the horizon is far). Whoever then hears a word well below its floor says the word `gossip:clock`,
which carries its clock to everybody: what is said after that is heard again.

Nothing repairs a user message that misses a member, as samples repair membership; it is told twice as often instead. Of
ten broadcasts in a group of twenty that loses a tenth of its datagrams, all reach everybody.

UserEvents are not signed: whoever holds the farm's key may speak in any member's name here, as with verdicts. The
queue, the memory, the questions open and those heard are bounded; when the queue is full what has been told most goes
first.
"""

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil, log10
from typing import Final, assert_never

from gossip.core.effects import QueryAnswered, QueryEnded, QueryReceived, UserEventReceived
from gossip.core.events import AnswerGiven, QueryRequested, UserEventRequested
from gossip.core.keyring_exchange import KEYS_QUERY, KeyringExchange
from gossip.core.local_node import LocalNode
from gossip.core.member import Address, NodeId
from gossip.core.messages import Query, QueryReply, UserEvent, UserMessage, UserMessageId
from gossip.core.options import Options
from gossip.core.outbox import DropReason, Outbox

NAME_LIMIT_CHARACTERS: Final = 32
BODY_LIMIT_BYTES: Final = 512
QUERY_TIMEOUT_LIMIT_MS: Final = 600_000
CLOCK_WORD: Final = "gossip:clock"
"""The name of a broadcast that says nothing but its own time; applications do not hear of it."""

_CLOCK_WORD_EVERY_MS: Final = 10_000
_RUMOUR_BYTES: Final = 64


def user_message_bytes(user_message: UserMessage) -> int:
    """About how many bytes a user message takes on the wire."""
    return _RUMOUR_BYTES + len(user_message.name) + len(user_message.body)


def is_sayable(name: str, body: bytes) -> bool:
    """Whether a name and what is said under it keep their limits."""
    return 0 < len(name) <= NAME_LIMIT_CHARACTERS and name.isprintable() and len(body) <= BODY_LIMIT_BYTES


@dataclass(slots=True)
class _Told:
    user_message: UserMessage
    knowing: NodeId
    """Who told us: it need not be told."""
    sent: int = 0


@dataclass(slots=True)
class _Asked:
    ticket: int
    deadline: int
    responders: set[NodeId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Question:
    """A query of somebody else that may still be answered."""

    address: Address
    deadline: int


class UserEvents:
    """The user messages still to be told, those heard lately, and the questions open on either side."""

    def __init__(self, own: LocalNode, keys: KeyringExchange, outbox: Outbox, options: Options) -> None:
        self._local = own
        self._keys = keys
        self._outbox = outbox
        self._options = options
        self._clock_word_at = 0
        self.clock = 0
        self._floor: int | None = None
        self._queue: dict[UserMessageId, _Told] = {}
        self._heard: set[UserMessageId] = set()
        self._heard_by_age: list[UserMessageId] = []
        self._asked: dict[UserMessageId, _Asked] = {}
        self._questions: dict[UserMessageId, _Question] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def deadline(self) -> int | None:
        """When the next own query ends."""
        return min((asked.deadline for asked in self._asked.values()), default=None)

    def requested(self, event: UserEventRequested | QueryRequested | AnswerGiven, now: int) -> None:
        """What our application wants told."""
        match event:
            case UserEventRequested(name, body):
                self.say(name, body)
            case QueryRequested(ticket, name, body, timeout_ms):
                self.ask(ticket, name, body, timeout_ms, now)
            case AnswerGiven(query_id, body):
                self.answer(query_id, body, now)
            case _:
                assert_never(event)

    # -- what our application says --------------------------------------------------------------------------------

    def say(self, name: str, body: bytes) -> None:
        """Tell everybody."""
        self._enqueue(UserEvent(self._next_id(name, body), name, body), self._local.node_id)

    def ask(self, ticket: int, name: str, body: bytes, timeout_ms: int, now: int) -> None:
        """Ask everybody; answers carry `ticket` until the deadline."""
        if not 0 < timeout_ms <= QUERY_TIMEOUT_LIMIT_MS:
            raise ValueError(f"a query's timeout of {timeout_ms} ms must be from 1 to {QUERY_TIMEOUT_LIMIT_MS} ms")
        message_id = self._next_id(name, body)
        if len(self._asked) >= self._options.queries_limit:
            self._outbox.drop(DropReason.QUERIES_FULL)
            self._outbox.emit(QueryEnded(ticket))
            return
        self._asked[message_id] = _Asked(ticket, now + timeout_ms)
        self._enqueue(Query(message_id, name, body, self._local.info.address, timeout_ms), self._local.node_id)

    def answer(self, message_id: UserMessageId, body: bytes, now: int) -> None:
        """Answer a query that was heard: once, and in time."""
        if len(body) > BODY_LIMIT_BYTES:
            raise ValueError(f"an answer of {len(body)} bytes is over the limit of {BODY_LIMIT_BYTES}")
        question = self._questions.pop(message_id, None)
        if question is None or question.deadline <= now:
            self._outbox.drop(DropReason.ANSWER_TOO_LATE)
        else:
            self._outbox.send(question.address, QueryReply(message_id, self._local.node_id, body), message_id.origin)

    def _next_id(self, name: str, body: bytes) -> UserMessageId:
        if not is_sayable(name, body):
            raise ValueError(
                f"a broadcast or query has a name of 1 to {NAME_LIMIT_CHARACTERS} printable characters and at most "
                f"{BODY_LIMIT_BYTES} bytes, not {len(name)} and {len(body)}"
            )
        self.clock += 1
        return UserMessageId(self.clock, self._local.node_id, self._local.incarnation.generation)

    # -- what others say ------------------------------------------------------------------------------------------

    def sync_clock(self, clock: int, now: int) -> None:
        """A join told the group's clock: what is said later is for us."""
        if not 0 <= clock <= self._keys.clock_bound.at(now):
            self._outbox.drop(DropReason.BAD_USER_MESSAGE)
            return
        self.clock = max(self.clock, clock)
        if self._floor is None:
            self._floor = clock
            self._date_anew()

    def _date_anew(self) -> None:
        """What we said before we knew the group's clock lies below the floor of others: they would not take it."""
        early = [told for told in self._queue.values() if told.sent == 0 and told.knowing == self._local.node_id]
        for told in early:
            del self._queue[told.user_message.message_id]
            self.clock += 1
            message_id = replace(told.user_message.message_id, time=self.clock)
            asked = self._asked.pop(told.user_message.message_id, None)
            if asked is not None:
                self._asked[message_id] = asked
            self._queue[message_id] = _Told(replace(told.user_message, message_id=message_id), told.knowing)

    def hear(self, user_messages: tuple[UserMessage, ...], teller: NodeId, now: int) -> None:
        """UserEvents that rode on a ping of `teller`, or on its answer."""
        for user_message in user_messages:
            time = user_message.message_id.time
            if not is_sayable(user_message.name, user_message.body) or not 0 < time <= self._keys.clock_bound.at(now):
                self._outbox.drop(DropReason.BAD_USER_MESSAGE)
            elif self._floor is None:
                self._outbox.drop(DropReason.USER_MESSAGE_BEFORE_JOIN)
            else:
                self.clock = max(self.clock, time)
                if self._is_news(user_message.message_id, self._floor):
                    self._take(user_message, teller, now)
                elif time < self._floor - self._options.user_messages_remembered:
                    self._tell_clock(now)

    def _tell_clock(self, now: int) -> None:
        """Somebody is so far behind that we could not take its words for new."""
        if now >= self._clock_word_at:
            self._clock_word_at = now + _CLOCK_WORD_EVERY_MS
            self.say(CLOCK_WORD, b"")

    def _is_news(self, message_id: UserMessageId, floor: int) -> bool:
        return message_id.time > floor and message_id not in self._heard and message_id.origin != self._local.node_id

    def _take(self, user_message: UserMessage, teller: NodeId, now: int) -> None:
        self._heard.add(user_message.message_id)
        heappush(self._heard_by_age, user_message.message_id)
        if len(self._heard) > self._options.user_messages_remembered:
            oldest = heappop(self._heard_by_age)
            self._heard.remove(oldest)
            self._floor = max(self._floor or 0, oldest.time)
        self._enqueue(user_message, teller)
        if user_message.name == CLOCK_WORD:
            self._clock_word_at = now + _CLOCK_WORD_EVERY_MS
        elif isinstance(user_message, UserEvent):
            self._outbox.emit(UserEventReceived(user_message))
        elif user_message.name == KEYS_QUERY:
            reply = QueryReply(user_message.message_id, self._local.node_id, self._keys.summary)
            self._outbox.send(user_message.address, reply, user_message.message_id.origin)
        elif 0 < user_message.timeout_ms <= QUERY_TIMEOUT_LIMIT_MS:
            self._remember_question(user_message, now)
            self._outbox.emit(QueryReceived(user_message))
        else:
            self._outbox.drop(DropReason.BAD_USER_MESSAGE)

    def _remember_question(self, query: Query, now: int) -> None:
        if len(self._questions) >= self._options.queries_limit:
            del self._questions[next(iter(self._questions))]
        self._questions[query.message_id] = _Question(query.address, now + query.timeout_ms)

    def hear_reply(self, reply: QueryReply) -> None:
        """An answer to a query of ours: the first of each member counts."""
        asked = self._asked.get(reply.query_id)
        if asked is None or len(reply.body) > BODY_LIMIT_BYTES:
            self._outbox.drop(DropReason.UNSOLICITED)
        elif len(asked.responders) >= self._options.directory_limit or reply.responder in asked.responders:
            self._outbox.drop(DropReason.ANSWER_REPEATED)
        else:
            asked.responders.add(reply.responder)
            self._outbox.emit(QueryAnswered(asked.ticket, reply.responder, reply.body))

    def expire(self, now: int) -> None:
        """End the queries whose deadline has come, on either side."""
        for message_id, asked in list(self._asked.items()):
            if asked.deadline <= now:
                del self._asked[message_id]
                self._outbox.emit(QueryEnded(asked.ticket))

    # -- telling on -----------------------------------------------------------------------------------------------

    def _enqueue(self, user_message: UserMessage, knowing: NodeId) -> None:
        if len(self._queue) >= self._options.user_messages_limit:
            worn = max(self._queue.values(), key=lambda told: told.sent)
            del self._queue[worn.user_message.message_id]
        self._queue[user_message.message_id] = _Told(user_message, knowing)

    def take(self, budget_bytes: int, group_size: int, told: NodeId | None) -> tuple[UserMessage, ...]:
        """What to tell a member now: the least told first, as much as fits. Counts as sent."""
        limit = self._options.user_message_retransmit_multiplier * ceil(log10(group_size + 1))
        taken: list[UserMessage] = []
        for each in sorted(self._queue.values(), key=lambda each: each.sent):
            size = user_message_bytes(each.user_message)
            if size > budget_bytes or (
                told is not None and told in {each.knowing, each.user_message.message_id.origin}
            ):
                continue
            budget_bytes -= size
            taken.append(each.user_message)
            each.sent += 1
            if each.sent >= limit:
                del self._queue[each.user_message.message_id]
        return tuple(taken)
