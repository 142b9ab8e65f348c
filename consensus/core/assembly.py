"""How far a follower has come in receiving its leader's snapshot.

One transfer at a time. It is named by the leader's term and the snapshot's last position: another leader may have other
bytes for the same position, so a transfer begins anew when either changes. Only the bytes' number is kept here; they
themselves lie on the disk.
"""

from dataclasses import dataclass

from consensus.core.model import LogId, ServerId, Term


@dataclass(slots=True)
class IncomingSnapshot:
    """One transfer. `received` bytes came without a gap; the newest of them are durable with Persist `number`."""

    term: Term
    leader: ServerId
    last: LogId
    received: int = 0
    number: int = 0
    check_id: int | None = None
    """All is there and is being read back; the request that brought the last piece, `correlation`, waits for that."""
    correlation: int = 0

    def is_of(self, term: Term, last: LogId) -> bool:
        """Whether a piece belongs to this transfer."""
        return (self.term, self.last) == (term, last)
