"""A state machine for tests: it stores every applied entry, and its snapshot contains all of them."""

from collections.abc import AsyncIterator, Iterator

import trio

from consensus.core.entry_data import decode_group, encode_group
from consensus.core.model import Entry, Index, LogId


class KeptEntries:
    """The entries from index 1 on, applied or restored. `gate` can delay applying."""

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self.entries: list[Entry] = [] if entries is None else entries
        self.restored: list[Index] = []
        self.gate = trio.Event()
        self.gate.set()

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        await self.gate.wait()
        assert first == len(self.entries) + 1
        self.entries += entries

    def snapshot(self) -> Iterator[bytes]:
        """Return the current entries as snapshot chunks."""
        return encoded(tuple(self.entries))

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """Replace the entries by a snapshot."""
        data = b"".join([chunk async for chunk in state])
        self.entries[:] = decoded(data)
        assert len(self.entries) == last.index
        self.restored.append(last.index)


def encoded(entries: tuple[Entry, ...]) -> Iterator[bytes]:
    return (encode_group([entry]) for entry in entries)


def decoded(data: bytes) -> list[Entry]:
    return list(decode_group(data))
