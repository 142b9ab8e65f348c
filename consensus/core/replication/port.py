"""The interface between a leader and its strategy of replication, for sending and for fetching.

    leader   ──appended, confirm, expire, receive──▶  strategy     sends entries, or replies to replicas that fetch
    leader   ◀──note_contact, acknowledge, confirmed  ProgressTracker  ◀── strategy

`append_leader` sends entries; `fetch_leader` replies to replicas that fetch. Neither makes decisions about safety: only
the `ProgressTracker` counts toward a majority, for all wires. A group uses one strategy, set in its protocol's row of
`features`.
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
        """Return the time of the next work of `expire`; report an earlier time to `ProgressTracker.wake_by`."""

    def begin(self) -> None:
        """Announce leadership; the leader has appended its first entry, if it needs one now."""

    def expire(self) -> None:
        """Do the work that is due."""

    def appended(self) -> None:
        """Continue after the log grew."""

    def followers_changed(self) -> None:
        """Continue after the set of followers changed."""

    def committed(self) -> None:
        """Continue after the commit index rose because our own disk caught up."""

    def receive(self, sender: ServerId, message: Message) -> None:
        """Process a message of this strategy, of our term, from any server."""

    def not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """Process an append kept back by the transport, because the peer lacks the entries from `next_index` on."""

    def connected(self, peer: ServerId) -> None:
        """Continue after a new connection to the peer: requests on the earlier one are lost."""

    def entries_read(self, event: EntriesRead) -> bool:
        """Process entries read from storage; return False if this strategy did not request them."""

    def snapshot_read(self, event: SnapshotRead) -> bool:
        """Process a chunk read from storage; return False if this strategy did not request it."""

    def confirm(self, round_number: int) -> None:
        """Query every voter, by a correlated request, to confirm that we still lead."""

    def resign(self, successor: ServerId | None) -> None:
        """End leadership: reply to waiting requests, and announce the successor after a resignation by choice."""

    def describe(self, now: Milliseconds) -> tuple[FollowerProgress, ...]:
        """Return the followers as plain data; ages count to `now`."""

    def faults(self) -> Iterator[str]:
        """Yield contradictions in the strategy's state, for the invariants."""
