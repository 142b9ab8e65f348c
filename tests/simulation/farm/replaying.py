"""Replays of the committed entries of a trial: the state of the nodes must be a function of the log alone.

    whole replay        all entries, applied by a new state machine
    snapshot and tail   a quarter, a snapshot of the first half restored over it, and the second half

Each node has its state from a different mixture of live entries, replays after restarts, and snapshots. All states
must be equal.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from bridge.node.events.event_log import EventLog, clock_ms
from bridge.node.raft.applied_state import AppliedState
from consensus import Entry, EntryKind, LogId
from tests.simulation.farm.workload import Applied


@dataclass(frozen=True, slots=True)
class Founding:
    """The arguments of each state machine of a farm."""

    log_time_base_ms: int
    founders: tuple[bytes, ...]
    cluster_id: bytes

    def new_state(self) -> AppliedState:
        """Return the state machine of an empty log."""
        trace = EventLog("replay", clock_ms, 1)
        return AppliedState(self.log_time_base_ms, trace, self.founders, self.cluster_id)


def digest_of(state: AppliedState) -> str:
    return sha256(b"".join(state.snapshot())).hexdigest()


@dataclass(frozen=True, slots=True)
class FirstSnapshot:
    """The first snapshot of a recovered farm; its log begins there."""

    last: LogId
    chunks: tuple[bytes, ...]


async def replayed(
    founding: Founding, committed: Mapping[int, Applied], last: int, first: FirstSnapshot | None = None
) -> dict[str, str]:
    """Return the digests of the state after the entry at `last`, one for each kind of replay."""
    begin = 0 if first is None else first.last.index
    entries = [
        Entry(term, EntryKind(kind), data)
        for term, kind, data in (committed[each] for each in range(begin + 1, last + 1))
    ]
    whole, half, restored = (founding.new_state() for _ in range(3))
    if first is not None:
        for each in (whole, half, restored):
            await each.restore(first.last, _chunks(first.chunks))
    middle = len(entries) // 2
    await whole.apply(begin + 1, tuple(entries))
    await half.apply(begin + 1, tuple(entries[:middle]))
    await restored.apply(begin + 1, tuple(entries[: middle // 2]))
    at = LogId(begin + middle, entries[middle - 1].term) if middle else LogId(begin, 0) if first is None else first.last
    await restored.restore(at, _chunks(half.snapshot()))
    await restored.apply(begin + middle + 1, tuple(entries[middle:]))
    return {"whole replay": digest_of(whole), "snapshot and tail": digest_of(restored)}


async def _chunks(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for each in chunks:
        yield each
