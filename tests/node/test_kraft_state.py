"""The state of a voter's log: the content of its snapshot, and positions without a snapshot."""

import json
from collections.abc import AsyncIterator, Iterable

import pytest

from consensus.core.model import Entry, EntryKind, LogId
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.replica import state_machine
from consensus.protocols.kraft.replica.state_machine import (
    NEW_PRODUCER,
    PRODUCER_OWNER,
    QuorumLog,
    owner_data,
    owner_of,
)
from consensus.protocols.kraft.wire.entries import control_data, data_of, leader_head
from consensus.storage.disk import StorageError

MAX_BYTES = 1_000_000


def commands(*values: bytes, producer: int = -1, sequence: int = -1) -> tuple[Entry, ...]:
    """Return the entries of a client's batch in term 1."""
    records = tuple(Record(1_000, None, value) for value in values)
    epoch = 0 if producer >= 0 else -1
    batch = RecordBatch(0, -1, records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return tuple(Entry.command(1, data) for data in data_of(batch))


async def stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a snapshot in the form that a state machine receives."""
    for chunk in chunks:
        yield chunk


LOG = (
    Entry(1, EntryKind.CONTROL, control_data(NEW_PRODUCER, b"", 900)),
    *commands(b"a", b"b", producer=1, sequence=0),
    *commands(b"c"),
    *commands(b"d", b"e", b"f", producer=1, sequence=2),
)


async def test_restored_state_continues_like_whole_log() -> None:
    """Records and producers are equal for every possible position of the snapshot."""
    whole = QuorumLog(MAX_BYTES)
    await whole.apply(1, LOG)
    indexes = []
    for index in range(1, len(LOG) + 1):
        first, second = QuorumLog(MAX_BYTES), QuorumLog(MAX_BYTES)
        await first.apply(1, LOG[:index])
        if first.snapshot_index() != index:
            continue
        indexes.append(index)
        await second.restore(LogId(index, 1), stream(first.snapshot()))
        if index < len(LOG):
            await second.apply(index + 1, LOG[index:])
        assert second.producers == whole.producers
        assert list(second.snapshot()) == list(whole.snapshot())
    # A snapshot does not split a batch: a restored server would read the batch as two batches.
    assert indexes == [1, 3, 4, 7]


async def test_unreadable_snapshot_error_has_remedy() -> None:
    with pytest.raises(StorageError, match=r"the snapshot of entry 9 cannot be read.*Start the version of garlicfarm"):
        await QuorumLog(MAX_BYTES).restore(LogId(9, 1), stream([b"not a record batch"]))


def id_request_of(principal: str | None) -> Entry:
    return Entry(1, EntryKind.CONTROL, control_data(NEW_PRODUCER, owner_of(principal).encode(), 900))


async def test_producer_keeps_owner_across_epochs_and_snapshots() -> None:
    machine, restored = QuorumLog(MAX_BYTES), QuorumLog(MAX_BYTES)
    await machine.apply(1, (id_request_of("User:alice"), *commands(b"a", producer=1, sequence=0)))
    await restored.restore(LogId(2, 1), stream(machine.snapshot()))
    assert restored.producers == machine.producers
    assert restored.producers[1].owner == owner_of("User:alice")


async def test_producer_without_owner_gets_first_one_in_log() -> None:
    def claim(principal: str) -> Entry:
        return Entry(1, EntryKind.CONTROL, control_data(PRODUCER_OWNER, owner_data(1, owner_of(principal)), 901))

    machine, restored = QuorumLog(MAX_BYTES), QuorumLog(MAX_BYTES)
    await machine.apply(1, (id_request_of(None), claim("User:alice"), claim("User:bob")))
    await machine.apply(4, commands(b"a", producer=1, sequence=0))
    await restored.restore(LogId(4, 1), stream(machine.snapshot()))
    for each in (machine, restored):
        assert each.producers[1].owner == owner_of("User:alice")
    assert machine._producers_of == restored._producers_of


@pytest.mark.parametrize(("principal", "columns"), [(None, 4), ("User:alice", 5)])
async def test_row_without_owner_has_four_columns(principal: str | None, columns: int) -> None:
    """Earlier versions read rows of four columns."""
    machine = QuorumLog(MAX_BYTES)
    await machine.apply(1, (id_request_of(principal), *commands(b"a", producer=1, sequence=0)))
    text = b"".join(machine.snapshot()).decode("latin-1")
    (_, rows), _ = json.JSONDecoder().raw_decode(text, text.index("[1000,[[1,"))
    assert [len(row) for row in rows] == [columns]


async def test_user_beyond_producer_limit_displaces_own_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "MAX_PRODUCERS", 10)

    machine = QuorumLog(MAX_BYTES)
    await machine.apply(
        1, (id_request_of("User:alice"), *(id_request_of("User:bob"),) * 30, id_request_of("User:alice"))
    )
    owners = [each.owner for each in machine.producers.values()]
    assert (owners.count(owner_of("User:alice")), len(owners)) == (2, 10)
    assert set(machine.producers) == {1, 32, *range(24, 32)}
    # And a server restored from a snapshot chooses the same
    restored = QuorumLog(MAX_BYTES)
    await restored.restore(LogId(32, 1), stream(machine.snapshot()))
    for each in (machine, restored):
        await each.apply(33, (id_request_of("User:carol"),))
    assert restored.producers == machine.producers
    assert 24 not in machine.producers


async def test_oldest_producer_is_dropped_if_none_has_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of earlier versions have producers without owners."""
    monkeypatch.setattr(state_machine, "MAX_PRODUCERS", 3)

    machine = QuorumLog(MAX_BYTES)
    await machine.apply(1, (id_request_of(None),) * 5)
    assert set(machine.producers) == {3, 4, 5}


async def test_log_beyond_kept_bytes_never_has_snapshot() -> None:
    """A failed request for a snapshot does not change this: the next snapshot would lack records."""
    machine = QuorumLog(max_bytes=len(leader_head(0)) + 50)
    await machine.apply(1, commands(b"small"))
    assert machine.snapshot_index() == 1
    await machine.apply(2, commands(b"large" * 20))
    for _ in range(2):
        assert machine.snapshot_index() == 0
        list(machine.snapshot())
    await machine.apply(3, commands(b"small"))
    assert machine.snapshot_index() == 0
    assert not machine._records.size_bytes
