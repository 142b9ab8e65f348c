"""What applications say to one another: broadcasts to everybody, and queries with an answer from each who has one.

    say ──▶ [rumour] ──rides on pings, lambda * log n times──▶ heard once by each, and told on
    ask ──▶ [query]  ──the same way──▶ heard ──answer──▶ a QueryReply straight to the asker, until its deadline

A rumour is named by (Lamport time, origin, generation). The time orders rumours as far as one could have caused the
other, and it is what bounds memory: the names heard last are remembered, and when the oldest of them is forgotten its
time becomes the floor; at or below the floor nothing is taken any more. A list of names alone would, once full, hear
old rumours for new.

A node that has just started knows no floor, and somebody who recorded the group's datagrams could play old rumours to
it. So it takes none until a join has told it the group's clock: the JoinAck that it asked for in this life (a recorded
one names an earlier life), or a JoinReq that shows a fresh token. What was said before is
not for it.

A lie may put some members' floors far above what the others have reached (a clock beyond the horizon is refused, see
`horizon`, but the horizon is far). Whoever then hears a word well below its floor says the word `gossip:clock`, which
carries its clock to everybody: what is said after that is heard again.

Nothing repairs a rumour that misses a member, as samples repair membership; it is told twice as often instead. Of ten
broadcasts in a group of twenty that loses a tenth of its datagrams, all reach everybody.

Rumours are not signed: whoever holds the farm's key may speak in any member's name here, as with verdicts. The queue,
the memory, the questions open and those heard are bounded; when the queue is full what has been told most goes first.
"""

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil, log10
from typing import Final, assert_never

from gossip.core.effects import BroadcastHeard, QueryAnswered, QueryEnded, QueryHeard
from gossip.core.events import AnswerGiven, AskRequested, SayRequested
from gossip.core.keys import KEYS_QUERY, Keys
from gossip.core.member import Address, NodeId
from gossip.core.messages import Query, QueryReply, Rumour, RumourId, UserBroadcast
from gossip.core.outbox import DropReason, Outbox
from gossip.core.own import Own
from gossip.core.tuning import Tuning

NAME_LIMIT_CHARACTERS: Final = 32
BODY_LIMIT_BYTES: Final = 512
QUERY_TIMEOUT_LIMIT_MS: Final = 600_000
CLOCK_WORD: Final = "gossip:clock"
"""The name of a broadcast that says nothing but its own time; applications do not hear of it."""

_CLOCK_WORD_EVERY_MS: Final = 10_000
_RUMOUR_BYTES: Final = 64


def rumour_bytes(rumour: Rumour) -> int:
    """About how many bytes a rumour takes on the wire."""
    return _RUMOUR_BYTES + len(rumour.name) + len(rumour.body)


def is_sayable(name: str, body: bytes) -> bool:
    """Whether a name and what is said under it keep their limits."""
    return 0 < len(name) <= NAME_LIMIT_CHARACTERS and name.isprintable() and len(body) <= BODY_LIMIT_BYTES


@dataclass(slots=True)
class _Told:
    rumour: Rumour
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


class Rumours:
    """The rumours still to be told, those heard lately, and the questions open on either side."""

    def __init__(self, own: Own, keys: Keys, outbox: Outbox, tuning: Tuning) -> None:
        self._own = own
        self._keys = keys
        self._outbox = outbox
        self._tuning = tuning
        self._clock_word_at = 0
        self.clock = 0
        self._floor: int | None = None
        self._queue: dict[RumourId, _Told] = {}
        self._heard: set[RumourId] = set()
        self._heard_by_age: list[RumourId] = []
        self._asked: dict[RumourId, _Asked] = {}
        self._questions: dict[RumourId, _Question] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def deadline(self) -> int | None:
        """When the next own query ends."""
        return min((asked.deadline for asked in self._asked.values()), default=None)

    def requested(self, event: SayRequested | AskRequested | AnswerGiven, now: int) -> None:
        """What our application wants told."""
        match event:
            case SayRequested(name, body):
                self.say(name, body)
            case AskRequested(ticket, name, body, timeout_ms):
                self.ask(ticket, name, body, timeout_ms, now)
            case AnswerGiven(query_id, body):
                self.answer(query_id, body, now)
            case _:
                assert_never(event)

    # -- what our application says --------------------------------------------------------------------------------

    def say(self, name: str, body: bytes) -> None:
        """Tell everybody."""
        self._enqueue(UserBroadcast(self._next_id(name, body), name, body), self._own.node_id)

    def ask(self, ticket: int, name: str, body: bytes, timeout_ms: int, now: int) -> None:
        """Ask everybody; answers carry `ticket` until the deadline."""
        if not 0 < timeout_ms <= QUERY_TIMEOUT_LIMIT_MS:
            raise ValueError(f"a query's timeout of {timeout_ms} ms must be from 1 to {QUERY_TIMEOUT_LIMIT_MS} ms")
        rumour_id = self._next_id(name, body)
        if len(self._asked) >= self._tuning.queries_limit:
            self._outbox.drop(DropReason.QUERIES_FULL)
            self._outbox.emit(QueryEnded(ticket))
            return
        self._asked[rumour_id] = _Asked(ticket, now + timeout_ms)
        self._enqueue(Query(rumour_id, name, body, self._own.info.address, timeout_ms), self._own.node_id)

    def answer(self, rumour_id: RumourId, body: bytes, now: int) -> None:
        """Answer a query that was heard: once, and in time."""
        if len(body) > BODY_LIMIT_BYTES:
            raise ValueError(f"an answer of {len(body)} bytes is over the limit of {BODY_LIMIT_BYTES}")
        question = self._questions.pop(rumour_id, None)
        if question is None or question.deadline <= now:
            self._outbox.drop(DropReason.ANSWER_TOO_LATE)
        else:
            self._outbox.send(question.address, QueryReply(rumour_id, self._own.node_id, body), rumour_id.origin)

    def _next_id(self, name: str, body: bytes) -> RumourId:
        if not is_sayable(name, body):
            raise ValueError(
                f"a broadcast or query has a name of 1 to {NAME_LIMIT_CHARACTERS} printable characters and at most "
                f"{BODY_LIMIT_BYTES} bytes, not {len(name)} and {len(body)}"
            )
        self.clock += 1
        return RumourId(self.clock, self._own.node_id, self._own.incarnation.generation)

    # -- what others say ------------------------------------------------------------------------------------------

    def tune_in(self, clock: int, now: int) -> None:
        """A join told the group's clock: what is said later is for us."""
        if not 0 <= clock <= self._keys.horizon.at(now):
            self._outbox.drop(DropReason.BAD_RUMOUR)
            return
        self.clock = max(self.clock, clock)
        if self._floor is None:
            self._floor = clock
            self._date_anew()

    def _date_anew(self) -> None:
        """What we said before we knew the group's clock lies below the floor of others: they would not take it."""
        early = [told for told in self._queue.values() if told.sent == 0 and told.knowing == self._own.node_id]
        for told in early:
            del self._queue[told.rumour.rumour_id]
            self.clock += 1
            rumour_id = replace(told.rumour.rumour_id, time=self.clock)
            asked = self._asked.pop(told.rumour.rumour_id, None)
            if asked is not None:
                self._asked[rumour_id] = asked
            self._queue[rumour_id] = _Told(replace(told.rumour, rumour_id=rumour_id), told.knowing)

    def hear(self, rumours: tuple[Rumour, ...], teller: NodeId, now: int) -> None:
        """Rumours that rode on a ping of `teller`, or on its answer."""
        for rumour in rumours:
            time = rumour.rumour_id.time
            if not is_sayable(rumour.name, rumour.body) or not 0 < time <= self._keys.horizon.at(now):
                self._outbox.drop(DropReason.BAD_RUMOUR)
            elif self._floor is None:
                self._outbox.drop(DropReason.RUMOUR_BEFORE_JOIN)
            else:
                self.clock = max(self.clock, time)
                if self._is_news(rumour.rumour_id, self._floor):
                    self._take(rumour, teller, now)
                elif time < self._floor - self._tuning.rumours_remembered:
                    self._tell_clock(now)

    def _tell_clock(self, now: int) -> None:
        """Somebody is so far behind that we could not take its words for new."""
        if now >= self._clock_word_at:
            self._clock_word_at = now + _CLOCK_WORD_EVERY_MS
            self.say(CLOCK_WORD, b"")

    def _is_news(self, rumour_id: RumourId, floor: int) -> bool:
        return rumour_id.time > floor and rumour_id not in self._heard and rumour_id.origin != self._own.node_id

    def _take(self, rumour: Rumour, teller: NodeId, now: int) -> None:
        self._heard.add(rumour.rumour_id)
        heappush(self._heard_by_age, rumour.rumour_id)
        if len(self._heard) > self._tuning.rumours_remembered:
            oldest = heappop(self._heard_by_age)
            self._heard.remove(oldest)
            self._floor = max(self._floor or 0, oldest.time)
        self._enqueue(rumour, teller)
        if rumour.name == CLOCK_WORD:
            self._clock_word_at = now + _CLOCK_WORD_EVERY_MS
        elif isinstance(rumour, UserBroadcast):
            self._outbox.emit(BroadcastHeard(rumour))
        elif rumour.name == KEYS_QUERY:
            reply = QueryReply(rumour.rumour_id, self._own.node_id, self._keys.summary)
            self._outbox.send(rumour.address, reply, rumour.rumour_id.origin)
        elif 0 < rumour.timeout_ms <= QUERY_TIMEOUT_LIMIT_MS:
            self._remember_question(rumour, now)
            self._outbox.emit(QueryHeard(rumour))
        else:
            self._outbox.drop(DropReason.BAD_RUMOUR)

    def _remember_question(self, query: Query, now: int) -> None:
        if len(self._questions) >= self._tuning.queries_limit:
            del self._questions[next(iter(self._questions))]
        self._questions[query.rumour_id] = _Question(query.address, now + query.timeout_ms)

    def hear_reply(self, reply: QueryReply) -> None:
        """An answer to a query of ours: the first of each member counts."""
        asked = self._asked.get(reply.query_id)
        if asked is None or len(reply.body) > BODY_LIMIT_BYTES:
            self._outbox.drop(DropReason.UNSOLICITED)
        elif len(asked.responders) >= self._tuning.directory_limit or reply.responder in asked.responders:
            self._outbox.drop(DropReason.ANSWER_REPEATED)
        else:
            asked.responders.add(reply.responder)
            self._outbox.emit(QueryAnswered(asked.ticket, reply.responder, reply.body))

    def expire(self, now: int) -> None:
        """End the queries whose deadline has come, on either side."""
        for rumour_id, asked in list(self._asked.items()):
            if asked.deadline <= now:
                del self._asked[rumour_id]
                self._outbox.emit(QueryEnded(asked.ticket))

    # -- telling on -----------------------------------------------------------------------------------------------

    def _enqueue(self, rumour: Rumour, knowing: NodeId) -> None:
        if len(self._queue) >= self._tuning.rumours_limit:
            worn = max(self._queue.values(), key=lambda told: told.sent)
            del self._queue[worn.rumour.rumour_id]
        self._queue[rumour.rumour_id] = _Told(rumour, knowing)

    def take(self, budget_bytes: int, group_size: int, told: NodeId | None) -> tuple[Rumour, ...]:
        """What to tell a member now: the least told first, as much as fits. Counts as sent."""
        limit = self._tuning.rumour_retransmit_multiplier * ceil(log10(group_size + 1))
        taken: list[Rumour] = []
        for each in sorted(self._queue.values(), key=lambda each: each.sent):
            size = rumour_bytes(each.rumour)
            if size > budget_bytes or (told is not None and told in {each.knowing, each.rumour.rumour_id.origin}):
                continue
            budget_bytes -= size
            taken.append(each.rumour)
            each.sent += 1
            if each.sent >= limit:
                del self._queue[each.rumour.rumour_id]
        return tuple(taken)
