"""The state behind a voter's log: what a snapshot of it holds, and when there is none."""

import json
from collections.abc import AsyncIterator, Iterable

import pytest
import trio

from consensus.core.model import Entry, EntryKind, LogId
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.replica import state_machine
from consensus.protocols.kraft.replica.state_machine import NEW_PRODUCER, QuorumLog, owner_of
from consensus.protocols.kraft.wire.entries import control_data, data_of, leader_head

MAX_BYTES = 1_000_000


def commands(*values: bytes, producer: int = -1, sequence: int = -1) -> tuple[Entry, ...]:
    """The entries of a client's batch, in term 1."""
    records = tuple(Record(1_000, None, value) for value in values)
    epoch = 0 if producer >= 0 else -1
    batch = RecordBatch(0, -1, records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return tuple(Entry.command(1, data) for data in data_of(batch))


async def stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """A snapshot as a state machine gets it."""
    for chunk in chunks:
        yield chunk


LOG = (
    Entry(1, EntryKind.CONTROL, control_data(NEW_PRODUCER, b"", 900)),
    *commands(b"a", b"b", producer=1, sequence=0),
    *commands(b"c"),
    *commands(b"d", b"e", b"f", producer=1, sequence=2),
)


def test_a_state_that_begins_from_a_snapshot_goes_on_as_the_whole_log_does() -> None:
    """At whichever entry there is a snapshot, the records and producers are the same in the end."""

    async def run() -> None:
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
        # None within a batch: it would be two for those that begin from it.
        assert indexes == [1, 3, 4, 7]

    trio.run(run)


def asking(principal: str | None) -> Entry:
    """An entry by which a user asks for a producer id."""
    return Entry(1, EntryKind.CONTROL, control_data(NEW_PRODUCER, owner_of(principal).encode(), 900))


def test_a_producer_keeps_its_owner_over_epochs_and_snapshots() -> None:
    async def run() -> None:
        machine, restored = QuorumLog(MAX_BYTES), QuorumLog(MAX_BYTES)
        await machine.apply(1, (asking("User:alice"), *commands(b"a", producer=1, sequence=0)))
        await restored.restore(LogId(2, 1), stream(machine.snapshot()))
        assert restored.producers == machine.producers
        assert restored.producers[1].owner == owner_of("User:alice")

    trio.run(run)


@pytest.mark.parametrize(("principal", "columns"), [(None, 4), ("User:alice", 5)])
def test_earlier_versions_read_a_row_without_an_owner(principal: str | None, columns: int) -> None:
    """They read rows of four columns."""

    async def run() -> None:
        machine = QuorumLog(MAX_BYTES)
        await machine.apply(1, (asking(principal), *commands(b"a", producer=1, sequence=0)))
        text = b"".join(machine.snapshot()).decode("latin-1")
        (_, rows), _ = json.JSONDecoder().raw_decode(text, text.index("[1000,[[1,"))
        assert [len(row) for row in rows] == [columns]

    trio.run(run)


def test_a_user_that_asks_for_ids_without_end_displaces_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "MAX_PRODUCERS", 10)

    async def run() -> None:
        machine = QuorumLog(MAX_BYTES)
        await machine.apply(1, (asking("User:alice"), *(asking("User:bob"),) * 30, asking("User:alice")))
        owners = [each.owner for each in machine.producers.values()]
        assert (owners.count(owner_of("User:alice")), len(owners)) == (2, 10)
        assert set(machine.producers) == {1, 32, *range(24, 32)}
        # And a server that begins from a snapshot chooses the same
        restored = QuorumLog(MAX_BYTES)
        await restored.restore(LogId(32, 1), stream(machine.snapshot()))
        for each in (machine, restored):
            await each.apply(33, (asking("User:carol"),))
        assert restored.producers == machine.producers
        assert 24 not in machine.producers

    trio.run(run)


def test_the_longest_silent_producer_goes_if_no_producer_has_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in logs of earlier versions."""
    monkeypatch.setattr(state_machine, "MAX_PRODUCERS", 3)

    async def run() -> None:
        machine = QuorumLog(MAX_BYTES)
        await machine.apply(1, (asking(None),) * 5)
        assert set(machine.producers) == {3, 4, 5}

    trio.run(run)


def test_a_log_with_more_records_than_are_kept_has_no_snapshot_ever_after() -> None:
    """A snapshot that was asked for in vain changes nothing: the next one would have no records."""

    async def run() -> None:
        machine = QuorumLog(max_bytes=len(leader_head(0)) + 50)
        await machine.apply(1, commands(b"small"))
        assert machine.snapshot_index() == 1
        await machine.apply(2, commands(b"large" * 20))
        for _ in range(2):
            assert machine.snapshot_index() == 0
            list(machine.snapshot())
        await machine.apply(3, commands(b"small"))
        assert machine.snapshot_index() == 0
        assert not machine.kept_bytes

    trio.run(run)
