"""Examines a server's directory without any change: it does not make a file.

It holds a shared lock only for a moment, to see whether a process owns the directory.

    hard state ──▶ snapshots ──▶ segments, record by record    each part is checked if the parts before it could be read

If the directory is *stopped* (no process uses it), the result is final: the next start would have the same findings. A
*live* directory belongs to a running process. A write during the check may seem torn, and a file that a compaction
removes may seem missing. So in a live directory, reported damage is only a suspicion, but a part reported as sound is
sound.
"""

import fcntl
import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from msgspec import Struct, field

from consensus.core.words import counted
from consensus.storage.directory import LOCK_FILE
from consensus.storage.disk import StorageError
from consensus.storage.hard_state import STATE_FILE, HardStateFile, StoredState
from consensus.storage.journal import NEW_SUFFIX, SEGMENT_SUFFIX, SPARE
from consensus.storage.recovery import Scan, scan_segments
from consensus.storage.snapshots import SNAPSHOT_SUFFIX, stored_snapshot


class StorageVerdict(Enum):
    """State of a directory, in one word."""

    SOUND = "sound"
    REPAIRABLE = "repairable"
    DAMAGED = "damaged"
    EMPTY = "empty"
    NOT_A_LOG = "not-a-log"


class Verification(Struct):
    """Findings. A start would refuse a directory with `faults`, and would carry out `repairs` automatically."""

    verdict: StorageVerdict
    live: bool
    found: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    entries: int = 0
    first_index: int = 0
    last_index: int = 0
    last_term: int = 0
    segments: int = 0
    snapshot_index: int | None = None


class ReadOnlyDirectory:
    """The read operations of the disk interface (`DiskReader`), for a directory that may belong to another process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> Sequence[str]:
        """Return the names of the files, without the lock."""
        return [entry.name for entry in self._path.iterdir() if entry.name != LOCK_FILE]

    def size(self, file: str) -> int:
        """Return the size in bytes."""
        return (self._path / file).stat().st_size

    def read(self, file: str, offset_bytes: int, length_bytes: int) -> bytes:
        """Return bytes from `offset_bytes` on; fewer only at the end of the file."""
        with (self._path / file).open("rb") as opened:
            opened.seek(offset_bytes)
            return opened.read(length_bytes)


def verify_storage(path: Path) -> Verification:
    """Check everything in the directory; raises `OSError` if it cannot be read."""
    live = _is_live(path)
    reader = ReadOnlyDirectory(path)
    files = sorted(reader.files())
    known = [
        file for file in files if file == STATE_FILE or file.endswith((SEGMENT_SUFFIX, SNAPSHOT_SUFFIX, NEW_SUFFIX))
    ]
    if not files:
        return Verification(StorageVerdict.EMPTY, live, ["the directory is empty: a server would make a new log in it"])
    if not known:
        return Verification(
            StorageVerdict.NOT_A_LOG, live, [f"none of its files ({len(files)}) belongs to a server's log"]
        )
    result = Verification(StorageVerdict.SOUND, live)
    state = _check_hard_state(reader, result)
    if state is not None:
        _check_place(path, state, result)
        _check_log(reader, state, result)
    leftovers = [file for file in files if file.endswith(NEW_SUFFIX) and file != SPARE]
    if leftovers:
        result.repairs.append(
            f"the next start would remove {counted(len(leftovers), 'unfinished file')} ('{leftovers[0]}' …)"
        )
    unknown = [file for file in files if file not in known]
    if unknown:
        result.found.append(f"{counted(len(unknown), 'unknown file')} ('{unknown[0]}' …), harmless for the log")
    if result.faults:
        result.verdict = StorageVerdict.DAMAGED
    elif result.repairs:
        result.verdict = StorageVerdict.REPAIRABLE
    return result


def _is_live(path: Path) -> bool:
    """Return True if a process holds the lock; a shared lock is tried and released immediately.

    A file system without locks, which may have a copy of the directory, does not have a running server.
    """
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError | PermissionError)
    finally:
        os.close(descriptor)
    return False


def _check_hard_state(reader: ReadOnlyDirectory, result: Verification) -> StoredState | None:
    if STATE_FILE not in reader.files():
        result.faults.append(
            f"the file '{STATE_FILE}' is missing: the vote of this server is lost. Restore the file if it was moved;"
            " otherwise move the directory away and let the node join again as a new server"
        )
        return None
    try:
        stored_state, slots_agree = HardStateFile.read(reader)
    except StorageError as error:
        result.faults.append(str(error))
        return None
    state = stored_state.state
    vote = "no vote in it" if state.hard_state.voted_for is None else f"vote for server {state.hard_state.voted_for}"
    result.found.append(
        f"hard state: term {state.hard_state.term}, {vote}; made for node {state.binding.node_id.hex()}, last opened "
        f"by its generation {state.generation}; both slots {'agree' if slots_agree else 'were read, and differ'}"
    )
    if not slots_agree:
        result.repairs.append(
            "one of the hard state's two slots is unfinished or damaged; a start copies it from the other"
        )
    return state


def _check_place(path: Path, state: StoredState, result: Verification) -> None:
    place = path.stat().st_ino
    if state.place != place:
        result.faults.append(
            f"this directory is a copy: the original has inode {state.place}, and this one has inode {place}. A server"
            " refuses it, because two servers could vote with it. Its entries can still be read"
        )


def _check_log(reader: ReadOnlyDirectory, state: StoredState, result: Verification) -> None:
    try:
        snapshot, outdated = stored_snapshot(reader, state.binding)
        if snapshot is not None:
            result.snapshot_index = snapshot.last.index
            result.found.append(
                f"snapshot: covers the log up to index {snapshot.last.index} of term {snapshot.last.term}, "
                f"{counted(snapshot.size_bytes, 'byte')}; every checksum matches"
            )
        if outdated:
            older = counted(len(outdated), "older snapshot")
            result.repairs.append(f"the next start would remove {older}")
        scan = scan_segments(reader, state, snapshot)
    except StorageError as error:
        result.faults.append(str(error))
        return
    except FileNotFoundError as error:
        result.faults.append(f"the file '{Path(error.filename).name}' went away while it was being read")
        return
    _record_log(scan, state, result)


def _record_log(scan: Scan, state: StoredState, result: Verification) -> None:
    result.entries = scan.last.index - scan.start.index
    result.first_index, result.segments = scan.start.index + 1, len(scan.segments)
    result.last_index, result.last_term = scan.last.index, scan.last.term
    if result.entries:
        result.found.append(
            f"log: {counted(result.entries, 'entry', 'entries')}, {result.first_index} to {result.last_index}, in "
            f"{counted(result.segments, 'segment')} without a gap; "
            f"{counted(len(scan.runs), 'term')}, the last is {result.last_term}; every checksum matches"
        )
    else:
        result.found.append(f"log: no entry after index {scan.start.index}")
    if scan.torn_bytes:
        result.repairs.append(
            f"an unfinished write of {counted(scan.torn_bytes, 'byte')} at {scan.torn_at} would be cut at the next"
            " start; it does not contain acknowledged entries"
        )
    if state.truncating_from:
        result.repairs.append(f"a truncation from index {state.truncating_from} on is unfinished; a start finishes it")
    if scan.replaced:
        result.repairs.append("the leader's snapshot has not replaced the log yet; the next start does this")
