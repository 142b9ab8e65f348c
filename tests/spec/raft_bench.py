"""One replica on the test bench: built with any log and hard state, fed by hand, its disk as fast as the test wants."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from consensus.core.effects import Effect, Persist, Role, Send
from consensus.core.events import DeadlineReached, Event, PeerExtensions, Persisted, Proposed, Received
from consensus.core.features import GARLIC_FARM, KRAFT, ZMQ_RAFT, Extensions, Features, LeaderRecords
from consensus.core.log import describe_entries
from consensus.core.messages import AppendEntries, AppendReply, Message, RequestVote, VoteReply
from consensus.core.model import ORIGIN, Configuration, Entry, HardState, LogId, Server, ServerId
from consensus.core.options import Options, lan
from consensus.core.raft import Raft
from consensus.core.status import RaftDescription

T = TypeVar("T")

DEADLINES_MAX = 10
HEAD_BYTES = max(row.command_head_bytes for row in (GARLIC_FARM, ZMQ_RAFT, KRAFT)) + 1
"""So long is a command in the tests, which any protocol's log takes."""

ONE, TWO, THREE, FOUR, FIVE = (number for number in range(1, 6))


def group(size: int) -> Configuration:
    """A configuration of the servers 1 to `size`."""
    return Configuration(tuple(Server(number, f"tcp://{number}") for number in range(1, size + 1)))


def entries_of(*terms: int) -> tuple[Entry, ...]:
    """Entries with these terms; what is at an index depends on index and term only, as in any real history."""
    return tuple(
        Entry.command(term, f"{index}.{term}".encode().ljust(HEAD_BYTES)) for index, term in enumerate(terms, start=1)
    )


def suffix(start: int, *terms: int) -> tuple[Entry, ...]:
    """Entries with these terms, the first of them at index `start`."""
    return tuple(
        Entry.command(term, f"{index}.{term}".encode().ljust(HEAD_BYTES))
        for index, term in enumerate(terms, start=start)
    )


class Bench:
    """Server 1 of a group. `fast` disks complete every Persist at once."""

    def __init__(
        self,
        *terms: int,
        term: int | None = None,
        voted_for: ServerId | None = None,
        voters: int = 3,
        fast: bool = True,
        options: Options | None = None,
        pre_vote: bool | None = False,
        seed: int = 1,
        configuration: Configuration | None = None,
        entries: Sequence[Entry] | None = None,
        features: Features = GARLIC_FARM,
        extended: bool = True,
        cluster_id: str | None = None,
        own_id: ServerId = ONE,
        leader_records: LeaderRecords | None = None,
    ) -> None:
        self.fast = fast
        self.own_id = own_id
        self.now = 0
        self.effects: list[Effect] = []
        own_term = term if term is not None else (terms[-1] if terms else 0)
        self.raft = Raft(
            own_id,
            group(voters) if configuration is None else configuration,
            HardState(own_term, voted_for),
            describe_entries(entries_of(*terms) if entries is None else entries),
            replace(options or lan(), check_invariants=True),
            features,
            Random(seed),
            0,
            cluster_id,
            leader_records,
        )
        self.correlation = 1_000
        if pre_vote is not None:  # None: no peer was reached yet
            for number in range(2, voters + 1):
                self.step(PeerExtensions(number, Extensions(pre_vote=pre_vote, configurations=extended)))

    @property
    def about(self) -> RaftDescription:
        """The replica's description."""
        return self.raft.describe()

    def is_(self, role: Role) -> bool:
        """Whether the replica is in this role now."""
        return self.about.role is role

    @property
    def terms(self) -> list[int]:
        """The terms of the log's entries."""
        log = self.raft._replica.log
        return [log.term_at(index) or 0 for index in range(1, log.last_index + 1)]

    def step(self, event: Event, after_ms: int = 0) -> list[Effect]:
        """Give one event, and with a fast disk the completion of every write; returns all effects."""
        self.now += after_ms
        self.effects = self.raft.step(event, self.now)
        if self.fast:
            pending = [effect for effect in self.effects if isinstance(effect, Persist)]
            while pending:
                more = self.raft.step(Persisted(pending.pop(0).number), self.now)
                pending += [effect for effect in more if isinstance(effect, Persist)]
                self.effects += more
        return self.effects

    def persisted(self, number: int) -> list[Effect]:
        """The slow disk completes the Persists up to `number`."""
        return self.step(Persisted(number))

    def receive(self, sender: ServerId, message: Message, after_ms: int = 0) -> list[Effect]:
        """A message arrives."""
        return self.step(Received(sender, message), after_ms)

    def expire(self) -> list[Effect]:
        """The clock goes on until the deadline brings something; a leader's may come before anything is due."""
        for _ in range(DEADLINES_MAX):
            self.now = max(self.now, self.raft.deadline)
            effects = self.step(DeadlineReached())
            if effects or not self.is_(Role.LEADER):
                break
        return effects

    def propose(self, *commands: bytes, proposal_id: int = 1) -> list[Effect]:
        """A client proposes."""
        return self.step(Proposed(proposal_id=proposal_id, commands=commands))

    def ask(
        self,
        term: int,
        last: LogId = ORIGIN,
        sender: ServerId = TWO,
        *,
        pre_vote: bool = False,
        after_ms: int = 0,
    ) -> VoteReply:
        """A candidate asks for a vote; returns the one answer."""
        self.correlation += 1
        self.receive(
            sender,
            RequestVote(term=term, candidate=sender, last=last, correlation=self.correlation, pre_vote=pre_vote),
            after_ms,
        )
        (send,) = (send for send in self.all(Send) if isinstance(send.message, VoteReply))
        assert send.recipient == sender
        assert isinstance(send.message, VoteReply)
        assert send.message.correlation == self.correlation
        return send.message

    def append(
        self,
        term: int,
        previous: LogId = ORIGIN,
        entries: Sequence[Entry] = (),
        commit: int = 0,
        sender: ServerId = TWO,
    ) -> AppendReply:
        """A leader sends an append; returns the one answer."""
        self.correlation += 1
        self.receive(
            sender,
            AppendEntries(
                term=term,
                leader=sender,
                previous=previous,
                entries=tuple(entries),
                commit=commit,
                correlation=self.correlation,
            ),
        )
        (send,) = (send for send in self.all(Send) if isinstance(send.message, AppendReply))
        assert send.recipient == sender
        assert isinstance(send.message, AppendReply)
        assert send.message.correlation == self.correlation
        return send.message

    def grant(self, *peers: ServerId, granted: bool = True, term: int | None = None) -> list[Effect]:
        """The peers answer the newest vote request."""
        effects: list[Effect] = []
        questions = [send for send in self.all(Send) if isinstance(send.message, RequestVote)]
        for peer in peers:
            (question,) = (send.message for send in questions if send.recipient == peer)
            assert isinstance(question, RequestVote)
            reply = VoteReply(
                term=term or question.term,
                granted=granted,
                correlation=question.correlation,
                pre_vote=question.pre_vote,
            )
            effects += self.receive(peer, reply)
        self.effects = effects
        return effects

    def matched(self, peer: ServerId, append: AppendEntries, up_to: int | None = None) -> list[Effect]:
        """`peer` stored what `append` carried (or the part up to an index)."""
        last = append.previous.index + len(append.entries) if up_to is None else up_to
        return self.receive(
            peer, AppendReply(term=append.term, success=True, next_index=last + 1, correlation=append.correlation)
        )

    def refused(self, peer: ServerId, append: AppendEntries, hint: int, term: int | None = None) -> list[Effect]:
        """`peer` refuses `append` and says from where to try."""
        return self.receive(
            peer, AppendReply(term=term or append.term, success=False, next_index=hint, correlation=append.correlation)
        )

    def lead(self) -> list[Effect]:
        """Campaign without pre-vote and win with all votes; returns the effects of becoming leader."""
        self.expire()
        effects = self.grant(
            *(server for server in sorted(self.about.configuration.voter_ids) if server != self.own_id)
        )
        self.effects = effects
        assert self.about.role is Role.LEADER
        return effects

    def all(self, kind: type[T]) -> list[T]:
        """The effects of one kind in the latest step."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def appends(self, peer: ServerId) -> list[AppendEntries]:
        """The appends that the latest step sends to `peer`."""
        return [
            send.message
            for send in self.all(Send)
            if send.recipient == peer and isinstance(send.message, AppendEntries)
        ]
