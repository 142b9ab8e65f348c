"""The faulty disk and clock of a node: `disk_shim.c`, compiled here, its faults, and the power cut.

    node ──▶ shim ──▶ file system            `set` changes the faults of the running process
              └─▶ journal of replaced bytes and names ──▶ `cut_power` undoes the records without a later sync

The journal stays over restarts of the process: SIGKILL alone does not lose a byte. A power cut loses all unsynced
changes, or only the last changes of each file and directory (`keep` chooses the number of kept ones).
"""

import mmap
import shutil
import struct
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("disk_shim.c")
_FAULTS: Final = struct.Struct("<6i")
_CLOCK: Final = struct.Struct("<2qd")
_RECORD: Final = struct.Struct("<IIQQQIIII")
_MAGIC: Final = 0x4A45504E
_PAGE_BYTES: Final = 4096
WRITE, CREATE, RENAME, UNLINK, SYNC = range(1, 6)


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """The state of a disk, in the order of `struct faults`."""

    sync_delay_ms: int = 0
    is_hanging: bool = False
    is_full: bool = False
    is_failing: bool = False
    skips_syncs: bool = False
    """Syncs report success without effect. No correct farm survives this at a majority: it tests the checks."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the journal, at its position in bytes."""

    position: int
    kind: int
    inode: int
    """The written file, or the directory of a changed name."""
    offset: int
    """By kind: offset of the replaced bytes, former inode of a changed name, or a sync's place in the journal."""
    size: int
    """Size of the file before."""
    data: bytes
    first: str
    second: str
    is_saved: bool


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build_shim(directory: Path) -> Path:
    """Compile the shim; return the library. Raises AssertionError with the compiler's text."""
    library = directory / "disk_shim.so"
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    command = [compiler() or "cc", *flags, "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return library


class FaultyDisk:
    """The disk of one node: `data` is its directory, `directory` belongs to the shim."""

    def __init__(self, library: Path, directory: Path, data: Path) -> None:
        self._directory = directory
        directory.mkdir()
        (directory / "faults").write_bytes(bytes(_PAGE_BYTES))
        with (directory / "faults").open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _PAGE_BYTES)
        self.environment = {"JEPSEN_DATA": str(data), "JEPSEN_SHIM": str(directory), "LD_PRELOAD": str(library)}
        self.faults = DiskFaults()

    def set(self, faults: DiskFaults) -> None:
        """Change the faults; hanging syncs of a healed disk complete."""
        self.faults = faults
        self._page[: _FAULTS.size] = _FAULTS.pack(*map(int, astuple(faults)), 0)

    def set_clock(self, offset_s: float, rate: float = 1.0) -> None:
        """Set the offset of the wall clock of the process, and its rate from now on."""
        begin_ns = 0 if rate == 1.0 else time.monotonic_ns()
        self._page[_FAULTS.size : _FAULTS.size + _CLOCK.size] = _CLOCK.pack(int(offset_s * 1e9), begin_ns, rate)

    def cut_power(self, keep: Callable[[int], int] = lambda _: 0) -> "Counter[str]":
        """Undo the unsynced changes of an ended process; return their numbers by kind.

        `keep` gets the number of unsynced changes of one file or directory, and returns how many of the first stay.
        """
        journal = self._directory / "journal"
        records = read_journal(journal.read_bytes()) if journal.exists() else []
        undone = lost(records, keep)
        for record in reversed(undone):
            self._undo(record)
        for path in (journal, *self._directory.glob("i*")):
            path.unlink(missing_ok=True)
        names = {WRITE: "writes", CREATE: "new files", RENAME: "renames", UNLINK: "removals"}
        return Counter(names[record.kind] for record in undone)

    def _undo(self, record: Record) -> None:
        first, second = Path(record.first), Path(record.second)
        match record.kind:
            case 1:
                with self._saved(record.inode).open("r+b") as file:
                    file.seek(record.offset)
                    file.write(record.data)
                    file.truncate(record.size)
            case 2:
                first.unlink(missing_ok=True)
            case 3 if not first.exists() and second.exists():
                second.rename(first)
                if record.is_saved:
                    second.hardlink_to(self._saved(record.offset))
            case 4:
                with suppress(FileExistsError):
                    first.hardlink_to(self._saved(record.offset))
            case _:
                pass

    def _saved(self, inode: int) -> Path:
        return self._directory / f"i{inode}"


def read_journal(data: bytes) -> list[Record]:
    records, position = [], 0
    while position + _RECORD.size <= len(data):
        magic, kind, inode, offset, size, data_bytes, first_bytes, second_bytes, saved = _RECORD.unpack_from(
            data, position
        )
        assert magic == _MAGIC, f"the journal is damaged at byte {position}"
        begin = position + _RECORD.size
        ends = (begin + data_bytes, begin + data_bytes + first_bytes, begin + data_bytes + first_bytes + second_bytes)
        if ends[2] > len(data):
            break
        old, first, second = data[begin : ends[0]], data[ends[0] : ends[1]], data[ends[1] : ends[2]]
        records.append(
            Record(position, kind, inode, offset, size, old, first.decode(), second.decode(), is_saved=bool(saved))
        )
        position = ends[2]
    return records


def lost(records: list[Record], keep: Callable[[int], int]) -> list[Record]:
    """Return the changes without a later sync, less the kept ones, in their order: a power cut loses them."""
    durable: dict[int, int] = defaultdict(int)
    for record in records:
        if record.kind == SYNC:
            durable[record.inode] = max(durable[record.inode], record.offset)
    unsynced: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        if record.kind != SYNC and record.position >= durable[record.inode]:
            unsynced[record.inode].append(record)
    gone = [record for changes in unsynced.values() for record in changes[keep(len(changes)) :]]
    return sorted(gone, key=lambda record: record.position)
