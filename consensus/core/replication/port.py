"""What a leader asks of a strategy, and what a strategy may ask of its leader.

    leader   ──appended, committed, confirm, expire──▶  strategy     who sends, who keeps which timer, and how
    leader   ◀──heard, acknowledge, confirmed─────────  strategy     leadership and the commit index are announced

Push (`push.py`) sends entries; pull (`pull.py`) answers those who fetch. Neither decides anything about safety: what
counts towards a majority reaches the leader by `Office.acknowledge` only, whatever wire it came by. A group uses one
strategy, the one in its set of features's row.
"""

from collections.abc import Iterator
from typing import Protocol

from consensus.core.events import EntriesRead, SnapshotRead
from consensus.core.messages import Message
from consensus.core.model import Index, Milliseconds, ServerId
from consensus.core.status import FollowerProgress


class Office(Protocol):
    """The leader as its strategy sees it."""

    def heard(self, peer: ServerId) -> None:
        """The peer sent a word of our term just now: it counts for check-quorum."""

    def acknowledge(self, peer: ServerId, index: Index) -> None:
        """The peer holds our log up to `index` durably. The one way into commitment."""

    def confirmed(self, peer: ServerId, round_number: int) -> None:
        """The peer answered, in our term, a request that was sent in this round of `confirm` or later."""


class Replication(Protocol):
    """The leader's side of a strategy, for one term."""

    @property
    def deadline(self) -> Milliseconds | None:
        """When `expire` has something to do, if nothing happens before."""

    def begin(self) -> None:
        """The first entry of the term is appended: announce leadership."""

    def expire(self) -> None:
        """Do what is due by now."""

    def appended(self) -> None:
        """The log grew."""

    def followers_changed(self) -> None:
        """Servers joined the followers that were given at the beginning, or left them."""

    def committed(self) -> None:
        """The commit index rose."""

    def receive(self, sender: ServerId, message: Message) -> None:
        """A message of this strategy, of our term, from anybody."""

    def not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """The transport kept back an append, because the peer lacks the entries from `next_index` on."""

    def entries_read(self, event: EntriesRead) -> bool:
        """Storage answered; returns False if the read is not one of this strategy."""

    def snapshot_read(self, event: SnapshotRead) -> bool:
        """Storage answered with a piece of the snapshot; returns False if the read is not one of this strategy."""

    def confirm(self, round_number: int) -> None:
        """Ask every voter, by a correlated request, whether we still lead; answers go to `Office.confirmed`."""

    def resign(self, successor: ServerId | None) -> None:
        """Leadership ended: settle whatever is owed to others, and if it is by choice, say who should be next."""

    def describe(self) -> tuple[FollowerProgress, ...]:
        """The followers as plain data."""

    def faults(self) -> Iterator[str]:
        """What is impossible about the strategy's state, for the invariants."""
