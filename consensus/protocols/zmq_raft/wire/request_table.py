"""The executed requests of the log: request id -> index, derived from the log alone.

A client repeats a request until it gets a reply, and may repeat it to another leader. So each leader must know the ids
of all committed requests. A follower keeps the same table, since it may lead next. A restart rebuilds the table while
it applies the log. `consensus.sessions` cannot be used here, because it needs client names and sequence numbers. A
server can rely only on the time in a request id of ØMQ Raft.

*Expiry.* The leader accepts ids of up to 7 h 45 min ago (`request_ids`), and the table keeps them for 8 h. The margin
allows for different clocks. The *prune index* is the last index before the first unexpired entry: a snapshot may
replace the log up to there.

*Limit.* Beyond `limit` ids the oldest are dropped, and the *floor* rises to the time of the newest dropped one. An
unknown id at or below the floor counts as expired, so exactly-once holds with bounded memory. For each minute, the
table keeps the lowest index of the ids that it dropped. So these entries stay in the log until their ids expire, and a
restart computes the same floor.

    recent: a dict, up to 4,096 ids ──full──▶ merged into sorted runs; each record has 20 bytes: the id and its index

An id begins with its time, so the oldest merged ids are at the head of the first run. A dict would take 180 bytes for
each id; a lookup in the runs is two binary searches.
"""

import struct
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Final

from consensus.core.model import Index
from consensus.protocols.zmq_raft.wire.frames import REQUEST_ID_BYTES
from consensus.protocols.zmq_raft.wire.request_ids import NO_REQUEST_ID, request_seconds

DEFAULT_LIMIT: Final = 262_144
_RECORD: Final = struct.Struct(f">{REQUEST_ID_BYTES}sQ")
_RUN_RECORDS: Final = 4096
_MINUTE: Final = 60
_NOTHING: Final = 2**64


class _Run:
    """Records in order of id, at least one; `lowest` is the lowest index among them."""

    __slots__ = ("first", "lowest", "records")

    def __init__(self, records: bytes) -> None:
        self.records = records
        self.first = records[:REQUEST_ID_BYTES]
        self.lowest: Index = min(index for _, index in _RECORD.iter_unpack(records))

    def __len__(self) -> int:
        return len(self.records) // _RECORD.size

    def position(self, request_id: bytes) -> int:
        """Return the number of the first record whose id is not below `request_id`."""
        records, size = self.records, _RECORD.size
        return bisect_left(
            range(len(self)), request_id, key=lambda at: records[at * size : at * size + REQUEST_ID_BYTES]
        )

    def find(self, request_id: bytes) -> Index | None:
        at = self.position(request_id) * _RECORD.size
        if self.records[at : at + REQUEST_ID_BYTES] != request_id:
            return None
        index: Index
        _, index = _RECORD.unpack_from(self.records, at)
        return index


class RequestTable:
    """The ids of the newest requests, at most `limit` of them."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"a table of requests has room for at least one id, not {limit}")
        self._limit = limit
        self._recent_limit = max(1, min(_RUN_RECORDS, limit // 16))
        self._recent: dict[bytes, Index] = {}
        self._runs: list[_Run] = []
        self._firsts: list[bytes] = []
        self._sorted = 0
        self._newest = b""
        """Upper bound of the sorted ids. Most new ids are above it, so the table does not search the runs for them."""
        self._oldest = bytes(REQUEST_ID_BYTES)
        """Ids below this one have expired, and are not added any more."""
        self._floor_seconds = -1
        self._lowest: Index | None = None
        """The lowest index in `_recent`, `_runs` and `_forgotten`; None until `prune_index` computes it again."""
        self._forgotten: dict[int, Index] = {}
        """Lowest index of ids dropped because of the limit, by the minute of their time."""

    def __len__(self) -> int:
        return len(self._recent) + self._sorted

    def add(self, request_id: bytes, index: Index) -> None:
        """Add the id of the entry at `index`. A known id keeps its first index; the zero id is ignored."""
        if request_id == NO_REQUEST_ID or self.index_of(request_id) is not None:
            return
        if request_id < self._oldest:
            self._raise_floor(request_id)
            return
        self._recent[request_id] = index
        if self._lowest is not None:
            self._lowest = min(self._lowest, index)
        if len(self._recent) >= self._recent_limit:
            self._merge()

    def index_of(self, request_id: bytes) -> Index | None:
        """Return the index of an executed request; None if the id is not known."""
        index = self._recent.get(request_id)
        if index is not None or request_id > self._newest:
            return index
        number = bisect_right(self._firsts, request_id) - 1
        return None if number < 0 else self._runs[number].find(request_id)

    def may_be_forgotten(self, request_id: bytes) -> bool:
        """Return True if an unknown id may have been executed: it must be refused as expired."""
        return request_seconds(request_id) <= self._floor_seconds

    def forget_before(self, seconds: int) -> None:
        """Drop the ids from before `seconds` (Unix time), because they have expired; do not add such ids later.

        A later call with an earlier time permits them again.
        """
        oldest = self._oldest = max(0, min(seconds, 2**32 - 1)).to_bytes(4) + bytes(REQUEST_ID_BYTES - 4)
        if self._recent and min(self._recent) < oldest:
            self._merge()
        while self._runs and self._firsts[0] < oldest:
            self._drop_oldest(self._runs[0].position(oldest))
        for minute in [minute for minute in self._forgotten if (minute + 1) * _MINUTE <= seconds]:
            del self._forgotten[minute]
            self._lowest = None

    def prune_index(self, applied: Index) -> Index:
        """Return the last index before the first entry whose id has not expired; `applied` without such an entry."""
        if self._lowest is None:
            lowest = min(self._recent.values(), default=_NOTHING)
            lowest = min(lowest, min((run.lowest for run in self._runs), default=_NOTHING))
            self._lowest = min(lowest, min(self._forgotten.values(), default=_NOTHING))
        return min(self._lowest - 1, applied)

    def clear(self) -> None:
        """Drop all ids, because a snapshot is restored; the entries after it are then added. The floor stays."""
        self._recent.clear()
        self._runs.clear()
        self._firsts.clear()
        self._forgotten.clear()
        self._sorted = 0
        self._newest = b""
        self._lowest = None

    def _merge(self) -> None:
        """Move the recent ids into the sorted runs, each into the run whose range contains it."""
        added = sorted(_RECORD.pack(request_id, index) for request_id, index in self._recent.items())
        self._recent.clear()
        starts = [bisect_left(added, first) for first in self._firsts[1:]]
        runs: list[_Run] = []
        for number, (start, end) in enumerate(pairwise([0, *starts, len(added)])):
            old = self._runs[number : number + 1]
            runs += _merged(old[0], added[start:end]) if old and start < end else old or _runs(added)
        self._runs, self._firsts = runs, [run.first for run in runs]
        self._sorted += len(added)
        self._newest = max(self._newest, added[-1][:REQUEST_ID_BYTES])
        room = self._limit - self._recent_limit + 1
        while self._sorted > room:
            self._note_forgotten(self._drop_oldest(self._sorted - room))

    def _drop_oldest(self, count: int) -> bytes:
        """Remove up to `count` records from the first run; return them."""
        run = self._runs[0]
        self._lowest = None
        dropped, remaining = run.records[: count * _RECORD.size], run.records[count * _RECORD.size :]
        self._runs[:1] = [_Run(remaining)] if remaining else []
        self._firsts[:1] = [remaining[:REQUEST_ID_BYTES]] if remaining else []
        self._sorted -= len(dropped) // _RECORD.size
        self._raise_floor(dropped[-_RECORD.size :][:REQUEST_ID_BYTES])
        return dropped

    def _raise_floor(self, forgotten: bytes) -> None:
        self._floor_seconds = max(self._floor_seconds, request_seconds(forgotten))

    def _note_forgotten(self, records: bytes) -> None:
        for request_id, index in _RECORD.iter_unpack(records):
            minute = request_seconds(request_id) // _MINUTE
            self._forgotten[minute] = min(index, self._forgotten.get(minute, _NOTHING))


def _merged(run: _Run, added: list[bytes]) -> list[_Run]:
    size = _RECORD.size
    records = [run.records[at : at + size] for at in range(0, len(run.records), size)]
    return _runs(sorted(records + added))


def _runs(records: list[bytes]) -> list[_Run]:
    """Return runs of equal length; the last may be shorter.

    With equal lengths, no run between the first and the last is less than half full.
    """
    count = -(-len(records) // _RUN_RECORDS)
    length = -(-len(records) // count)
    return [_Run(b"".join(records[at : at + length])) for at in range(0, len(records), length)]
