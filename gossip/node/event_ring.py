"""The last events of a group, numbered, so that a reader can go away and come back.

A queue per reader either grows while its reader sleeps or throws its news away unseen. A ring of fixed size with a
running number on each event does neither: a reader keeps the number (its cursor) of what it has handled last, asks for
what came after, and is told how many events it was too late for.
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
    what: T
    lost: int = 0


class EventRing(Generic[T]):
    """The last `limit` events."""

    def __init__(self, limit: int) -> None:
        self._events: deque[tuple[int, T]] = deque(maxlen=limit)
        self._last = 0
        self._closed = False
        self._more = trio.Event()

    @property
    def cursor(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._last

    def append(self, event: T, lost: int = 0) -> None:
        """One more event; `lost` before it never reached the ring, and get numbers as if they had."""
        self._last += lost + 1
        self._events.append((self._last, event))
        self._wake()

    def close(self) -> None:
        """No event comes any more: readers end after the last."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        more, self._more = self._more, trio.Event()
        more.set()

    def after(self, cursor: int) -> "Reader[T]":
        """What came after `cursor`, and then everything as it comes."""
        if not 0 <= cursor <= self._last:
            raise ValueError(f"cursor {cursor} is not of this stream, which has reached {self._last}: begin with 0")
        return Reader(self, cursor)

    async def next(self, cursor: int) -> Numbered[T] | None:
        """The first event after `cursor`, waited for; none when there will be none."""
        await trio.lowlevel.checkpoint()
        while self._last <= cursor:
            if self._closed:
                return None
            await self._more.wait()
        behind = 0
        while behind < len(self._events) and self._events[-1 - behind][0] > cursor:
            behind += 1
        number, event = self._events[-behind]
        return Numbered(number, event, number - cursor - 1)


class Reader(Generic[T]):
    """An iterator over a ring. It holds nothing, so it can be dropped at any time without being closed."""

    def __init__(self, ring: EventRing[T], cursor: int) -> None:
        self._ring = ring
        self.cursor = cursor

    def __aiter__(self) -> "Reader[T]":
        return self

    async def __anext__(self) -> Numbered[T]:
        event = await self._ring.next(self.cursor)
        if event is None:
            raise StopAsyncIteration
        self.cursor = event.cursor
        return event
