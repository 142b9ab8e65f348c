"""Damage that a crash cannot cause is refused with advice for the operator; a torn tail is cut and reported."""

from random import Random

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from consensus.core.effects import Persist, ReadEntries
from consensus.core.entry_data import ENTRY_HEAD, configuration_entry, encode_group
from consensus.core.log import ENTRY_OVERHEAD_BYTES
from consensus.core.model import Configuration, Entry, HardState, Server
from consensus.storage.disk import DamagedStorageError, StorageError, SyncFile, WriteBytes
from consensus.storage.planner import Owner, Storage, StorageOptions, merge, read_extents, recover
from consensus.storage.records import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, encode_record
from tests.effort import each_case, over_seeds
from tests.node.crash_disk import CrashDisk

OWNER = Owner(b"node-one", 1, 77)
STORAGE_ID = bytes(range(16))
SMALL = StorageOptions(segment_bytes=64 * 1024, tail_entries=10_000)
FIRST = f"{1:020d}.segment"
CONFIGURATION = Configuration((Server(1, "tcp://127.0.0.1:7001"),))


def command(number: int, size: int = 100) -> Entry:
    return Entry.command(1, number.to_bytes(4, "big") * (size // 4))


def started(disk: CrashDisk) -> Storage:
    recovery = recover(disk, OWNER, STORAGE_ID, SMALL)
    disk.run(recovery.operations)
    return recovery.storage


def append(disk: CrashDisk, storage: Storage, *entries: Entry) -> None:
    disk.run(
        storage.plan(
            [Persist(number=1, hard_state=None, truncate_from=None, first=storage.last.index + 1, entries=entries)]
        )
    )
    storage.done()


def log_of(count: int, per_group: int = 1, size: int = 100) -> CrashDisk:
    """Return a disk with `count` entries, written in groups."""
    disk = CrashDisk()
    storage = started(disk)
    for first in range(1, count + 1, per_group):
        append(disk, storage, *(command(n, size) for n in range(first, min(first + per_group, count + 1))))
    return disk


def record_at(index: int, size: int = 100, per_group: int = 1) -> int:
    """Return the offset of the record whose group begins with the entry at `index`."""
    entry_bytes = ENTRY_HEAD.size + size
    return SEGMENT_HEADER_BYTES + (index - 1) // per_group * (RECORD_HEADER_BYTES + per_group * entry_bytes)


def flip(disk: CrashDisk, file: str, place: int) -> None:
    for content in (disk.names[file].now, disk.names[file].platter):
        content[place] ^= 0x40


def refusal_of(disk: CrashDisk) -> str:
    with pytest.raises(StorageError) as caught:
        recover(disk, OWNER, STORAGE_ID, SMALL)
    return str(caught.value)


@each_case("place", range(RECORD_HEADER_BYTES + ENTRY_HEAD.size + 100))
def test_flipped_byte_before_later_entries_is_refused(place: int) -> None:
    disk = log_of(5)
    flip(disk, FIRST, record_at(2) + place)
    text = refusal_of(disk)
    assert "entry 2" in text
    assert "the later entry" in text
    assert "join again as a new server" in text


def test_hole_of_zeros_in_middle_is_refused() -> None:
    disk = log_of(5)
    start = record_at(3)
    disk.names[FIRST].now[start : record_at(4)] = bytes(record_at(4) - start)
    assert "entry 3" in refusal_of(disk)


def test_damage_in_last_group_is_cut_as_torn_tail() -> None:
    disk = log_of(8, per_group=4)
    flip(disk, FIRST, record_at(5, per_group=4) + 260)
    recovery = recover(disk, OWNER, STORAGE_ID, SMALL)
    assert recovery.log.tail == tuple(command(n) for n in range(1, 5))
    assert recovery.report.torn_bytes == record_at(9, per_group=4) - record_at(5, per_group=4)
    assert "index 5" in recovery.report.torn_at
    assert any("never acknowledged" in line for line in recovery.report.lines())
    disk.run(recovery.operations)
    assert recover(disk, OWNER, STORAGE_ID, SMALL).report.torn_bytes == 0


def test_damage_in_last_group_is_refused_after_restart() -> None:
    disk = log_of(8, per_group=4)
    started(disk)
    flip(disk, FIRST, record_at(5, per_group=4) + 260)
    assert "the hard state proves" in refusal_of(disk)


def test_damage_in_last_group_is_refused_after_clean_stop() -> None:
    disk = CrashDisk()
    storage = started(disk)
    append(disk, storage, *(command(n) for n in range(1, 5)))
    disk.run(storage.plan_close())
    flip(disk, FIRST, record_at(1) + 60)
    assert "the hard state proves" in refusal_of(disk)


def test_damage_in_last_group_is_refused_after_vote() -> None:
    disk = CrashDisk()
    storage = started(disk)
    append(disk, storage, *(command(n) for n in range(1, 5)))
    disk.run(storage.plan([Persist(number=2, hard_state=HardState(2, 1))]))
    flip(disk, FIRST, record_at(1) + 60)
    assert "the hard state proves" in refusal_of(disk)


def test_damage_before_later_segment_is_refused() -> None:
    disk = log_of(100, size=1_000)
    last = sorted(file for file in disk.files() if file.endswith(".segment"))[-2]
    place = max(i for i, byte in enumerate(disk.names[last].now) if byte)
    flip(disk, last, place)
    assert "the segment '" in refusal_of(disk)


@pytest.mark.parametrize("which", [0, 1, -1])
def test_missing_segment_is_refused(which: int) -> None:
    disk = log_of(300, size=1_000)
    storage = started(disk)
    assert storage.segment_count > 3
    segments = sorted(file for file in disk.files() if file.endswith(".segment"))
    del disk.names[segments[which]]
    assert "missing" in refusal_of(disk)


def test_damaged_segment_header_is_refused() -> None:
    disk = log_of(3)
    flip(disk, FIRST, 20)
    assert "cannot be read" in refusal_of(disk)


def test_truncated_segment_file_is_refused() -> None:
    disk = log_of(3)
    del disk.names[FIRST].now[5_000:]
    assert "cut off" in refusal_of(disk)


def test_segment_of_other_storage_is_refused() -> None:
    disk, other = log_of(3), CrashDisk()
    recovery = recover(other, OWNER, bytes(16), SMALL)
    other.run(recovery.operations)
    append(other, recovery.storage, command(1))
    disk.names[FIRST] = other.names[FIRST]
    assert "two directories were mixed" in refusal_of(disk)


def test_valid_record_that_does_not_continue_log_is_refused() -> None:
    disk = log_of(3)
    storage = started(disk)
    stale = encode_record(storage.binding.seed, 4, 9, 3, 1, encode_group([Entry.command(9, b"of another history")]))
    disk.run([WriteBytes(FIRST, record_at(4), stale), SyncFile(FIRST)])
    assert "after term 9" in refusal_of(disk)


def test_command_with_record_bytes_does_not_hide_torn_tail() -> None:
    disk = log_of(3)
    storage = started(disk)
    forged = encode_record(0, 9, 1, 8, 1, encode_group([Entry.command(1, b"forged")]))
    append(disk, storage, Entry.command(1, forged * 20))
    flip(disk, FIRST, record_at(4) + 4)
    assert recover(disk, OWNER, STORAGE_ID, SMALL).report.entries == 3


@pytest.mark.parametrize("slot", [0, 1])
def test_damaged_hard_state_slot_is_repaired_from_other(slot: int) -> None:
    disk = CrashDisk()
    storage = started(disk)
    disk.run(storage.plan([Persist(number=1, hard_state=HardState(7, 3))]))
    flip(disk, "ballot", slot * 4096 + 30)
    recovery = recover(disk, OWNER, STORAGE_ID, SMALL)
    assert recovery.hard_state == HardState(7, 3)
    assert recovery.report.hard_state_slot_repaired
    disk.run(recovery.operations)
    assert not recover(disk, OWNER, STORAGE_ID, SMALL).report.hard_state_slot_repaired


def test_hard_state_with_both_slots_damaged_is_refused() -> None:
    disk = CrashDisk()
    started(disk)
    flip(disk, "ballot", 30)
    flip(disk, "ballot", 4096 + 30)
    assert "the vote of this server is lost" in refusal_of(disk)


@over_seeds(20)
def test_torn_hard_state_update_keeps_old_or_new_vote(seed: int) -> None:
    random = Random(seed)
    disk = CrashDisk()
    storage = started(disk)
    disk.run(storage.plan([Persist(number=1, hard_state=HardState(7, 3))]))
    storage.done()
    operations = storage.plan([Persist(number=2, hard_state=HardState(8))])
    stop = random.randrange(len(operations))
    disk.run(operations[:stop])
    found = recover(disk.crash(random), OWNER, STORAGE_ID, SMALL).hard_state
    assert found in (HardState(7, 3), HardState(8)), f"seed {seed}"


def test_generation_is_stored_when_opened() -> None:
    disk = CrashDisk()
    started(disk)
    disk.run(recover(disk, replace(OWNER, generation=5), STORAGE_ID, SMALL).operations)
    assert "generation 5" in refusal_of(disk)


def test_truncated_entries_do_not_return_after_overwrite() -> None:
    """The new record has the length of the old one, so the old records after it would still fit."""
    for seed in range(30):
        random = Random(seed)
        disk = log_of(10)
        storage = started(disk)
        operations = storage.plan(
            [
                Persist(
                    number=2,
                    hard_state=HardState(2),
                    truncate_from=5,
                    first=5,
                    entries=(Entry.command(2, command(5).data),),
                )
            ]
        )
        disk.run(operations[: random.randint(0, len(operations))])
        found = recover(disk.crash(random), OWNER, STORAGE_ID, SMALL).log.tail
        old = tuple(command(n) for n in range(1, 11))
        assert found in (old, old[:4], (*old[:4], Entry.command(2, command(5).data))), f"seed {seed}"


def test_truncation_within_group_keeps_earlier_entries() -> None:
    """The group's earlier entries may be acknowledged, so storage cannot overwrite the group."""
    old = tuple(command(n) for n in range(1, 11))
    new = (Entry.command(2, command(8).data), Entry.command(2, command(9).data))
    for seed in range(60):
        random = Random(seed)
        disk = log_of(10, per_group=5)
        storage = started(disk)
        operations = storage.plan([Persist(number=2, hard_state=HardState(2), truncate_from=8, first=8, entries=new)])
        disk.run(operations[: random.randint(0, len(operations))])
        crashed = disk.crash(random)
        recovery = recover(crashed, OWNER, STORAGE_ID, SMALL)
        assert recovery.log.tail in (old, old[:7], (*old[:7], new[0]), (*old[:7], *new)), f"seed {seed}"
        crashed.run(recovery.operations)
        assert recover(crashed, OWNER, STORAGE_ID, SMALL).log == recovery.log, f"seed {seed}"


def test_truncation_finished_by_recovery_is_durable() -> None:
    """The cut record fills the segment. No operation erases bytes after it, so recovery itself must sync it."""
    for seed in range(20):
        # given a segment with room after the last group for exactly one cut record
        disk = CrashDisk()
        storage = started(disk)
        for size in (*([3765] * 7), 4063):
            append(disk, storage, Entry.command(1, bytes(size)), Entry.command(1, bytes(size)))
        assert disk.size(FIRST) - storage.extents(ReadEntries(request_id=0, first=16, last=16, limit_bytes=1))[
            0
        ].length_bytes - RECORD_HEADER_BYTES == (
            SEGMENT_HEADER_BYTES + 7 * (RECORD_HEADER_BYTES + 2 * (ENTRY_HEAD.size + 3765))
        )
        # when only the record of a truncation within that group was written, and recovery finishes the truncation
        operations = storage.plan([Persist(number=2, hard_state=HardState(2), truncate_from=16, first=16, entries=())])
        first_other = next(n for n, each in enumerate(operations) if getattr(each, "file", "") == FIRST)
        disk.run(operations[:first_other])
        started(disk)
        # then the next crash does not restore the removed entries
        assert len(recover(disk.crash(Random(seed)), OWNER, STORAGE_ID, SMALL).log.tail) == 15, f"seed {seed}"


@pytest.mark.parametrize("again", [6, 7, 8, 9])
def test_group_may_be_cut_and_continued_repeatedly(again: int) -> None:
    disk = log_of(10, per_group=5)
    storage = started(disk)
    expected = [command(n) for n in range(1, 11)]
    for term, cut in ((2, 8), (3, again), (4, 7)):
        more = tuple(Entry.command(term, b"%d" % n) for n in range(3))
        disk.run(
            storage.plan([Persist(number=term, hard_state=HardState(term), truncate_from=cut, first=cut, entries=more)])
        )
        storage.done()
        expected[cut - 1 :] = more
        assert list(recover(disk, OWNER, STORAGE_ID, SMALL).log.tail) == expected
        request = ReadEntries(request_id=0, first=1, last=len(expected), limit_bytes=10**6)
        assert list(read_extents(disk, storage.binding, storage.extents(request), 10**6)) == expected


def test_damaged_cut_does_not_restore_removed_entries() -> None:
    disk = log_of(5, per_group=5)
    storage = started(disk)
    disk.run(
        storage.plan(
            [Persist(number=2, hard_state=HardState(2), truncate_from=4, first=4, entries=(Entry.command(2, b"new"),))]
        )
    )
    storage.done()
    flip(disk, FIRST, record_at(6, per_group=5) + 20)
    assert "the later entry 4" in refusal_of(disk)


def test_encoded_entries_are_written_unchanged_in_one_record() -> None:
    disk = CrashDisk()
    storage = started(disk)
    entries = tuple(command(n) for n in range(1, 50))
    received = encode_group(entries)
    operations = storage.plan(
        [Persist(number=1, hard_state=None, truncate_from=None, first=1, entries=entries, encoded=received)]
    )
    written = [operation.data for operation in operations if isinstance(operation, WriteBytes)]
    assert written[-1][RECORD_HEADER_BYTES:] == received


def test_large_group_is_split_into_separately_readable_records() -> None:
    disk = CrashDisk()
    storage = started(disk)
    entries = tuple(command(n, 1_000) for n in range(1, 100))
    append(disk, storage, *entries)
    (extent,) = storage.extents(ReadEntries(request_id=1, first=50, last=50, limit_bytes=1))
    assert extent.length_bytes <= SMALL.segment_bytes // 8
    assert read_extents(disk, storage.binding, [extent], 1) == entries[49:50]
    assert recover(disk, OWNER, STORAGE_ID, SMALL).log.tail == entries


def test_segment_of_previous_format_is_refused_with_remedy() -> None:
    disk = log_of(3)
    for content in (disk.names[FIRST].now, disk.names[FIRST].platter):
        content[12:14] = (1).to_bytes(2, "big")
        content[:4] = crc32c(bytes(content[4:SEGMENT_HEADER_BYTES])).to_bytes(4, "big")
    text = refusal_of(disk)
    assert "another version of this program (format 1, not 2)" in text
    assert "`garlicfarm backup`" in text
    assert "`garlicfarm restore`" in text


def test_recovery_returns_terms_configurations_and_tail() -> None:
    disk = CrashDisk()
    storage = started(disk)
    other = Configuration((*CONFIGURATION.voters, Server(2, "tcp://127.0.0.1:7002")))
    entries = (
        configuration_entry(1, CONFIGURATION),
        Entry.command(1, b"a"),
        configuration_entry(3, CONFIGURATION),
        Entry.command(3, b"b"),
        configuration_entry(4, other),
    )
    append(disk, storage, *entries)
    log = recover(disk, OWNER, STORAGE_ID, replace(SMALL, tail_entries=2)).log
    assert [(run.first, run.term) for run in log.runs] == [(1, 1), (3, 3), (5, 4)]
    assert log.configurations == ((1, CONFIGURATION), (5, other))
    assert (log.tail_first, log.tail) == (4, entries[3:])
    assert (log.last.index, log.last.term) == (5, 4)


@pytest.mark.parametrize("limit_bytes", [1, 500, 5_000, 10**9])
def test_range_is_read_within_its_limit(limit_bytes: int) -> None:
    disk = log_of(200, per_group=7, size=1_000)
    storage = started(disk)
    every = [command(n, 1_000) for n in range(1, 201)]
    for first, last in ((1, 200), (1, 1), (60, 130), (199, 200), (63, 64)):
        extents = storage.extents(ReadEntries(request_id=1, first=first, last=last, limit_bytes=limit_bytes))
        found = read_extents(disk, storage.binding, extents, limit_bytes)
        fitting = max(1, limit_bytes // (ENTRY_OVERHEAD_BYTES + 1_000))
        assert list(found) == every[first - 1 : min(last, first - 1 + fitting)]
    for first, last in ((201, 210), (0, 5), (5, 4)):
        assert storage.extents(ReadEntries(request_id=1, first=first, last=last, limit_bytes=limit_bytes)) == []


def test_entry_larger_than_segment_gets_own_segment() -> None:
    disk = log_of(2)
    storage = started(disk)
    large = Entry.command(1, bytes(300_000))
    append(disk, storage, large, command(4))
    assert recover(disk, OWNER, STORAGE_ID, SMALL).log.tail == (command(1), command(2), large, command(4))


def test_damage_found_while_reading_is_reported_with_place() -> None:
    disk = log_of(5)
    storage = started(disk)
    flip(disk, FIRST, record_at(3) + 70)
    with pytest.raises(DamagedStorageError, match="entry 3"):
        read_extents(
            disk, storage.binding, storage.extents(ReadEntries(request_id=1, first=1, last=5, limit_bytes=10**6)), 10**6
        )


def test_group_needs_one_sync() -> None:
    disk = log_of(1)
    storage = started(disk)
    operations = storage.plan(
        [Persist(number=n, hard_state=None, truncate_from=None, first=n, entries=(command(n),)) for n in range(2, 60)]
    )
    assert [type(operation) for operation in operations] == [WriteBytes, SyncFile]


def test_merged_persists_equal_their_sequence() -> None:
    one = merge(
        [
            Persist(number=1, hard_state=HardState(1), truncate_from=None, first=5, entries=(command(5), command(6))),
            Persist(number=2, hard_state=HardState(2, 1), truncate_from=6, first=6, entries=(command(60), command(70))),
            Persist(number=3, hard_state=None, truncate_from=3, first=3, entries=(command(30),)),
            Persist(number=4, hard_state=None, truncate_from=None, first=4, entries=(command(40),)),
        ]
    )
    assert one == Persist(
        number=4, hard_state=HardState(2, 1), truncate_from=3, first=3, entries=(command(30), command(40))
    )
