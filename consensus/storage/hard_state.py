"""The hard state: term and vote, which must survive a restart, in one small file with updates in place.

In addition to the current term and the vote in it (Raft figure 2), it holds facts that recovery needs:

* `durable`: entries up to here were durable at this write. Damage at or before this index is rot, not a torn tail.
* `truncating_from`: a truncation has begun at this index. It is written before the first byte of the log is erased, and
  reset after the last byte is erased. So recovery finishes an interrupted truncation, and does not treat it as a hole.
* the owner of the directory: node, storage id, place (the directory's inode, which differs in a copy) and the last
  generation that opened it. A copied directory must not vote a second time in the same term.

The file has two slots, 4,096 bytes apart, each with a counter and a CRC-32C. An update writes and syncs one slot, then
the other; only then is it durable. If updates alternated between the slots, damage to the newer slot would restore the
older vote. Here, if one slot is damaged, the other one lacks at most an unacknowledged update. If both are damaged, the
start is refused. To write and rename a new file instead would need a directory sync, which takes four times as long in
measurements.

The file is named `ballot` and its slots begin with `GFBALLOT`: both belong to the format on disk.
"""

import struct

from msgspec import Struct
from msgspec.structs import replace

from consensus.core.entry_data import decode_id, encode_id
from consensus.core.model import HardState, Index
from consensus.storage.checksum import crc32c
from consensus.storage.disk import (
    CreateFile,
    DamagedStorageError,
    DiskOperation,
    DiskReader,
    RenameFile,
    StorageError,
    SyncDirectory,
    SyncFile,
    WriteBytes,
)
from consensus.storage.records import Binding

STATE_FILE = "ballot"
_NEW_FILE = "ballot.new"
_SLOT_BYTES = 4096
_SLOTS = 2

_MAGIC = b"GFBALLOT"
_VERSION = 1
_VERSION_OF_LONG_VOTE = 2
"""The version for a vote that is not an integer from 1 to 2^31 - 1. The field of the vote then holds its length; the
vote comes last."""
_SLOT = struct.Struct(">8sHQ8s16sQQQ?iQQ")
_COMPACT_LIMIT = 2**31
_CHECKSUM = struct.Struct(">I")


class StoredState(Struct, frozen=True):
    """The content of a slot. `truncating_from` is 0 when no truncation is under way."""

    binding: Binding
    place: int
    generation: int
    hard_state: HardState
    durable: Index = 0
    truncating_from: Index = 0


def _encode(counter: int, state: StoredState) -> bytes:
    vote = state.hard_state.voted_for
    compact = vote is None or (isinstance(vote, int) and 0 < vote < _COMPACT_LIMIT)
    long_vote = b"" if compact or vote is None else encode_id(vote)
    body = _SLOT.pack(
        _MAGIC,
        _VERSION if compact else _VERSION_OF_LONG_VOTE,
        counter,
        state.binding.node_id,
        state.binding.storage_id,
        state.place,
        state.generation,
        state.hard_state.term,
        vote is not None,
        (vote or 0) if compact else len(long_vote),
        state.durable,
        state.truncating_from,
    )
    body += long_vote
    return _CHECKSUM.pack(crc32c(body)) + body


def _decode(slot: bytes) -> tuple[int, StoredState] | None:
    """Return counter and content; None if the slot is damaged. Raises `StorageError` for another version's slot."""
    size = _CHECKSUM.size + _SLOT.size
    if len(slot) < size:
        return None
    magic, version, counter, node_id, storage_id, place, generation, term, voted, vote, durable, truncating = (
        _SLOT.unpack_from(slot, _CHECKSUM.size)
    )
    long_vote = slot[size : size + max(0, vote)] if version == _VERSION_OF_LONG_VOTE else b""
    if crc32c(slot[_CHECKSUM.size : size] + long_vote) != _CHECKSUM.unpack_from(slot)[0]:
        return None
    if magic != _MAGIC or version not in (_VERSION, _VERSION_OF_LONG_VOTE):
        raise StorageError(
            f"the file '{STATE_FILE}' was written by another version of this program (format {version}, this one reads "
            f"{_VERSION} and {_VERSION_OF_LONG_VOTE}); start the version that wrote it"
        )
    voted_for = decode_id(long_vote)[0] if long_vote else vote
    state = StoredState(
        Binding(node_id, storage_id),
        place,
        generation,
        HardState(term, voted_for if voted else None),
        durable,
        truncating,
    )
    return counter, state


class HardStateFile:
    """Planner of the file: holds the newest content and plans its replacement."""

    def __init__(self, state: StoredState, counter: int, first_slot: int) -> None:
        self._state = state
        self._counter = counter
        self._first_slot = first_slot

    @property
    def state(self) -> StoredState:
        """The newest content, planned or durable."""
        return self._state

    @classmethod
    def plan_creation(cls, state: StoredState) -> tuple["HardStateFile", list[DiskOperation]]:
        """Return the file of a new storage and the operations that create it. The rename creates the storage."""
        slot = _encode(1, state)
        operations: list[DiskOperation] = [CreateFile(_NEW_FILE, _SLOTS * _SLOT_BYTES)]
        operations += [WriteBytes(_NEW_FILE, number * _SLOT_BYTES, slot) for number in range(_SLOTS)]
        operations += [SyncFile(_NEW_FILE), RenameFile(_NEW_FILE, STATE_FILE), SyncDirectory()]
        return cls(state, 1, 0), operations

    @classmethod
    def read(cls, reader: DiskReader) -> tuple["HardStateFile", bool]:
        """Return the file, and True if both slots agree.

        Raise `DamagedStorageError` if both slots are damaged, and `StorageError` if another version wrote one.
        """
        slots = [_decode(reader.read(STATE_FILE, number * _SLOT_BYTES, _SLOT_BYTES)) for number in range(_SLOTS)]
        readable = [(slot[0], number, slot[1]) for number, slot in enumerate(slots) if slot is not None]
        if not readable:
            raise DamagedStorageError(
                f"both slots of the file '{STATE_FILE}' are damaged, so the vote of this server is lost, and it must"
                " not vote again. Move the directory away and let the node join again as a new server"
            )
        counter, number, state = max(readable, key=lambda slot: slot[0])
        # The update begins with the slot that is not the newest, so that one readable slot remains at every moment.
        return cls(state, counter, 1 - number), slots[0] == slots[1]

    def plan(self, state: StoredState) -> list[DiskOperation]:
        """Replace the content; durable when all operations are done."""
        self._state = state
        self._counter += 1
        slot = _encode(self._counter, state)
        operations: list[DiskOperation] = []
        for number in (self._first_slot, 1 - self._first_slot):
            operations += [WriteBytes(STATE_FILE, number * _SLOT_BYTES, slot), SyncFile(STATE_FILE)]
        return operations

    def plan_hard_state(self, hard_state: HardState, durable: Index, truncating_from: Index = 0) -> list[DiskOperation]:
        """Replace the parts that change while a server runs; node, place and generation stay."""
        return self.plan(replace(self._state, hard_state=hard_state, durable=durable, truncating_from=truncating_from))
