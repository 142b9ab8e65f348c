"""Exactly-once for updates by ØMQ Raft: the request ids (reqids) in the log, with their indexes.

    {"request":"zmq:5956dc8826f27e10dcccab20", ...}      an update in the farm's log names its reqid
    reqid ──▶ in the table?              duplicate: the entry is a copy, the table has the index of the first
          ──▶ at or below the floor?     expired: dropped, so it may have been applied
          ──▶ below all of a full table? expired: it would be dropped immediately
          ──▶ more than 7 h 45 min old   expired │ both by log time, which is equal on all servers
          ──▶ more than 15 min ahead     ahead   │
          ──▶ its author's share is full?  full: refused until the author's oldest reqids expire
          ──▶ new: recorded with its index

docs/reference/zmq-raft.md ("Request ids") explains why the table of sessions cannot serve these requests, and the rules
for a full table. docs/explanation/state.md ("Tables") explains the shares of authors.

`skipped` has the indexes of copies, and of other entries not applied under their reqid: a reader by ØMQ Raft gets a
checkpoint instead. Each snapshot contains this list, so it is bounded: at least the newest `SKIPPED_MAX` / 2 indexes
are kept. The constants and `second_of` repeat a few lines of `consensus.protocols.zmq_raft`, so that this core does not
import that package.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct

from consensus.sessions import TableReader, number_bytes

REQID_BYTES: Final = 12
REQIDS_MAX: Final = 32_768
"""Reqids per table, in 4 MB.

With up to this number of updates in eight hours, each reqid is kept for the full time; with more, the oldest are
dropped earlier.
"""
REQIDS_OF_AUTHOR_MAX: Final = REQIDS_MAX // 4
SKIPPED_MAX: Final = 16_384
OLDEST_S: Final = 7 * 3600 + 45 * 60
AHEAD_S: Final = 15 * 60
REPEATED_S: Final = OLDEST_S + AHEAD_S
"""A client repeats an update for at most this number of seconds: `requestIdTtl` of the package."""
_MARK: Final = "zmq:"
_FORMAT: Final = 1
_FORMAT_WITH_AUTHORS: Final = 2
_AUTHOR_BYTES: Final = 8
_NO_FLOOR: Final = bytes(REQID_BYTES)
_LAST_TAIL: Final = b"\xff" * (REQID_BYTES - 4)


class ReqidTableError(ValueError):
    """Bytes that are not a table of reqids of this format and within its limits."""


class ReqidStatus(Enum):
    """Verdict on an update."""

    NEW = "new"
    DUPLICATE = "duplicate"
    EXPIRED = "expired"
    AHEAD = "ahead"
    """Made too far in the future of log time."""
    FULL = "full"
    """The share of its author is full at present."""


def request_text(reqid: bytes) -> str:
    """Return the content of the member `request` of an entry; raise `ValueError` if these are not 12 bytes."""
    if len(reqid) != REQID_BYTES:
        raise ValueError(f"a reqid has {REQID_BYTES} bytes, not {len(reqid)}")
    return _MARK + reqid.hex()


def reqid_in(request: str | None) -> bytes | None:
    """Parse the result of `request_text`; return None for any other text, also for a reqid in another spelling."""
    if request is None or not request.startswith(_MARK) or len(request) != len(_MARK) + 2 * REQID_BYTES:
        return None
    try:
        reqid = bytes.fromhex(request[len(_MARK) :])
    except ValueError:
        return None
    return reqid if len(reqid) == REQID_BYTES and request_text(reqid) == request else None


def second_of(reqid: bytes) -> int:
    """Return the Unix second of its creation, by its client's clock."""
    return int.from_bytes(reqid[:4], "big")


class ReqidTable:
    """Reqids with the index of the entry applied under each, at most `limit`."""

    def __init__(self, limit: int = REQIDS_MAX) -> None:
        self._limit = limit
        self.floor = _NO_FLOOR
        self._indexes: dict[bytes, int] = {}
        self._lowest_first: list[bytes] = []
        self._author_of: dict[bytes, bytes] = {}
        """Author of each reqid from `BOUNDS_LEVEL` on."""
        self._of_author: dict[bytes, list[bytes]] = {}
        """The reqids of each author, the lowest first."""

    def __len__(self) -> int:
        return len(self._indexes)

    def judge(self, reqid: bytes, log_time_ms: int, author: bytes | None = None) -> ReqidStatus:
        """Return the verdict on an entry with this reqid at this log time; it counts against the share of `author`."""
        if reqid in self._indexes:
            return ReqidStatus.DUPLICATE
        ahead_s = second_of(reqid) - log_time_ms // 1000
        if ahead_s > AHEAD_S:
            return ReqidStatus.AHEAD
        is_full = len(self._lowest_first) >= self._limit
        if reqid <= self.floor or ahead_s < -OLDEST_S or (is_full and reqid < self._lowest_first[0]):
            return ReqidStatus.EXPIRED
        own: list[bytes] = [] if author is None else self._of_author.get(author, [])
        if len(own) >= REQIDS_OF_AUTHOR_MAX and second_of(own[0]) >= log_time_ms // 1000 - OLDEST_S:
            return ReqidStatus.FULL
        return ReqidStatus.NEW

    def admit(self, reqid: bytes, index: int, log_time_ms: int, author: bytes | None = None) -> ReqidStatus:
        """Judge the reqid of the entry at `index`, and record it if it is new. `author` as for `judge`."""
        verdict = self.judge(reqid, log_time_ms, author)
        if verdict is ReqidStatus.NEW:
            self._note(reqid, index, author)
            self._forget(log_time_ms // 1000 - OLDEST_S)
        return verdict

    def _note(self, reqid: bytes, index: int, author: bytes | None) -> None:
        self._indexes[reqid] = index
        heappush(self._lowest_first, reqid)
        if author is not None:
            self._author_of[reqid] = author
            heappush(self._of_author.setdefault(author, []), reqid)

    def index_of(self, reqid: bytes) -> int | None:
        """Return the index of the entry applied under this reqid; None if it is not known."""
        return self._indexes.get(reqid)

    def expire_until(self, second: int) -> None:
        """Refuse every reqid from this second or earlier that is not in the table."""
        self.floor = max(self.floor, min(max(second, 0), 2**32 - 1).to_bytes(4, "big") + _LAST_TAIL)

    def forget_after(self, second: int) -> None:
        """Drop the reqids of later seconds, and let reqids of these seconds be new again."""
        highest = min(max(second, 0), 2**32 - 1).to_bytes(4, "big") + _LAST_TAIL
        self.floor = min(self.floor, highest)
        self._indexes = {reqid: index for reqid, index in self._indexes.items() if reqid <= highest}
        self._author_of = {reqid: author for reqid, author in self._author_of.items() if reqid <= highest}
        self._order()

    def _order(self) -> None:
        """Make the heaps from `_indexes` and `_author_of`."""
        self._lowest_first = sorted(self._indexes)
        self._of_author = {}
        for reqid in self._lowest_first:
            if reqid in self._author_of:
                self._of_author.setdefault(self._author_of[reqid], []).append(reqid)

    def _forget(self, before_s: int) -> None:
        while self._lowest_first and (
            len(self._lowest_first) > self._limit or second_of(self._lowest_first[0]) < before_s
        ):
            lowest = heappop(self._lowest_first)
            del self._indexes[lowest]
            self.floor = max(self.floor, lowest)
            author = self._author_of.pop(lowest, None)
            if author is not None:
                # The lowest reqid of the table is also the lowest reqid of its author.
                heappop(self._of_author[author])
                if not self._of_author[author]:
                    del self._of_author[author]

    @property
    def has_authors(self) -> bool:
        """True if reqids count against the shares of their authors."""
        return bool(self._author_of)

    def dump(self, *, with_authors: bool = False) -> bytes:
        """Return the whole table: equal tables give equal bytes."""
        parts = [self.floor, number_bytes(len(self._indexes))]
        parts += [reqid + number_bytes(self._indexes[reqid]) for reqid in sorted(self._indexes)]
        if with_authors:
            parts.append(number_bytes(len(self._author_of)))
            parts += [reqid + self._author_of[reqid] for reqid in sorted(self._author_of)]
        return b"".join(parts)

    def load(self, reader: TableReader, *, with_authors: bool = False) -> None:
        """Load a dump; raise `ReqidTableError`."""
        self.floor = reader.take(REQID_BYTES)
        count = reader.number(self._limit)
        self._indexes = {reader.take(REQID_BYTES): reader.number() for _ in range(count)}
        if len(self._indexes) != count:
            raise ReqidTableError("a table of reqids contains a reqid twice")
        for _ in range(reader.number(count) if with_authors else 0):
            reqid, author = reader.take(REQID_BYTES), reader.take(_AUTHOR_BYTES)
            if reqid not in self._indexes or reqid in self._author_of:
                raise ReqidTableError(
                    "a table of reqids names an author of an unknown reqid, or two authors of one reqid"
                )
            self._author_of[reqid] = author
        self._order()


class Update(Struct, frozen=True):
    """An entry's reqid. `proven`: a member of the farm or a client key signed it."""

    reqid: bytes
    proven: bool
    author: bytes | None = None
    """The author whose share a proven update counts against; None below `BOUNDS_LEVEL`."""


class Reqids:
    """The tables of one farm's state machine."""

    def __init__(self, limit: int = REQIDS_MAX, skipped_max: int = SKIPPED_MAX) -> None:
        self._tables = {True: ReqidTable(limit), False: ReqidTable(limit)}
        self._skipped_max = skipped_max
        self._skipped: array[int] = array("q")

    def judge(self, update: Update, log_time_ms: int) -> ReqidStatus:
        """Return the verdict on an entry of this update now."""
        return self._tables[update.proven].judge(update.reqid, log_time_ms, update.author)

    def admit(self, update: Update, index: int, log_time_ms: int) -> ReqidStatus:
        """Judge the update in the entry at `index`, and record it; indexes rise."""
        verdict = self._tables[update.proven].admit(update.reqid, index, log_time_ms, update.author)
        if verdict is not ReqidStatus.NEW:
            self._skipped.append(index)
            if len(self._skipped) > self._skipped_max:
                del self._skipped[: self._skipped_max // 2]
        return verdict

    def index_of(self, update: Update) -> int | None:
        """Return the index of the entry applied for this update; None if it is not known."""
        return self._tables[update.proven].index_of(update.reqid)

    def is_skipped(self, index: int) -> bool:
        """Return True if the entry at `index` names a reqid and was not applied under it."""
        place = bisect_left(self._skipped, index)
        return place < len(self._skipped) and self._skipped[place] == index

    def may_have_forgotten(self, index: int) -> bool:
        """Return True if `is_skipped` may be False for `index` only because the list has dropped it."""
        has_forgotten = len(self._skipped) > self._skipped_max // 2
        return has_forgotten and index < self._skipped[0]

    def expire_until(self, second: int) -> None:
        """Refuse every reqid up to this second that is not in the tables."""
        for table in self._tables.values():
            table.expire_until(second)

    def turn_back(self, log_time_ms: int, by_ms: int) -> None:
        """Drop the reqids of a wrong time, after log time was set back by `by_ms` to `log_time_ms`.

        Otherwise the tables would refuse all new reqids until log time reaches the seconds of these reqids again. After
        a smaller correction, clients may still repeat updates with these reqids. So the tables keep the reqids, which
        expire within hours.
        """
        if by_ms > (REPEATED_S + AHEAD_S) * 1000:
            for table in self._tables.values():
                table.forget_after(log_time_ms // 1000 + AHEAD_S)

    def dump(self) -> bytes:
        """Return the bytes of all tables, for a snapshot; empty without an update."""
        if not self._skipped and all(len(each) == 0 and each.floor == _NO_FLOOR for each in self._tables.values()):
            return b""
        with_authors = any(each.has_authors for each in self._tables.values())
        return b"".join(
            (
                bytes([_FORMAT_WITH_AUTHORS if with_authors else _FORMAT]),
                *(each.dump(with_authors=with_authors) for each in self._tables.values()),
                number_bytes(len(self._skipped)),
                *map(number_bytes, self._skipped),
            )
        )

    @classmethod
    def load(cls, data: bytes, limit: int = REQIDS_MAX, skipped_max: int = SKIPPED_MAX) -> "Reqids":
        """Load the result of `dump`; raise `ReqidTableError`. Empty bytes: no update yet."""
        made = cls(limit, skipped_max)
        if not data:
            return made
        reader = TableReader(data, "a table of reqids", ReqidTableError)
        form = reader.take(1)[0]
        if form not in {_FORMAT, _FORMAT_WITH_AUTHORS}:
            raise ReqidTableError(f"a table of reqids has format {form}, not {_FORMAT} or {_FORMAT_WITH_AUTHORS}")
        for table in made._tables.values():
            table.load(reader, with_authors=form == _FORMAT_WITH_AUTHORS)
        skipped = [reader.number() for _ in range(reader.number(skipped_max))]
        if not _is_rising(skipped):
            raise ReqidTableError("the skipped indexes of a table of reqids do not rise")
        made._skipped = array("q", skipped)
        reader.end()
        return made


def _is_rising(numbers: Iterable[int]) -> bool:
    before = -1
    for number in numbers:
        if number <= before:
            return False
        before = number
    return True
