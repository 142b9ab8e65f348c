"""The disk interface (`storage.disk`) on a real directory. Only `open_directory` opens a server's storage.

One process owns a directory: it holds an flock on the file `lock` until it ends. Files are 0600. A directory made here
is 0700, its missing parents have the default mode. All calls block; the server makes them in a worker thread, one at a
time.

A failed sync is final: the kernel may have dropped the unwritten pages and report success the next time. So an
`OSError` ends the server, except if the disk (or quota) is full. In this case `perform_all` raises `OutOfSpaceError`
with the number of the first operation after the last successful sync. The caller resumes there, and repeats the
unsynced writes. A repeated removal or renaming of a file is not an error.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, assert_never

import trio

from consensus.storage.disk import (
    CreateFile,
    DiskOperation,
    DiskReader,
    RemoveFile,
    RenameFile,
    StorageError,
    StorageInUseError,
    SyncDirectory,
    SyncFile,
    WriteBytes,
)
from consensus.storage.disk_thread import DiskThread
from consensus.storage.file_access import access_advice
from consensus.storage.hard_state import STATE_FILE, HardStateFile
from consensus.storage.planner import Owner, Recovery, StorageOptions, check_owner, recover

Answer = TypeVar("Answer")

LOCK_FILE = "lock"
STORAGE_ID_BYTES = 16
_OPEN_FILES = 8
_ZEROS = bytes(1024 * 1024)
FULL = (errno.ENOSPC, errno.EDQUOT)


class OutOfSpaceError(Exception):
    """The disk is full. Perform the operations again, from `resume_at` on, when there is space."""

    def __init__(self, resume_at: int) -> None:
        super().__init__("no space left on the disk that holds the log")
        self.resume_at = resume_at


class Directory:
    """An open, locked directory."""

    def __init__(self, path: Path) -> None:
        """Make the directory if needed, and lock it; raises `StorageInUseError` or `StorageError`."""
        self.path = path
        self._files: dict[str, int] = {}
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            advice = access_advice(path, error) or "; create it, or give this user access to it"
            raise StorageError(f"the directory '{path}' cannot be opened: {error.strerror or error}{advice}") from error
        self._lock = _open_lock(path, self._directory)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # EACCES: the same, on a network file system
            self.close()
            raise StorageInUseError(
                f"another process has the directory '{path}' open: two servers on one log would destroy it. Stop the "
                "other process, or give this one another state directory"
            ) from error
        except OSError as error:
            self.close()
            advice = access_advice(path, error)
            raise StorageError(f"the directory '{path}' cannot be locked: {error.strerror or error}{advice}") from error

    @property
    def place(self) -> int:
        """The directory's inode, which a copy does not share."""
        return os.fstat(self._directory).st_ino

    def close(self) -> None:
        """Close all files and release the lock."""
        for descriptor in (*self._files.values(), self._lock, self._directory):
            os.close(descriptor)
        self._files.clear()

    def files(self) -> Sequence[str]:
        """Return the names of the files, without the lock."""
        return [entry.name for entry in self.path.iterdir() if entry.name != LOCK_FILE]

    def size(self, file: str) -> int:
        """Return the size in bytes."""
        return os.fstat(self._descriptor(file)).st_size

    def read(self, file: str, offset_bytes: int, length_bytes: int) -> bytes:
        """Return bytes from `offset_bytes` on; fewer only at the end of the file."""
        descriptor = self._descriptor(file)
        data = os.pread(descriptor, length_bytes, offset_bytes)
        while len(data) < length_bytes:
            more = os.pread(descriptor, length_bytes - len(data), offset_bytes + len(data))
            if not more:
                break
            data += more
        return data

    def perform(self, operation: DiskOperation) -> None:
        """Carry out one operation."""
        match operation:
            case CreateFile(file, size_bytes):
                self._create(file, size_bytes)
            case WriteBytes(file, offset_bytes, data):
                _write_all(self._descriptor(file), data, offset_bytes)
            case SyncFile(file):
                os.fdatasync(self._descriptor(file))
            case RenameFile(file, to):
                self._rename(file, to)
            case RemoveFile(file):
                self._forget(file)
                try:
                    os.unlink(file, dir_fd=self._directory)
                except FileNotFoundError:
                    return
            case SyncDirectory():
                os.fsync(self._directory)
            case _:
                assert_never(operation)

    def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Carry out operations from number `start` on; raises `OutOfSpaceError` if the disk is full."""
        resume_at = start
        for number in range(start, len(operations)):
            operation = operations[number]
            try:
                self.perform(operation)
            except OSError as error:
                if error.errno in FULL:
                    raise OutOfSpaceError(resume_at) from error
                raise _named(error, self.path, operation) from error
            if isinstance(operation, SyncFile | SyncDirectory):
                resume_at = number + 1

    def _create(self, file: str, size_bytes: int) -> None:
        self._forget(file)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(file, flags, 0o600, dir_fd=self._directory)
        self._remember(file, descriptor)
        try:
            for offset_bytes in range(0, size_bytes, len(_ZEROS)):
                _write_all(descriptor, _ZEROS[: size_bytes - offset_bytes], offset_bytes)
        except OSError:
            # Remove the partial file: other programs may need some free space before they can free more.
            self.perform(RemoveFile(file))
            raise

    def _rename(self, file: str, to: str) -> None:
        try:
            os.rename(file, to, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except FileNotFoundError:
            # Repeated after a full disk: the rename was done before, but not the sync of its directory.
            os.stat(to, dir_fd=self._directory)
            return
        self._forget(to)
        descriptor = self._files.pop(file, None)
        if descriptor is not None:
            self._files[to] = descriptor

    def _descriptor(self, file: str) -> int:
        descriptor = self._files.pop(file, None)
        if descriptor is None:
            descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory)
        self._remember(file, descriptor)
        return descriptor

    def _remember(self, file: str, descriptor: int) -> None:
        """Keep the file open, as the most recently used one."""
        self._files[file] = descriptor
        while len(self._files) > _OPEN_FILES:
            os.close(self._files.pop(next(iter(self._files))))

    def _forget(self, file: str) -> None:
        descriptor = self._files.pop(file, None)
        if descriptor is not None:
            os.close(descriptor)


def _open_lock(path: Path, directory: int) -> int:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(LOCK_FILE, flags, 0o600, dir_fd=directory)
    except OSError as error:
        os.close(directory)
        lock = path / LOCK_FILE
        advice = access_advice(lock, error) or f"; if '{lock}' is not a file of this user's, move it away"
        text = f"the lock of the directory '{path}' cannot be opened: {error.strerror or error}{advice}"
        raise StorageError(text) from error


def _named(error: OSError, directory: Path, operation: DiskOperation) -> OSError:
    """Return the error with the path of its file; the error of a call on a file descriptor lacks it."""
    path = directory if isinstance(operation, SyncDirectory) else directory / operation.file
    return OSError(error.errno, error.strerror, str(path))


def _write_all(descriptor: int, data: bytes, offset_bytes: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset_bytes)
        offset_bytes += written
        view = view[written:]


class ThreadedDisk:
    """A `Directory` with its own thread, one call at a time."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._thread = DiskThread("garlicfarm-disk")

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Carry out operations in the thread. A call that has begun is finished even if it is canceled."""
        await self._thread.run(lambda: self._directory.perform_all(operations, start))

    def begin(self, operations: Sequence[DiskOperation], ended: Callable[[Exception | None], None]) -> None:
        """Have the thread carry out operations. The trio run must last until `ended` is called in it."""
        self._thread.begin(lambda: self._directory.perform_all(operations), ended)

    async def ask(self, question: Callable[[DiskReader], Answer]) -> Answer:
        """Return the result of `question`, called in the thread."""
        return await self._thread.run(lambda: question(self._directory))

    def close(self) -> None:
        """Close all files and release the lock. Blocks: not for an event loop."""
        self._thread.close()
        self._directory.close()

    async def aclose(self) -> None:
        """Close all files and release the lock, even if canceled; raises `DiskHangsError` if the disk hangs.

        In that case the thread releases the lock when the disk responds, if ever: the lock is held while a write may be
        under way.
        """
        await self._thread.run_last(self._directory.close)


class InlineDisk:
    """A `Directory` used in trio's own thread, which it blocks: for tests, whose clock stops during a call."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Carry out operations."""
        await trio.lowlevel.checkpoint()
        self._directory.perform_all(operations, start)

    def begin(self, operations: Sequence[DiskOperation], ended: Callable[[Exception | None], None]) -> None:
        """Carry out operations now."""
        error: Exception | None = None
        try:
            self._directory.perform_all(operations)
        except (OutOfSpaceError, OSError) as failure:
            error = failure
        ended(error)

    async def ask(self, question: Callable[[DiskReader], Answer]) -> Answer:
        """Return the result of `question`."""
        await trio.lowlevel.checkpoint()
        return question(self._directory)

    async def aclose(self) -> None:
        """Close all files and release the lock."""
        self.close()

    def close(self) -> None:
        """Close all files and release the lock."""
        self._directory.close()


def open_directory(
    path: Path, node_id: bytes, generation: int | None, options: StorageOptions
) -> tuple[Directory, Recovery]:
    """Lock, read, check and repair the directory, or make a new storage in an empty one. Blocks.

    `generation` is a number that the node raises before each start. None: the storage counts its starts itself, and
    cannot detect that the node's other state is older. Raises `StorageError` with the remedy.
    """
    directory = Directory(path)
    try:
        if generation is None:
            known = STATE_FILE in directory.files()
            generation = HardStateFile.read(directory)[0].state.generation + 1 if known else 1
        owner = Owner(node_id, generation, directory.place)
        recovery = recover(directory, owner, os.urandom(STORAGE_ID_BYTES), options)
        directory.perform_all(recovery.operations)
    except (StorageError, OutOfSpaceError, OSError) as error:
        directory.close()
        raise _unusable(path, error) from error
    return directory, recovery


def check_place(path: Path) -> None:
    """Raise `StorageError` if there is a storage and it was made in another place: no server may start with a copy."""
    if not (path / STATE_FILE).is_file():
        return
    try:
        directory = Directory(path)
    except StorageInUseError:
        return  # the caller takes the lock next, and reports this error in more detail
    try:
        state = HardStateFile.read(directory)[0].state
        check_owner(state, Owner(state.binding.node_id, state.generation, directory.place))
    except (StorageError, OSError) as error:
        raise _unusable(path, error) from error
    finally:
        directory.close()


def _unusable(path: Path, error: StorageError | OutOfSpaceError | OSError) -> StorageError:
    """Return the error of opening a storage, with the remedy."""
    if isinstance(error, StorageError):
        return type(error)(f"{path}: {error}")
    # The name in an error may be relative to the directory.
    advice = access_advice(path / (error.filename or ""), error) if isinstance(error, OSError) else ""
    return StorageError(f"the storage in '{path}' cannot be opened: {error}{advice or '; free or repair the disk'}")
