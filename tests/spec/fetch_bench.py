"""One replica of a group whose followers fetch, on the test bench."""

from collections.abc import Sequence
from typing import Any, TypeVar

from consensus.core.effects import Effect, Role, Send
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
        self.asked: dict[ServerId, Fetch] = {}
        super().__init__(*terms, **{"features": KRAFT_STATIC, **options})

    def step(self, *arguments: Any, **options: Any) -> list[Effect]:
        """As ever, and remember what was fetched last."""
        effects = super().step(*arguments, **options)
        self._note_fetches()
        return effects

    def sent(self, kind: type[M], recipient: ServerId | None = None) -> list[M]:
        """The messages of one kind in the latest step."""
        return [
            send.message
            for send in self.all(Send)
            if isinstance(send.message, kind) and recipient in (None, send.recipient)
        ]

    def campaign(self) -> list[Effect]:
        """The election timer runs out, whatever else is due before."""
        self.now = max(self.now, self.raft._role.current.deadline)
        return self.step(DeadlineReached())

    def lead(self) -> list[Effect]:
        """Campaign without pre-vote and win with all votes."""
        self.campaign()
        effects = self.grant(
            *(server for server in sorted(self.about.configuration.voter_ids) if server != self.own_id)
        )
        self.effects = effects
        assert self.about.role is Role.LEADER
        return effects

    def follow(self, leader: ServerId = TWO, term: int = 1) -> Fetch:
        """A leader announces itself; returns the fetch that it gets."""
        assert self.begin(leader, term).error is None
        return self.asked[leader]

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
        """A replica fetches; returns the answers that it gets at once."""
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
        asked: Fetch,
        entries: Sequence[Entry] = (),
        *,
        commit: int = 0,
        sender: ServerId = TWO,
        leader: ServerId | None = TWO,
        term: int | None = None,
        diverging: LogId | None = None,
        error: RefusalReason | None = None,
    ) -> list[Effect]:
        """The answer to a fetch of ours arrives."""
        own_term = asked.term if term is None else term
        answer = FetchReply(
            term=own_term,
            leader=leader,
            commit=commit,
            correlation=asked.correlation,
            entries=tuple(entries),
            diverging=diverging,
            error=error,
        )
        return self.receive(sender, answer)

    def begin(self, leader: ServerId, term: int, cluster_id: str | None = None) -> BeginQuorumEpochReply:
        """A leader announces itself; returns the answer."""
        self.correlation += 1
        self.receive(
            leader, BeginQuorumEpoch(term=term, leader=leader, correlation=self.correlation, cluster_id=cluster_id)
        )
        (answer,) = self.sent(BeginQuorumEpochReply, leader)
        return answer

    def end(self, leader: ServerId, term: int, *preferred: int, cluster_id: str | None = None) -> EndQuorumEpochReply:
        """A leader resigns; returns the answer."""
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
                self.asked[send.recipient] = send.message
