"""The last events of a group, numbered, so that a reader can go away and come back.

A queue per reader either grows while its reader sleeps or drops events that the reader never learns of. A ring of fixed
size with a running number on each event does neither: a reader keeps the number (its cursor) of the event that it
handled last, asks for what came after, and is told how many events it was too late for.

The ring holds so many events *of each type*. In a ring for all types, events that others may send without bound would
push out those that must not be missed: one batch of datagrams can carry 2,048 user events, and no reader runs before
the whole batch is handled.
"""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Numbered(Generic[T]):
    """One event. `cursor` resumes behind it; `lost` counts the events right before it that the ring no longer held."""

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
        """How many events readers were too late for, all readers together."""

    def append(self, event: T) -> None:
        """One more event."""
        self.cursor += 1
        self._lanes.setdefault(type(event), deque(maxlen=self._limit)).append((self.cursor, event))
        self._more.set()
        self._more = trio.Event()

    def close(self) -> None:
        """No event comes any more: readers end after the last."""
        self._closed = True
        self._more.set()

    def after(self, cursor: int) -> "Reader[T]":
        """What came after `cursor`, and then every event as it comes."""
        if not 0 <= cursor <= self.cursor:
            raise ValueError(f"cursor {cursor} is not of this stream, which has reached {self.cursor}: begin with 0")
        return Reader(self, cursor)

    async def next(self, cursor: int) -> Numbered[T] | None:
        """The first event after `cursor`, waited for; none when there will be none."""
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
    """An iterator over a ring. It holds nothing, so it can be dropped at any time without being closed."""

    def __init__(self, ring: EventRing[T], cursor: int) -> None:
        self._ring = ring
        self.cursor = cursor

    @property
    def has_more(self) -> bool:
        """Whether the next event is there already."""
        return self._ring.cursor > self.cursor

    def __aiter__(self) -> "Reader[T]":
        return self

    async def __anext__(self) -> Numbered[T]:
        numbered = await self._ring.next(self.cursor)
        if numbered is None:
            raise StopAsyncIteration
        self.cursor = numbered.cursor
        return numbered
