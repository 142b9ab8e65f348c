"""The last events of a group, numbered, so that a reader can go away and come back.

A queue per reader either grows while its reader sleeps or drops events that the reader never learns of. A ring of fixed
size with a running number on each event does neither: a reader keeps the number (its cursor) of the event that it
handled last, asks for what came after, and is told how many events it was too late for.
"""

from collections import deque
from dataclasses import dataclass
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
    """The last `limit` events."""

    def __init__(self, limit: int) -> None:
        self._events: deque[T] = deque(maxlen=limit)
        self._closed = False
        self._more = trio.Event()
        self.cursor = 0
        """The number of the newest event; 0 before the first."""
        self.lost = 0
        """How many events readers were too late for, all readers together."""

    def append(self, event: T) -> None:
        """One more event."""
        self.cursor += 1
        self._events.append(event)
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
        oldest = self.cursor - len(self._events) + 1
        number = max(cursor + 1, oldest)
        lost = number - cursor - 1
        self.lost += lost
        return Numbered(number, self._events[number - oldest], lost)


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
