"""Test bench of one replica: any log and hard state, events by hand, a fast or a slow disk."""

from collections.abc import Sequence
from random import Random
from typing import Self, TypeVar

from msgspec.structs import replace

from consensus.core.effects import Effect, Persist, Role, Send
from consensus.core.events import DeadlineReached, Event, PeerExtensions, Persisted, Proposed, Received
from consensus.core.features import GARLIC_FARM, KRAFT, ZMQ_RAFT, Extensions, Features, LeaderRecords
from consensus.core.log import describe_entries
from consensus.core.messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotReply,
    VoteReply,
)
from consensus.core.model import ORIGIN, Configuration, Entry, HardState, LogId, Server, ServerId
from consensus.core.options import Options, lan
from consensus.core.raft import Raft
from consensus.core.status import RaftDescription

T = TypeVar("T")

DEADLINES_MAX = 10
HEAD_BYTES = max(row.command_head_bytes for row in (GARLIC_FARM, ZMQ_RAFT, KRAFT)) + 1
"""Size of a command in the tests, long enough for the log of any protocol."""

ONE, TWO, THREE, FOUR, FIVE = (number for number in range(1, 6))


IMAGE = b"0123456789"


def group(size: int) -> Configuration:
    return Configuration(tuple(Server(number, f"tcp://{number}") for number in range(1, size + 1)))


def entries_of(*terms: int) -> tuple[Entry, ...]:
    """Return entries with these terms.

    The content of an entry depends only on its index and term, as in any real history.
    """
    return tuple(
        Entry.command(term, f"{index}.{term}".encode().ljust(HEAD_BYTES)) for index, term in enumerate(terms, start=1)
    )


def suffix(start: int, *terms: int) -> tuple[Entry, ...]:
    """Return entries with these terms; the first is at index `start`."""
    return tuple(
        Entry.command(term, f"{index}.{term}".encode().ljust(HEAD_BYTES))
        for index, term in enumerate(terms, start=start)
    )


class Bench:
    """Server 1 of a group. `fast` disks complete every Persist immediately."""

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
        if pre_vote is not None:  # None: no peer has connected yet
            for number in range(2, voters + 1):
                self.step(PeerExtensions(number, Extensions(pre_vote=pre_vote, configurations=extended)))

    @property
    def about(self) -> RaftDescription:
        """Return the replica's description."""
        return self.raft.describe()

    def is_(self, role: Role) -> bool:
        """Return True if the replica is in this role now."""
        return self.about.role is role

    @property
    def terms(self) -> list[int]:
        """Return the terms of the log's entries."""
        log = self.raft._replica.log
        return [log.term_at(index) or 0 for index in range(1, log.last_index + 1)]

    def step(self, event: Event, after_ms: int = 0) -> list[Effect]:
        """Run one event and, with a fast disk, the completion of every write; return all effects."""
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
        """Complete the Persists up to `number` on the slow disk."""
        return self.step(Persisted(number))

    def receive(self, sender: ServerId, message: Message, after_ms: int = 0) -> list[Effect]:
        return self.step(Received(sender, message), after_ms)

    def expire(self) -> list[Effect]:
        """Advance the clock to the next deadline with effects. A leader's deadline may come before anything is due."""
        for _ in range(DEADLINES_MAX):
            self.now = max(self.now, self.raft.deadline)
            effects = self.step(DeadlineReached())
            if effects or not self.is_(Role.LEADER):
                break
        return effects

    def propose(self, *commands: bytes, proposal_id: int = 1) -> list[Effect]:
        return self.step(Proposed(proposal_id=proposal_id, commands=commands))

    def request_vote(
        self, term: int, last: LogId = ORIGIN, sender: ServerId = TWO, *, pre_vote: bool = False, after_ms: int = 0
    ) -> VoteReply:
        """Receive a candidate's vote request, and return the only reply."""
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
        """Receive a leader's append, and return the only reply."""
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

    def chunk(
        self,
        last: LogId,
        offset: int = 0,
        data: bytes = IMAGE,
        *,
        done: bool = True,
        term: int = 9,
        sender: ServerId = TWO,
    ) -> list[SnapshotReply]:
        """Receive a leader's chunk of a snapshot; return the replies of this step."""
        self.correlation += 1
        chunk = InstallSnapshot(
            term=term,
            leader=sender,
            last=last,
            configuration=group(3),
            offset=offset,
            data=data,
            done=done,
            correlation=self.correlation,
        )
        self.receive(sender, chunk)
        return self.snapshot_replies()

    def snapshot_replies(self) -> list[SnapshotReply]:
        return [send.message for send in self.all(Send) if isinstance(send.message, SnapshotReply)]

    def grant(self, *peers: ServerId, granted: bool = True, term: int | None = None) -> list[Effect]:
        """Receive the peers' replies to the newest vote request."""
        effects: list[Effect] = []
        requests = [send for send in self.all(Send) if isinstance(send.message, RequestVote)]
        for peer in peers:
            (request,) = (send.message for send in requests if send.recipient == peer)
            assert isinstance(request, RequestVote)
            reply = VoteReply(
                term=term or request.term, granted=granted, correlation=request.correlation, pre_vote=request.pre_vote
            )
            effects += self.receive(peer, reply)
        self.effects = effects
        return effects

    def matched(self, peer: ServerId, append: AppendEntries, up_to: int | None = None) -> list[Effect]:
        """Receive from `peer` that it stored the entries of `append`, or those up to an index."""
        last = append.previous.index + len(append.entries) if up_to is None else up_to
        return self.receive(
            peer, AppendReply(term=append.term, success=True, next_index=last + 1, correlation=append.correlation)
        )

    def refused(self, peer: ServerId, append: AppendEntries, hint: int, term: int | None = None) -> list[Effect]:
        return self.receive(
            peer, AppendReply(term=term or append.term, success=False, next_index=hint, correlation=append.correlation)
        )

    def expired(self) -> Self:
        """Advance the clock to the next deadline with effects; return this bench."""
        self.expire()
        return self

    def campaign(self) -> list[Effect]:
        """Advance to the election timeout."""
        return self.expire()

    def lead(self) -> Self:
        """Campaign without pre-vote and win with all votes; return this bench with the effects of all votes."""
        self.campaign()
        self.grant(*sorted(self.about.configuration.voter_ids - {self.own_id}))
        assert self.about.role is Role.LEADER
        return self

    def all(self, kind: type[T]) -> list[T]:
        """Return the effects of one kind in the latest step."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def appends(self, peer: ServerId) -> list[AppendEntries]:
        """Return the appends that the latest step sends to `peer`."""
        return [
            send.message
            for send in self.all(Send)
            if send.recipient == peer and isinstance(send.message, AppendEntries)
        ]
