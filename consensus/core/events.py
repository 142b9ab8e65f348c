"""What can happen to a `Raft`: the inputs of `step(event, now)`."""

from dataclasses import dataclass

from consensus.core.extensions import Extensions
from consensus.core.messages import Message
from consensus.core.position import Entry, Index, ServerId


@dataclass(frozen=True, slots=True)
class Received:
    """A message from another server."""

    sender: ServerId
    message: Message


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """`core.deadline` has come."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """A client wants `commands` appended, in order. `proposal_id` comes back in the one `Resolve` that answers."""

    proposal_id: int
    commands: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Persisted:
    """Persist effects up to and including `number` are durable."""

    number: int


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """The answer to `ReadEntries`: entries from `first` on. Empty when the range no longer exists (truncated since)."""

    request_id: int
    first: Index
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class PeerExtensions:
    """What the handshake with `peer` settled: what it understands beyond the protocol."""

    peer: ServerId
    extensions: Extensions


Event = Received | DeadlineReached | Proposed | Persisted | EntriesRead | PeerExtensions
