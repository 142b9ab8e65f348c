"""The parts of `make soak-jepsen` that run without nodes: schedules, the judgment, and the disk with power cuts."""

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.effort import each_case
from tests.soak.jepsen.disk import SYNC, WRITE, DiskFaults, FaultyDisk, Record, build_shim, compiler, lost, read_journal
from tests.soak.jepsen.history import Operation, Outcome, Protocol, entry, written
from tests.soak.jepsen.judge import Received, figures, judge
from tests.soak.jepsen.schedule import CLOCK_KINDS, NODES, Kind, draw

SECOND_NS = 1_000_000_000


def _write(value: int, called_s: int, answered_s: int, index: int | None, outcome: Outcome = Outcome.OK) -> Operation:
    times = (called_s * SECOND_NS, answered_s * SECOND_NS)
    return Operation(Protocol.ZMQ, "client", value, 1, *times, outcome, index)


def _read(found: int, called_s: int, answered_s: int, index: int) -> Operation:
    times = (called_s * SECOND_NS, answered_s * SECOND_NS)
    return Operation(Protocol.GARLIC_FARM, "reader", None, 0, *times, Outcome.OK, index, {1: found})


LOG = {1: b"{}", 2: entry(1, 10), 3: entry(1, 11), 4: entry(1, 10), 5: b'{"other":1}'}
WRITES = [_write(10, 1, 2, 2), _write(11, 3, 4, 3)]
LOGS = {"node-1": LOG, "node-2": LOG}
TOPIC = [(index, LOG[index]) for index in (2, 3, 5)]


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_schedule_follows_from_its_seed() -> None:
    assert draw(7, 600.0) == draw(7, 600.0)
    assert draw(7, 600.0) != draw(8, 600.0)


def test_schedule_of_chosen_kinds_has_only_them() -> None:
    assert {fault.kind for fault in draw(7, 600.0, only=[Kind.KILL]).faults} == {Kind.KILL}


def test_schedules_have_all_kinds_within_their_bounds() -> None:
    drawn = [draw(seed, 600.0) for seed in range(40)]
    assert {fault.kind for each in drawn for fault in each.faults} == set(Kind)
    for fault in (fault for each in drawn for fault in each.faults):
        assert 0 < fault.begin_s < fault.end_s <= 600.0
        assert set(fault.targets) <= set(range(NODES))


@each_case("seed", range(40))
def test_wrong_clocks_of_a_schedule_never_overlap(seed: int) -> None:
    clocks = [fault for fault in draw(seed, 600.0).faults if fault.kind in CLOCK_KINDS]
    assert all(earlier.end_s <= later.begin_s for earlier, later in pairwise(clocks))
    assert all(len(fault.targets) < NODES / 2 for fault in clocks)


# -- the judgment ------------------------------------------------------------------------------------------------------


def test_entry_of_a_write_is_recognized() -> None:
    assert written(entry(3, 14)) == (3, 14)
    assert written(b'{"request":"r","jepsen":{"key":3,"value":14}}') == (3, 14)
    assert written(b'{"jepsen":1}') is None


def test_correct_run_is_accepted() -> None:
    operations = [*WRITES, _read(11, 5, 6, 5), _write(12, 1, 9, None, Outcome.UNKNOWN)]
    readers = [Received("all", [*LOG.items()], is_complete=True), Received("topic", TOPIC, is_complete=False)]
    assert judge(operations, LOGS, readers) == []


WRONG_HISTORIES = {
    "lost": [*WRITES, _write(12, 5, 6, 6)],
    "where the log has": [WRITES[0], _write(11, 3, 4, 4)],
    "refused": [WRITES[0], _write(11, 3, 4, None, Outcome.FAILED)],
    "not linearizable": [*WRITES, _read(10, 5, 6, 5)],
    "after an answer with index": [*WRITES, _read(11, 7, 8, 5), _read(11, 9, 10, 3)],
    "no client has written": WRITES[:1],
}


@each_case("finding", WRONG_HISTORIES)
def test_judge_finds_wrong_history(finding: str) -> None:
    assert finding in "; ".join(judge(WRONG_HISTORIES[finding], LOGS, []))


WRONG_READERS = {
    "twice, or": [TOPIC[0], TOPIC[0]],
    "uncommitted": [TOPIC[0], (3, entry(1, 13))],
    "missed the indexes [2]": TOPIC[1:],
    "values twice": [*TOPIC[:2], (4, LOG[4])],
}


@pytest.mark.parametrize("finding", WRONG_READERS)
def test_judge_finds_wrong_records_of_topic(finding: str) -> None:
    received = Received("consumer", WRONG_READERS[finding], is_complete=False)
    assert finding in "; ".join(judge(WRITES, LOGS, [received]))


def test_judge_finds_different_logs() -> None:
    assert "other entries" in judge(WRITES, {"node-1": LOG, "node-2": LOG | {5: b"{}"}}, [])[0]
    assert "end at different" in judge(WRITES, {"node-1": LOG, "node-2": LOG | {6: b"{}"}}, [])[0]


def test_figures_have_longest_time_without_acknowledgment() -> None:
    found = figures([*WRITES, _write(12, 4, 30, None, Outcome.UNKNOWN)], 0, 40 * SECOND_NS)["zmq"]
    assert (found.ok, found.failed, found.unknown) == (2, 0, 1)
    assert (found.longest_gap_s, found.gap_at_s) == (36.0, 4.0)


# -- the disk ----------------------------------------------------------------------------------------------------------


def _record(position: int, kind: int, inode: int, offset: int = 0) -> Record:
    return Record(position, kind, inode, offset, 0, b"", "", "", is_saved=False)


def test_power_cut_loses_changes_since_begin_of_last_sync() -> None:
    records = [_record(0, WRITE, 1), _record(50, WRITE, 1), _record(100, SYNC, 1, 50), _record(150, WRITE, 2)]
    assert [each.position for each in lost(records, lambda _: 0)] == [50, 150]
    assert [each.position for each in lost(records, lambda count: count)] == []


PROGRAM = """
import os, time
old = os.open("old", os.O_RDWR)
os.pwrite(old, b"AB", 0)
os.fdatasync(old)
os.pwrite(old, b"XY", 4)
os.pwrite(old, b"more", 10)
os.unlink("removed")
with open("replaced.new", "wb") as file:
    file.write(b"new")
    file.flush()
    os.fsync(file.fileno())
os.replace("replaced.new", "replaced")
directory = os.open(".", os.O_RDONLY)
os.fsync(directory)
open("fresh", "wb").write(b"fresh")
os.rename("replaced", "moved")
os.unlink("kept")
open("old", "wb").write(b"cut")
print(time.time())
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled shim; the tests are skipped without a C compiler."""
    if compiler() is None:
        pytest.skip("a C compiler is missing")
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def disk(tmp_path: Path, shim: Path) -> FaultyDisk:
    """Return a disk with files."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("old", "removed", "replaced", "kept"):
        (data / name).write_bytes(b"0123456789")
    return FaultyDisk(shim, tmp_path / "shim", data)


def _run(disk: FaultyDisk, program: str) -> "subprocess.CompletedProcess[str]":
    where = Path(disk.environment["JEPSEN_DATA"])
    command = [sys.executable, "-c", program]
    environment = {**os.environ, **disk.environment}
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=30, check=False)


def _files(disk: FaultyDisk) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(disk.environment["JEPSEN_DATA"]).iterdir()}


def test_power_cut_restores_last_synced_state(disk: FaultyDisk) -> None:
    done = _run(disk, PROGRAM)
    assert done.returncode == 0, done.stderr
    assert _files(disk).keys() == {"old", "moved", "fresh"}
    disk.cut_power()
    assert _files(disk) == {"old": b"AB23456789", "replaced": b"new", "kept": b"0123456789"}
    assert not disk.cut_power()


def test_disk_that_skips_syncs_loses_all_changes(disk: FaultyDisk) -> None:
    before = _files(disk)
    disk.set(DiskFaults(skips_syncs=True))
    assert _run(disk, PROGRAM).returncode == 0
    disk.cut_power()
    assert _files(disk) == before


def test_full_disk_refuses_only_new_space(disk: FaultyDisk) -> None:
    disk.set(DiskFaults(is_full=True))
    done = _run(disk, PROGRAM)
    assert "line 7" in done.stderr  # the first write beyond the end of a file
    assert "No space left" in done.stderr


def test_failing_disk_refuses_writes(disk: FaultyDisk) -> None:
    disk.set(DiskFaults(is_failing=True))
    done = _run(disk, PROGRAM)
    assert "Input/output error" in done.stderr
    assert read_journal((Path(disk.environment["JEPSEN_SHIM"]) / "journal").read_bytes()) == []


def test_wall_clock_of_process_jumps_alone(disk: FaultyDisk) -> None:
    disk.set_clock(-3_600.0)
    began_s = time.time()
    done = _run(disk, "import time\nprint(time.time(), time.monotonic())")
    wall_s, monotonic_s = map(float, done.stdout.split())
    assert began_s - 3_601 < wall_s < time.time() - 3_599
    assert monotonic_s <= time.monotonic()
