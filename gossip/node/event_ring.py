"""The last events of a group, numbered, so that a reader can leave and resume.

A queue per reader would either grow while its reader is inactive, or drop events without a notice. A ring of fixed size
with numbered events does neither. A reader keeps the number (its cursor) of its last event and requests the events
after it. The ring reports the number of events that it had already dropped.

The limit of the ring applies to each type of event. In a ring for all types, events that others may send without bound
would displace important ones. One batch of datagrams can carry 2,048 user events, and readers run only after the whole
batch is handled.
"""

from bisect import bisect_right
from collections import deque
from operator import itemgetter
from typing import Generic, TypeVar

import trio
from msgspec import Struct

T = TypeVar("T")


class Numbered(Struct, Generic[T], frozen=True):
    """One event. `cursor` resumes after it; `lost` counts the events right before it that the ring no longer held."""

    cursor: int
    event: T
    lost: int = 0


class EventRing(Generic[T]):
    """The last `limit` events of each type."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lanes: dict[type[T], deque[tuple[int, T]]] = {}
        self._closed = False
        self._more = trio.Event()
        self.cursor = 0
        """The number of the newest event; 0 before the first."""
        self.lost = 0
        """The number of events that readers missed, for all readers together."""

    def append(self, event: T) -> None:
        """Add an event."""
        self.cursor += 1
        self._lanes.setdefault(type(event), deque(maxlen=self._limit)).append((self.cursor, event))
        self._more.set()
        self._more = trio.Event()

    def close(self) -> None:
        """End the stream: readers end after the last event."""
        self._closed = True
        self._more.set()

    def after(self, cursor: int) -> "Reader[T]":
        """Return a reader of the events after `cursor`, and of further ones as they arrive."""
        if not 0 <= cursor <= self.cursor:
            raise ValueError(f"cursor {cursor} is not of this stream, which has reached {self.cursor}: begin with 0")
        return Reader(self, cursor)

    async def next(self, cursor: int) -> Numbered[T] | None:
        """Wait for the first event after `cursor` and return it; None at the end of the stream."""
        await trio.lowlevel.checkpoint()
        while self.cursor <= cursor:
            if self._closed:
                return None
            await self._more.wait()
        number, event = self._first_after(cursor)
        lost = number - cursor - 1
        self.lost += lost
        return Numbered(number, event, lost)

    def _first_after(self, cursor: int) -> tuple[int, T]:
        heads = []
        for lane in self._lanes.values():
            at = bisect_right(lane, cursor, key=itemgetter(0))
            if at < len(lane):
                heads.append(lane[at])
        return min(heads, key=itemgetter(0))


class Reader(Generic[T]):
    """An iterator over a ring. It can be dropped at any time without being closed."""

    def __init__(self, ring: EventRing[T], cursor: int) -> None:
        self._ring = ring
        self.cursor = cursor

    @property
    def has_more(self) -> bool:
        """True if the next event is already available."""
        return self._ring.cursor > self.cursor

    def __aiter__(self) -> "Reader[T]":
        return self

    async def __anext__(self) -> Numbered[T]:
        numbered = await self._ring.next(self.cursor)
        if numbered is None:
            raise StopAsyncIteration
        self.cursor = numbered.cursor
        return numbered
