"""A state machine for tests: it keeps every entry it took, and its snapshot holds them all."""

from collections.abc import AsyncIterator, Iterator

import trio

from consensus.core.entry_data import decode_group, encode_group
from consensus.core.model import Entry, Index, LogId


class KeptEntries:
    """`entries` are those from index 1 on, whether they came one by one or in a snapshot. `gate` can hold it up."""

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self.entries: list[Entry] = [] if entries is None else entries
        self.restored: list[Index] = []
        self.gate = trio.Event()
        self.gate.set()

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        """Take entries in order."""
        await self.gate.wait()
        assert first == len(self.entries) + 1
        self.entries += entries

    def snapshot(self) -> Iterator[bytes]:
        """All entries of this moment."""
        return encoded(tuple(self.entries))

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """Begin anew."""
        data = b"".join([chunk async for chunk in state])
        self.entries[:] = decoded(data)
        assert len(self.entries) == last.index
        self.restored.append(last.index)


def encoded(entries: tuple[Entry, ...]) -> Iterator[bytes]:
    """One group for each entry."""
    return (encode_group([entry]) for entry in entries)


def decoded(data: bytes) -> list[Entry]:
    """Reverse of `encoded`."""
    return list(decode_group(data))
