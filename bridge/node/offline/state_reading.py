"""The farm in a stopped node's state directory or in a backup file: read offline, without changes.

    DIR/formation.json   the farm and its founders                            ─┐
    DIR/raft/            hard state (with its owner), snapshot, log           ─┼──▶ FarmOnDisk
    FILE                 a backup: the farm's state without a hard state,     ─┘
                         made from a running or a stopped node

Commands that start from an old farm use this module: `backup` of a stopped node, `restore`, and `recover`, which makes
a new cluster. `read_state` accepts a directory or a file; synchronous code calls `trio.run(read_state, path)`.

*The whole log counts.* The disk does not show which of a server's last entries are committed: only a leader reports
this. After the loss of the other servers, this cannot be determined any more. So all entries of this server are treated
as committed, because dropping an acknowledged entry would be worse.

*The hard state is left out.* A `FarmOnDisk` contains the farm's agreed state but not its server's votes. So it can
never be used to vote again. For the same reason it cannot be turned into a Raft storage of the same server.

A directory in use by a running node is refused; the text recommends a backup by that node.
"""

import shlex
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import trio
from msgspec import Struct

from bridge.core.formation.founding import FormationState, Founding
from bridge.core.log.feature_level import UnsupportedLevelError
from bridge.core.state.farm_state import FarmState
from bridge.node.events.event_log import EventLog, clock_ms
from bridge.node.membership.forming import FILE_NAME as FORMATION_FILE
from bridge.node.membership.forming import RECOVERY_FILE_NAME
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.replica import UNKNOWN_ENDPOINT
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from bridge.node.security.local_trust import UntrustedPathError, check_state_directory
from bridge.wire.keys.backup import BACKUP_LIMIT_BYTES, Backup, BackupError, BackupHead, decode_backup
from bridge.wire.log.entries import decode
from bridge.wire.log.snapshot import FarmSnapshotError
from bridge.wire.membership.formation_state import (
    FORMATION_STATE_LIMIT_BYTES,
    FormationStateError,
    decode_formation_state,
)
from consensus import COMMAND, ORIGIN, Configuration, Entry, Index, LogId, ReadEntries, ReadSnapshot, Server
from consensus.storage import STATE_FILE as HARD_STATE_FILE
from consensus.storage import (
    Directory,
    HardStateFile,
    ImageReader,
    Owner,
    RecordError,
    Recovery,
    StorageError,
    StorageInUseError,
    StorageOptions,
    read_extents,
    recover,
)

_CHUNK_BYTES = 4 * 1024 * 1024
_OTHER_SOURCE = "give the state directory of a node that belonged to a farm, or a backup file"


class StateReadingError(Exception):
    """The state cannot be read; the text contains the file, the reason and the remedy."""


class Cut(Struct, frozen=True):
    """The omitted end of a log: entries `first` to `last`, with their number by kind."""

    first: Index
    last: Index
    kinds: tuple[tuple[str, int], ...]


class FarmOnDisk(Struct, frozen=True, kw_only=True):
    """A farm from the view of one server. `image` is `farm` with its history, for `decode_farm`."""

    source: Path
    node_id: bytes
    """The node of this state."""
    cluster_id: bytes
    founding: Founding | None
    """The founding; None from a version without verifiable foundings: then it can only become a new cluster."""
    configuration: Configuration
    """The last configuration in the log, committed or not; without one, the founders'."""
    last: LogId
    farm: FarmState
    period_ms: int
    image: bytes
    cut: Cut | None = None
    """The omitted end of the log, on the operator's request."""

    @property
    def backup(self) -> Backup:
        """The content of a backup file with this state."""
        return Backup(
            BackupHead(
                node_id=self.node_id,
                cluster_id=self.cluster_id,
                founding=self.founding,
                configuration=self.configuration,
                last=self.last,
                made_at_ms=clock_ms(),
            ),
            self.image,
        )


async def read_state(path: Path) -> FarmOnDisk:
    """Read the state directory, or the backup file, at `path`; raise StateReadingError."""
    return await read_directory(path) if await trio.Path(path).is_dir() else await read_backup(path)


async def read_backup(path: Path) -> FarmOnDisk:
    """Read a backup file."""
    try:
        backup = await trio.to_thread.run_sync(_read_file, path)
        head = backup.head
        applied_state = AppliedState(0, EventLog("offline", clock_ms, 1), (), head.cluster_id)
        await applied_state.restore(head.last, _chunks((backup.image,)))
    except OSError as error:
        raise StateReadingError(f"{path} cannot be read: {error.strerror or error}; {_OTHER_SOURCE}") from error
    except (BackupError, FarmSnapshotError) as error:
        raise StateReadingError(f"{path} is not a usable backup: {error}. Use another backup") from error
    except UnsupportedLevelError as error:
        raise StateReadingError(f"{path}: {error}. {_way_past(error, path)}") from error
    return FarmOnDisk(
        source=path,
        node_id=head.node_id,
        cluster_id=head.cluster_id,
        founding=head.founding,
        configuration=head.configuration,
        last=head.last,
        farm=applied_state.state,
        period_ms=applied_state.farm.tuning.period_ms,
        image=backup.image,
    )


def _read_file(path: Path) -> Backup:
    with path.open("rb") as file:
        return decode_backup(file.read(BACKUP_LIMIT_BYTES + 1))


async def read_directory(state_dir: Path, cut_after: Index | None = None) -> FarmOnDisk:
    """Read the state directory of a stopped node; with `cut_after`, up to that entry."""
    try:
        check_state_directory(state_dir)
    except UntrustedPathError as error:
        raise StateReadingError(str(error)) from error
    formation = await trio.to_thread.run_sync(_read_formation, state_dir / FORMATION_FILE)
    founding = formation.founding or formation.known
    if founding is None:
        raise StateReadingError(f"the node of {state_dir} has never belonged to a farm: {_OTHER_SOURCE}")
    directory = await trio.to_thread.run_sync(_open, storage_of(state_dir, founding.cluster_id))
    try:
        return await _read_storage(directory, state_dir, founding, cut_after)
    except UnsupportedLevelError as error:
        raise StateReadingError(f"{state_dir}: {error}. {_way_past(error, state_dir)}") from error
    except (StorageError, FarmSnapshotError, RecordError, OSError) as error:
        raise StateReadingError(f"{state_dir}: {error}. If it is damaged, {_OTHER_SOURCE}") from error
    finally:
        directory.close()


def aside_of(state_dir: Path, cluster_id: bytes) -> Path:
    """Return the place where `recover` moves the storage of a cluster."""
    return state_dir / f"{RAFT_DIRECTORY}.of-{cluster_id.hex()[:8]}"


def storage_of(state_dir: Path, cluster_id: bytes) -> Path:
    """Return the storage of `formation.json`'s cluster: the moved one if `recover` was interrupted after that move."""
    aside = aside_of(state_dir, cluster_id)
    interrupted = (state_dir / RECOVERY_FILE_NAME).exists()
    return aside if interrupted and aside.exists() else state_dir / RAFT_DIRECTORY


def _read_formation(path: Path) -> FormationState:
    try:
        with path.open("rb") as file:
            return decode_formation_state(file.read(FORMATION_STATE_LIMIT_BYTES + 1))
    except FileNotFoundError:
        raise StateReadingError(f"{path} does not exist: {_OTHER_SOURCE}") from None
    except (OSError, FormationStateError) as error:
        raise StateReadingError(f"{path} cannot be used: {error}; {_OTHER_SOURCE}") from error


def _open(path: Path) -> Directory:
    if not (path / HARD_STATE_FILE).is_file():
        raise StateReadingError(
            f"{path} does not contain a server's log, because this node never received the farm's log: {_OTHER_SOURCE},"
            " for example the backup that it was restored from"
        )
    try:
        return Directory(path)
    except StorageInUseError as error:
        text = f"the node of {path.parent} runs: stop it first. Without a stop, `garlicfarm backup FILE` makes a backup"
        raise StateReadingError(text) from error
    except (StorageError, OSError) as error:
        text = "The command locks the directory, so this user must be able to write there"
        raise StateReadingError(
            f"{path} cannot be opened: {error}. {text}. Or copy the directory, and name the copy"
        ) from error


def _way_past(error: UnsupportedLevelError, state_dir: Path) -> str:
    if error.index is None:
        return (
            "Its snapshot has that level, and cannot be cut: if the level was forged, use another survivor, or a backup"
        )
    return (
        f"Entry {error.index} has that level. If it was forged, create a new farm from the entries before it:"
        f" `garlicfarm recover --from {shlex.quote(str(state_dir))} --cut-after {error.index - 1}`"
    )


async def _read_storage(
    directory: Directory, state_dir: Path, founding: Founding, cut_after: Index | None
) -> FarmOnDisk:
    hard_state, _ = HardStateFile.read(directory)
    state = hard_state.state
    # The storage is opened with its recorded owner and place, so a copied directory can be read, too. The changes that
    # `recover` plans are not carried out.
    owner = Owner(state.binding.node_id, state.generation, state.place)
    recovery = await trio.to_thread.run_sync(
        recover, directory, owner, state.binding.storage_id, StorageOptions(tail_entries=1)
    )
    applied_state = AppliedState(
        founding.log_time_base_ms,
        EventLog("offline", clock_ms, 1),
        founding.founders,
        founding.cluster_id,
    )
    end = recovery.log.last
    start = ORIGIN if recovery.log.snapshot is None else recovery.log.snapshot.last
    last_index = _checked_cut(state_dir, start.index, end.index, cut_after)
    applied_state.history_ends_at(last_index)
    if recovery.log.snapshot is not None:
        await applied_state.restore(recovery.log.snapshot.last, _chunks(_state_bytes(directory, recovery)))
    last = start
    for first, entries in _entries(directory, recovery, start.index + 1, last_index):
        await applied_state.apply(first, entries)
        last = LogId(first + len(entries) - 1, entries[-1].term)
    return FarmOnDisk(
        source=state_dir,
        node_id=state.binding.node_id,
        cluster_id=founding.cluster_id,
        founding=founding,
        configuration=_configuration(recovery, founding, last.index),
        last=last,
        farm=applied_state.state,
        period_ms=applied_state.farm.tuning.period_ms,
        image=b"".join(applied_state.snapshot()),
        cut=None if last == end else _cut(directory, recovery, last.index + 1, end.index),
    )


def _checked_cut(state_dir: Path, start: Index, end: Index, cut_after: Index | None) -> Index:
    """Return the last index to read; raise StateReadingError if the log cannot be cut there."""
    if cut_after is None:
        return end
    if cut_after > end:
        raise StateReadingError(f"{state_dir}: the log ends at entry {end}: cut it after an earlier entry")
    if cut_after < max(start, 1):
        text = "the snapshot replaces all entries up to" if start else "a recovery keeps at least"
        raise StateReadingError(f"{state_dir}: {text} entry {max(start, 1)}: cut it there or later")
    return cut_after


def _entries(
    directory: Directory, recovery: Recovery, first: Index, last: Index
) -> Iterator[tuple[Index, tuple[Entry, ...]]]:
    """Yield the entries of [first, last], in groups as they are read."""
    while first <= last:
        request = ReadEntries(request_id=0, first=first, last=last, limit_bytes=_CHUNK_BYTES)
        entries = read_extents(directory, recovery.storage.binding, recovery.storage.extents(request), _CHUNK_BYTES)
        if not entries:
            raise StorageError(f"the log ends at entry {first - 1}, and should reach {last}")
        yield first, entries
        first += len(entries)


def _cut(directory: Directory, recovery: Recovery, first: Index, last: Index) -> Cut:
    kinds: Counter[str] = Counter()
    for _, entries in _entries(directory, recovery, first, last):
        kinds.update(_kind(entry) for entry in entries)
    return Cut(first, last, tuple(sorted(kinds.items())))


def _kind(entry: Entry) -> str:
    return (
        type(decode(entry.data)).__name__.lower() if entry.kind == COMMAND else entry.kind.name.lower().replace("_", "")
    )


def _state_bytes(directory: Directory, recovery: Recovery) -> Iterator[bytes]:
    """Yield the state machine's bytes from the stored snapshot."""
    snapshot = recovery.log.snapshot
    if snapshot is None:
        return
    reader, offset, done = ImageReader(), 0, False
    while not done:
        chunk = recovery.storage.chunk_extent(
            ReadSnapshot(request_id=0, last=snapshot.last, offset=offset, limit_bytes=_CHUNK_BYTES)
        )
        if chunk is None:
            raise StorageError(f"the snapshot of entry {snapshot.last.index} is gone")
        yield from reader.feed(directory.read(chunk.file, chunk.offset_bytes, chunk.length_bytes))
        offset, done = offset + chunk.length_bytes, chunk.done
    reader.finish()


def _configuration(recovery: Recovery, founding: Founding, last: Index) -> Configuration:
    """Return the configuration in force at entry `last`."""
    log = recovery.log
    in_force = [configuration for index, configuration in log.configurations if index <= last]
    if in_force:
        return in_force[-1]
    return log.snapshot.configuration if log.snapshot is not None else _of_founders(founding)


def _of_founders(founding: Founding) -> Configuration:
    return Configuration(tuple(Server(number, UNKNOWN_ENDPOINT) for number in range(1, len(founding.founders) + 1)))


async def _chunks(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
