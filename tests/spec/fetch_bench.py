"""Test bench of one replica in a group whose followers fetch."""

from collections.abc import Sequence
from typing import Any, TypeVar

from consensus.core.effects import Effect, Send
from consensus.core.events import DeadlineReached
from consensus.core.features import KRAFT_STATIC
from consensus.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchReply,
    Message,
    RefusalReason,
)
from consensus.core.model import ORIGIN, Entry, LogId, ServerId
from tests.spec.raft_bench import TWO, Bench

M = TypeVar("M", bound=Message)


class FetchBench(Bench):
    """Server 1 of a group whose followers fetch."""

    def __init__(self, *terms: int, **options: Any) -> None:
        self.fetches: dict[ServerId, Fetch] = {}
        super().__init__(*terms, **{"features": KRAFT_STATIC, **options})

    def step(self, *arguments: Any, **options: Any) -> list[Effect]:
        """Run a step, and record the fetches that it sends."""
        effects = super().step(*arguments, **options)
        self._note_fetches()
        return effects

    def sent(self, kind: type[M], recipient: ServerId | None = None) -> list[M]:
        """Return the messages of one kind in the latest step."""
        return [
            send.message
            for send in self.all(Send)
            if isinstance(send.message, kind) and recipient in (None, send.recipient)
        ]

    def campaign(self) -> list[Effect]:
        """Advance to the election timeout, past all earlier deadlines."""
        self.now = max(self.now, self.raft._role.current.deadline)
        return self.step(DeadlineReached())

    def follow(self, leader: ServerId = TWO, term: int = 1) -> Fetch:
        """Receive a leader's announcement, and return the fetch sent to that leader."""
        assert self.begin(leader, term).error is None
        return self.fetches[leader]

    def fetch(
        self,
        replica: ServerId,
        position: LogId = ORIGIN,
        *,
        term: int | None = None,
        commit: int = 0,
        max_wait_ms: int = 100,
        max_bytes: int = 1_000_000,
        cluster_id: str | None = None,
    ) -> list[FetchReply]:
        """Receive a replica's fetch, and return the immediate replies."""
        self.correlation += 1
        own_term = self.about.term if term is None else term
        fetch = Fetch(
            term=own_term,
            replica=replica,
            position=position,
            commit=commit,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            correlation=self.correlation,
            cluster_id=cluster_id,
        )
        self.receive(replica, fetch)
        return self.sent(FetchReply, replica)

    def reply(
        self,
        fetch: Fetch,
        entries: Sequence[Entry] = (),
        *,
        commit: int = 0,
        sender: ServerId = TWO,
        leader: ServerId | None = TWO,
        term: int | None = None,
        diverging: LogId | None = None,
        error: RefusalReason | None = None,
    ) -> list[Effect]:
        """Receive the reply to our fetch."""
        own_term = fetch.term if term is None else term
        answer = FetchReply(
            term=own_term,
            leader=leader,
            commit=commit,
            correlation=fetch.correlation,
            entries=tuple(entries),
            diverging=diverging,
            error=error,
        )
        return self.receive(sender, answer)

    def begin(self, leader: ServerId, term: int, cluster_id: str | None = None) -> BeginQuorumEpochReply:
        """Receive a leader's announcement, and return the reply."""
        self.correlation += 1
        self.receive(
            leader, BeginQuorumEpoch(term=term, leader=leader, correlation=self.correlation, cluster_id=cluster_id)
        )
        (answer,) = self.sent(BeginQuorumEpochReply, leader)
        return answer

    def end(self, leader: ServerId, term: int, *preferred: int, cluster_id: str | None = None) -> EndQuorumEpochReply:
        """Receive a leader's resignation, and return the reply."""
        self.correlation += 1
        successors = preferred
        self.receive(
            leader,
            EndQuorumEpoch(
                term=term, leader=leader, preferred=successors, correlation=self.correlation, cluster_id=cluster_id
            ),
        )
        (answer,) = self.sent(EndQuorumEpochReply, leader)
        return answer

    def _note_fetches(self) -> None:
        for send in self.all(Send):
            if isinstance(send.message, Fetch):
                self.fetches[send.recipient] = send.message
