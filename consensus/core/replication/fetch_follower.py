"""The follower's side of pulling: whom to ask, when, and which answers still mean something (KIP-595, Fetch).

    leader known      ask it; the answer (entries, a new commit index, or nothing after a while) is followed by the next
    leader unknown    ask the voters in random order until one of them knows
    no answer         ask again, and meanwhile take a late one
    disk is writing   a fetch says "I hold all this durably", so the next one waits; if that lasts, a fetch from the
                      durable end keeps the leader from taking us for dead

A reply answers the position that was asked for, and means nothing for another one. A late "your log diverges here"
would cut entries that came, and were committed, since. So what was asked is remembered, by correlation, and a reply
whose position is no longer the end of the log is dropped (`still_answers`).

Where the leader no longer has the entries it names its snapshot, and `assembly` says how much of that has come: pieces
are fetched one after the other, each when the one before is durable, and entries again when all is installed.

One fetch at a time. An answer that brings nothing is not followed by the next fetch before its time, whatever made the
leader answer early; otherwise the two would keep each other busy for nothing.
"""

from dataclasses import dataclass

from consensus.core.assembly import IncomingSnapshot
from consensus.core.model import LogId, Milliseconds, ServerId, Term
from consensus.core.pull_messages import Fetch, FetchSnapshot
from consensus.core.replica import Replica

MAX_REMEMBERED_FETCHES = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """One fetch that has no answer yet."""

    target: ServerId
    term: Term
    position: LogId
    sent_ms: Milliseconds
    overdue_ms: Milliseconds
    offset: int | None = None
    """From which byte of the snapshot of `position`; None if entries are asked for."""


def still_answers(last: LogId, asked: Asked) -> bool:
    """Whether the log still ends where it did when this was asked."""
    return asked.offset is None and asked.position == last


class Fetcher:
    """What is asked, and when to ask next."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._asked: dict[int, Asked] = {}
        self._waiting: Asked | None = None
        self._sent_ms: Milliseconds = replica.now
        self._rest_until_ms: Milliseconds = replica.now
        self._untried: list[ServerId] = []

    @property
    def deadline(self) -> Milliseconds | None:
        """When to look after things again; None if there is nobody to ask."""
        if self._waiting is not None:
            return self._waiting.overdue_ms
        if not self._replica.others:
            return None
        return max(self._rest_until_ms, self._sign_of_life_ms) if self._is_busy else self._rest_until_ms

    @property
    def remembered(self) -> int:
        """Fetches without an answer."""
        return len(self._asked)

    def tend(self, leader: ServerId | None) -> None:
        """Ask what is to be asked now, given who leads."""
        replica, waiting = self._replica, self._waiting
        if waiting is not None:
            redirected = leader not in (None, waiting.target) or waiting.term != replica.term
            if not redirected and replica.now < waiting.overdue_ms:
                return
            self._waiting = None
            if redirected:
                # Whoever leads a new term will announce itself to the voters soon; others must ask around.
                self._rest_until_ms = replica.now if leader is not None else replica.now + replica.options.heartbeat_ms
        if replica.now < self._rest_until_ms or (self._is_busy and replica.now < self._sign_of_life_ms):
            return
        target = self._next_voter() if leader is None else leader
        if target is None:
            return
        assembly = replica.assembly
        if assembly is None or self._is_busy or (assembly.term, assembly.leader) != (replica.term, leader):
            self._ask(target)
        else:
            self._ask_for_piece(assembly)

    def answered(self, sender: ServerId, correlation: int) -> Asked | None:
        """What this reply answers, once; None if it was never asked of the sender, or is forgotten."""
        asked = self._asked.get(correlation)
        if asked is None or asked.target != sender:
            return None
        del self._asked[correlation]
        if asked is self._waiting:
            self._waiting = None
        return asked

    def begin_anew(self) -> None:
        """A leader has announced itself: whatever was asked before, and of whom, says nothing about it."""
        self._asked.clear()
        self._waiting = None
        self.go_on()

    def forget_others(self) -> None:
        """An answer has shown who leads: what others were asked before, or the leader before it led, is out of date.

        A late "I do not lead" from then would make us forget a leader to whom we have just confirmed a lease.
        """
        self._asked.clear()
        self._waiting = None

    def go_on(self) -> None:
        """The answer brought something, or a leader is known: the next fetch may leave at once."""
        self._rest_until_ms = self._replica.now

    def rest(self) -> None:
        """The answer brought nothing: no new fetch within a heartbeat interval of the last."""
        self._rest_until_ms = max(self._replica.now, self._sent_ms + self._replica.options.heartbeat_ms)

    @property
    def _is_writing(self) -> bool:
        return self._replica.log.durable_index < self._replica.log.last_index

    @property
    def _is_busy(self) -> bool:
        """The disk writes or checks what came last, so the next fetch waits."""
        assembly = self._replica.assembly
        is_storing = assembly is not None and (
            assembly.check_id is not None or assembly.number > self._replica.durable_number
        )
        return self._is_writing or is_storing

    @property
    def _sign_of_life_ms(self) -> Milliseconds:
        return self._sent_ms + self._replica.options.election_timeout_min_ms // 3

    def _next_voter(self) -> ServerId | None:
        replica = self._replica
        self._untried = [voter for voter in self._untried if voter in replica.voters]
        if not self._untried:
            self._untried = list(replica.others)
            replica.random.shuffle(self._untried)
        return self._untried.pop() if self._untried else None

    def _ask(self, target: ServerId) -> None:
        replica, log = self._replica, self._replica.log
        # While the disk writes, this is only a sign of life: its position is not the log's end, so its entries will be
        # dropped, but the leader hears of us.
        durable = log.durable_index
        position = LogId(durable, log.term_at(durable) or 0) if self._is_writing else log.last
        max_wait_ms = replica.options.heartbeat_ms
        correlation = replica.next_correlation()
        fetch = Fetch(
            term=replica.term,
            replica=replica.server_id,
            position=position,
            commit=replica.applier.commit,
            max_wait_ms=max_wait_ms,
            correlation=correlation,
            cluster_id=replica.cluster_id,
        )
        after = 0 if self._is_writing else log.writing_number
        replica.outbox.send(target, fetch, max(replica.hard_state_number, after))
        self._remember(correlation, target, position, replica.now + max_wait_ms + replica.options.retry_ms)

    def _ask_for_piece(self, assembly: IncomingSnapshot) -> None:
        replica = self._replica
        correlation = replica.next_correlation()
        fetch = FetchSnapshot(
            term=replica.term,
            replica=replica.server_id,
            snapshot=assembly.last,
            offset=assembly.received,
            max_bytes=replica.options.snapshot_chunk_bytes,
            correlation=correlation,
            cluster_id=replica.cluster_id,
        )
        replica.outbox.send(assembly.leader, fetch, max(replica.hard_state_number, assembly.number))
        overdue_ms = replica.now + replica.options.retry_ms
        self._remember(correlation, assembly.leader, assembly.last, overdue_ms, assembly.received)

    def _remember(
        self,
        correlation: int,
        target: ServerId,
        position: LogId,
        overdue_ms: Milliseconds,
        offset: int | None = None,
    ) -> None:
        replica = self._replica
        asked = Asked(target, replica.term, position, replica.now, overdue_ms, offset)
        self._waiting = self._asked[correlation] = asked
        self._sent_ms = replica.now
        if len(self._asked) > MAX_REMEMBERED_FETCHES:
            del self._asked[next(iter(self._asked))]
