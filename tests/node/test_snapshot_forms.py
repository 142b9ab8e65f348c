"""The forms of snapshots: their bytes on disk and on the wire, and servers with the plain form."""

from random import Random

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from consensus.core.effects import Compact, Persist
from consensus.core.model import Configuration, Entry, HardState, LogId, ReplicaKey, Server, SnapshotDescription
from consensus.net.memory import MemoryNetwork
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.wire.snapshot_form import KafkaSnapshotForm
from consensus.server.options import ServerOptions
from consensus.storage.checksum import crc32c
from consensus.storage.disk import DamagedStorageError, StorageError, WriteBytes
from consensus.storage.planner import Owner, Recovery, StorageOptions, recover
from consensus.storage.snapshot_form import IMAGE, PLAIN, SnapshotForm
from consensus.storage.snapshots import HEADER_BYTES, SnapshotWriter, snapshot_file, stored_snapshot
from tests.node.crash_disk import CrashDisk
from tests.node.memory_server import SMALL, MemoryDisk, build, data, until
from tests.wire.record_batches import encode_batch

KAFKA = KafkaSnapshotForm(lambda: 1_000)
FORMS = pytest.mark.parametrize("form", [IMAGE, PLAIN, KAFKA], ids=["image", "plain", "kafka"])
LAST = LogId(3, 1)
STATE = tuple(encode_batch(RecordBatch(0, 1, (Record(1, None, value),))) for value in (b"a" * 300_000, b"b" * 5))
CONFIGURATION = Configuration((Server(ReplicaKey(1, b"d" * 16), "one:9093", (("CONTROLLER", "one:9093"),)),))
PLAIN_STORAGE = replace(SMALL, snapshot_form=PLAIN)


def options(form: SnapshotForm) -> StorageOptions:
    return replace(SMALL, snapshot_form=form)


def open_(disk: CrashDisk, form: SnapshotForm) -> Recovery:
    recovery = recover(disk, Owner(b"node-one", 1, 1), bytes(16), options(form))
    disk.run(recovery.operations)
    return recovery


def take(disk: CrashDisk, form: SnapshotForm) -> SnapshotDescription:
    """Take a snapshot of a log with three entries."""
    storage = open_(disk, form).storage
    writer = SnapshotWriter(LAST, CONFIGURATION, form)
    disk.run(writer.plan_begin())
    for part in STATE:
        disk.run(writer.plan(part))
    disk.run(writer.plan_end())
    entries = tuple(Entry.command(1, b"%d" % number) for number in range(3))
    for persist in (
        Persist(number=1, hard_state=HardState(1), truncate_from=None, first=1, entries=entries),
        Persist(number=2, snapshot=Compact(writer.description, 4)),
    ):
        disk.run(storage.plan([persist]))
        storage.done()
    return writer.description


@FORMS
def test_snapshot_form_survives_restart_with_description(form: SnapshotForm) -> None:
    disk = CrashDisk()
    taken = take(disk, form)
    found = open_(disk.crash(Random(1)), form).storage.snapshot
    assert found == taken
    assert (found.last, found.configuration) == (LAST, CONFIGURATION)


@FORMS
def test_snapshot_form_is_verified_without_form_option(form: SnapshotForm) -> None:
    disk = CrashDisk()
    taken = take(disk, form)
    storage = open_(disk, form).storage
    assert stored_snapshot(disk, storage.binding) == (taken, [])


def test_plain_snapshot_is_exactly_the_state_bytes() -> None:
    disk = CrashDisk()
    taken = take(disk, PLAIN)
    assert taken.size_bytes == sum(map(len, STATE))
    assert disk.read(snapshot_file(LAST), HEADER_BYTES, taken.size_bytes) == b"".join(STATE)


@FORMS
@pytest.mark.parametrize("place", [20, HEADER_BYTES + 7, HEADER_BYTES + 300_004, -3])
def test_damaged_snapshot_is_detected(form: SnapshotForm, place: int) -> None:
    disk = CrashDisk()
    take(disk, form)
    file = snapshot_file(LAST)
    at = place if place >= 0 else disk.size(file) + place
    disk.run([WriteBytes(file, at, bytes([disk.read(file, at, 1)[0] ^ 1]))])
    with pytest.raises(DamagedStorageError):
        open_(disk, form)


@FORMS
def test_snapshot_of_later_format_is_not_reported_as_damage(form: SnapshotForm) -> None:
    disk = CrashDisk()
    take(disk, form)
    header = bytearray(disk.read(snapshot_file(LAST), 0, HEADER_BYTES))
    header[12:14] = (9).to_bytes(2, "big")
    header[:4] = crc32c(bytes(header[4:])).to_bytes(4, "big")
    disk.run([WriteBytes(snapshot_file(LAST), 0, bytes(header))])
    with pytest.raises(StorageError, match=r"format 9, not one of 1 to 3.*The storage is not damaged") as refused:
        open_(disk, form)
    assert not isinstance(refused.value, DamagedStorageError)


@FORMS
def test_snapshot_of_other_form_is_refused(form: SnapshotForm) -> None:
    disk = CrashDisk()
    take(disk, form)
    for other in {IMAGE, PLAIN, KAFKA} - {form}:
        with pytest.raises(DamagedStorageError, match="another protocol"):
            open_(disk, other)


async def test_servers_send_restore_and_read_plain_snapshots(autojump_clock: trio.testing.MockClock) -> None:
    """A late server receives the leader's plain snapshot, restores it, and serves it to readers."""
    network, keep_nothing = MemoryNetwork(delay_s=0.001), ServerOptions(retain_bytes=0)
    disks = {number: MemoryDisk() for number in (1, 2, 3)}
    async with trio.open_nursery() as nursery:
        nodes = {n: build(n, network, disks[n], 3, keep_nothing, storage=PLAIN_STORAGE) for n in (1, 2)}
        for node in nodes.values():
            await nursery.start(node.server.run)
        await until(lambda: any(node.server.role.leader for node in nodes.values()))
        await until(lambda: nodes[1].server.role.leader is not None)
        leader = nodes[1 if nodes[1].server.role.leader == 1 else 2]
        await leader.server.propose(tuple(b"%d" % number * 30_000 for number in range(20)))
        await leader.server.wait_applied(leader.server.commit_index)
        assert await leader.server.read_snapshot(0, 1) is None
        taken = await leader.server.take_snapshot()
        assert taken is not None
        late = build(3, network, disks[3], 3, keep_nothing, storage=PLAIN_STORAGE)
        await nursery.start(late.server.run)
        await until(lambda: data(late) == data(leader))
        received = b""
        while (chunk := await late.server.read_snapshot(len(received), 40_000)) is not None and chunk.data:
            received += chunk.data
        assert chunk is not None
        assert (chunk.offset, chunk.total_bytes) == (len(received), len(received))
        assert received == b"".join(leader.machine.snapshot())
        for offset in (7, len(received) - 3, len(received) + 100):
            chunk = await late.server.read_snapshot(offset, 1_000)
            assert chunk is not None
            assert chunk.data == received[chunk.offset :][:1_000]
            assert (chunk.last, chunk.offset) == (taken.last, min(offset, len(received)))
        nursery.cancel_scope.cancel()
    assert len(received) == taken.size_bytes
    again = recover(disks[3].crash(Random(2)), Owner(b"node-003", 2, 1), bytes(16), PLAIN_STORAGE)
    assert again.storage.snapshot == taken
