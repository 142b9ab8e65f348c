"""What a leader asks of a strategy of replication, whichever side sends and keeps the timers.

    leader   ──appended, confirm, expire, receive──▶  strategy     sends entries, or answers replicas that fetch
    leader   ◀──heard, acknowledge, confirmed──────  ProgressTracker  ◀── strategy

`append_leader` sends entries; `fetch_leader` answers replicas that fetch. Neither decides anything about safety: what
counts towards a majority reaches the `ProgressTracker` only, whatever wire it came by. A group uses one strategy, the
one in its protocol's row of `features`.
"""

from collections.abc import Iterator
from typing import Protocol

from consensus.core.events import EntriesRead, SnapshotRead
from consensus.core.messages import Message
from consensus.core.model import Index, Milliseconds, ServerId
from consensus.core.status import FollowerProgress


class Replication(Protocol):
    """The leader's side of a strategy, for one term."""

    @property
    def deadline(self) -> Milliseconds | None:
        """When `expire` has something to do; earlier than that, `ProgressTracker.wake_by` is told of it."""

    def begin(self) -> None:
        """The first entry of the term is appended: announce leadership."""

    def expire(self) -> None:
        """Do what is due by now."""

    def appended(self) -> None:
        """The log grew."""

    def followers_changed(self) -> None:
        """Servers joined the followers that were given at the beginning, or left them."""

    def committed(self) -> None:
        """The commit index rose, because our own disk caught up."""

    def receive(self, sender: ServerId, message: Message) -> None:
        """A message of this strategy, of our term, from any server."""

    def not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """The transport kept back an append, because the peer lacks the entries from `next_index` on."""

    def connected(self, peer: ServerId) -> None:
        """A new connection to the peer is up: what an earlier one carried is lost."""

    def entries_read(self, event: EntriesRead) -> bool:
        """Storage answered; returns False if the read is not one of this strategy."""

    def snapshot_read(self, event: SnapshotRead) -> bool:
        """Storage answered with a chunk of the snapshot; returns False if the read is not one of this strategy."""

    def confirm(self, round_number: int) -> None:
        """Ask every voter, by a correlated request, whether we still lead."""

    def resign(self, successor: ServerId | None) -> None:
        """Leadership ended: answer what waits, and if the leader resigned by choice, name the server to lead next."""

    def describe(self, now: Milliseconds) -> tuple[FollowerProgress, ...]:
        """The followers as plain data; ages count to `now`."""

    def faults(self) -> Iterator[str]:
        """What is impossible about the strategy's state, for the invariants."""
