"""A machine's disk: a real directory with known durable content, so that a power cut can be simulated.

    os.fsync, os.fdatasync   ──▶ the file's bytes, or the directory's names, are durable
    durable(random)          ──▶ that content, and a random part of the later writes: sectors, sizes, names
    snapshot · restore       ──▶ the whole content, for a killed process

Only the syncs are observed, so the product may write in any way. A later write is the difference between the durable
bytes and the present ones. Each sector of it survives or not, one may be torn, and the size is the old or the new one.
Names of one file change together, as a rename does. A failed sync is final, as on Linux: its writes become durable only
if they are made again.

`full`, `fail` and `rot` are the other faults. Inodes identify files, so the file system must not reuse them, and a
tmpfs does not reuse them.
"""

import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

SECTOR_BYTES: Final = 512
KEPT: Final = (0.0, 0.5, 0.5, 1.0)
"""Probabilities that an unsynced sector or name survives; each power cut draws one."""
ROT_TRIES: Final = 200
"""Places that rot tries, until it finds a byte in use."""
_WRITING: Final = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Bytes and mode of a file."""

    data: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class Content:
    """All files below a directory, by their paths; for sockets, only the paths."""

    directories: dict[str, int]
    """Modes of the directories, by path; parents precede children."""
    files: dict[str, StoredFile]
    sockets: tuple[str, ...]


class Disk:
    """A disk mounted at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sync_count = 0
        self.sync_delay_s = 0.0
        self.hang = False
        self.full = False
        """Writes fail with ENOSPC."""
        self.fail = False
        """Writes and syncs fail with EIO."""
        self.ignores_syncs = False
        """A planted fault: syncs return without any effect, as on some disks."""
        self._is_known = False
        self._bytes: dict[int, bytes] = {}
        """The durable bytes of each file, by inode."""
        self._failed: dict[int, bytes] = {}
        """The bytes of a file at its failed sync, by inode. The kernel has dropped the bytes that were not durable."""
        self._names: dict[int, dict[str, int]] = {}
        """The durable names of each directory, by inode: the inode of each name."""
        self._modes: dict[int, int] = {}

    # -- syncs ---------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything durable, as a disk does after some time."""
        self._bytes.clear()
        self._failed.clear()
        self._names.clear()
        self._is_known = True
        if self.root.is_dir():
            self._flush(self.root)

    def _flush(self, directory: Path) -> None:
        status = directory.stat()
        self._modes[status.st_ino] = status.st_mode
        self._names[status.st_ino] = names = {}
        for each in sorted(directory.iterdir()):
            status = each.lstat()
            self._modes[status.st_ino] = status.st_mode
            names[each.name] = status.st_ino
            if stat.S_ISDIR(status.st_mode):
                self._flush(each)
            elif stat.S_ISREG(status.st_mode):
                self._bytes[status.st_ino] = each.read_bytes()

    def synced(self, descriptor: int) -> None:
        """Make the bytes or the names of an open file durable."""
        self.sync_count += 1
        if self.ignores_syncs:
            return
        self._keep_present_content()
        status = os.fstat(descriptor)
        inode = status.st_ino
        self._modes[inode] = status.st_mode
        if stat.S_ISDIR(status.st_mode):
            self._names[inode] = self._present_names(f"/proc/self/fd/{descriptor}")
        elif stat.S_ISREG(status.st_mode):
            data = _read(descriptor)
            lost = self._failed.get(inode)
            if lost is not None:
                data = _written_again(self._bytes.get(inode, b""), lost, data)
            self._bytes[inode] = data

    def sync_failed(self, descriptor: int) -> None:
        """Drop the writes of a file since its last sync."""
        self._keep_present_content()
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            self._failed[status.st_ino] = _read(descriptor)

    def _present_names(self, directory: str | Path) -> dict[str, int]:
        names = {}
        with os.scandir(directory) as entries:
            for each in entries:
                status = each.stat(follow_symlinks=False)
                names[each.name] = status.st_ino
                self._modes.setdefault(status.st_ino, status.st_mode)
        return dict(sorted(names.items()))

    def _keep_present_content(self) -> None:
        """At the first sync, treat the present content as durable, because it existed before the machine started."""
        if not self._is_known:
            self.flush()

    # -- contents ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Content:
        """Return the present content, durable or not: the content that the next process finds after a kill."""
        content = Content({}, {}, ())
        return self._snapshot(self.root, "", content)

    def _snapshot(self, directory: Path, path: str, content: Content) -> Content:
        content.directories[path] = stat.S_IMODE(directory.stat().st_mode)
        sockets = content.sockets
        for each in sorted(directory.iterdir()):
            status = each.lstat()
            name = f"{path}/{each.name}" if path else each.name
            if stat.S_ISDIR(status.st_mode):
                sockets = self._snapshot(each, name, Content(content.directories, content.files, sockets)).sockets
            elif stat.S_ISREG(status.st_mode):
                content.files[name] = StoredFile(each.read_bytes(), stat.S_IMODE(status.st_mode))
            elif stat.S_ISSOCK(status.st_mode):
                sockets = (*sockets, name)
        return Content(content.directories, content.files, sockets)

    def durable(self, random: Random) -> Content:
        """Return the content after a power cut now: the durable content, and a random part of the later writes."""
        self._keep_present_content()
        kept = random.choice(KEPT)
        content = Content({}, {}, ())
        root = self.root.stat().st_ino
        present = dict(self._places(self.root))
        self._survive(root, "", present, content, random, kept)
        return content

    def _places(self, directory: Path) -> Iterator[tuple[int, Path]]:
        yield directory.stat().st_ino, directory
        for each in sorted(directory.iterdir()):
            if each.is_dir() and not each.is_symlink():
                yield from self._places(each)
            else:
                yield each.lstat().st_ino, each

    def _survive(
        self, inode: int, path: str, present: dict[int, Path], content: Content, random: Random, kept: float
    ) -> None:
        content.directories[path] = stat.S_IMODE(self._modes.get(inode, 0o700))
        durable = self._names.get(inode, {})
        now = self._present_names(present[inode]) if inode in present else {}
        for name, child in sorted(_surviving_names(durable, now, random, kept).items()):
            mode = self._modes.get(child, 0)
            below = f"{path}/{name}" if path else name
            if stat.S_ISDIR(mode):
                self._survive(child, below, present, content, random, kept)
            elif stat.S_ISREG(mode):
                old = self._bytes.get(child, b"")
                place = present.get(child)
                new = old if place is None else place.read_bytes()
                content.files[below] = StoredFile(_torn(old, new, random, kept), stat.S_IMODE(mode))

    def restore(self, content: Content) -> None:
        """Write a content over the directory. Directories keep their inodes, which identify the log's place."""
        for path, mode in content.directories.items():
            place = self.root / path
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(mode)
            for each in list(place.iterdir()):
                name = f"{path}/{each.name}" if path else each.name
                if each.is_dir() and not each.is_symlink():
                    if name not in content.directories:
                        _remove_tree(each)
                else:
                    each.unlink()
        for path, file in content.files.items():
            place = self.root / path
            place.write_bytes(file.data)
            place.chmod(file.mode)
        for path in content.sockets:
            _leave_socket(self.root / path)
        self.flush()

    # -- faults --------------------------------------------------------------------------------------------------------

    def rot(self, random: Random, pattern: str = "**/*") -> str:
        """Flip one bit of one stored file; return its path and the offset, or an empty text if all files are empty."""
        self._keep_present_content()
        files = sorted(each for each in self.root.glob(pattern) if each.is_file() and each.stat().st_size)
        if not files:
            return ""
        place = random.choice(files)
        data = bytearray(place.read_bytes())
        offset = random.randrange(len(data))
        for _ in range(ROT_TRIES):
            if data[offset]:  # unused space is zero
                break
            offset = random.randrange(len(data))
        data[offset] ^= 1 << random.randrange(8)
        with place.open("r+b") as file:
            file.write(data)
        self._bytes[place.stat().st_ino] = bytes(data)
        return f"{place.relative_to(self.root)} at {offset}"

    def check_write(self) -> None:
        """Raise the error of a write, if the disk is full or fails."""
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.fail:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def _read(descriptor: int) -> bytes:
    """Read an open file, even if it is open for writing only."""
    with open(f"/proc/self/fd/{descriptor}", "rb", buffering=0) as file:  # noqa: PTH123 - a Path is slower
        return file.read()


def _written_again(durable: bytes, lost: bytes, present: bytes) -> bytes:
    """Return the durable bytes after a sync that follows a failed one: only sectors written since then are new."""
    result = bytearray(present)
    for begin in range(0, len(present), SECTOR_BYTES):
        end = begin + SECTOR_BYTES
        if present[begin:end] == lost[begin:end]:
            old = durable[begin:end]
            result[begin : begin + len(old)] = old[: len(result) - begin]
            size = len(present[begin:end])
            result[begin + len(old) : begin + size] = bytes(size - len(old))
    return bytes(result)


def _surviving_names(durable: dict[str, int], now: dict[str, int], random: Random, kept: float) -> dict[str, int]:
    """Return the names of a directory after a power cut. The old and the new name of one file change together."""
    result = dict(durable)
    done: set[str] = set()
    old_names = {inode: name for name, inode in durable.items()}
    for name in sorted(durable.keys() | now.keys()):
        if name in done or durable.get(name) == now.get(name):
            continue
        inode = now.get(name)
        old_name = None if inode is None else old_names.get(inode)
        moved = old_name if old_name is not None and now.get(old_name) != inode else None
        if inode is None and any(each == durable[name] for each in now.values()):
            continue  # the result for its new name is used
        done.update((name, moved or name))
        if random.random() >= kept:
            continue
        if inode is None:
            del result[name]
        else:
            result[name] = inode
            if moved is not None and result.get(moved) == inode:
                del result[moved]
    return result


def _torn(old: bytes, new: bytes, random: Random, kept: float) -> bytes:
    """Return the bytes of a file after a power cut."""
    if old == new:
        return old
    size = len(new) if random.random() < kept else len(old)
    result = bytearray(size)
    result[: len(old)] = old[:size]
    begins = [
        begin
        for begin in range(0, size, SECTOR_BYTES)
        if result[begin : begin + SECTOR_BYTES] != new[begin : begin + SECTOR_BYTES]
    ]
    torn = random.choice(begins) if begins else None
    for begin in begins:
        part = new[begin : min(begin + SECTOR_BYTES, size)]
        if begin == torn and kept not in (0.0, 1.0):
            part = part[: random.randrange(len(part) + 1)]
        elif random.random() >= kept:
            continue
        result[begin : begin + len(part)] = part
    return bytes(result)


def _remove_tree(directory: Path) -> None:
    for each in directory.iterdir():
        if each.is_dir() and not each.is_symlink():
            _remove_tree(each)
        else:
            each.unlink()
    directory.rmdir()


def _leave_socket(place: Path) -> None:
    """Leave the file of a socket without a listener, as a killed process does."""
    directory = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as unbound, suppress(OSError):
            unbound.bind(f"/proc/self/fd/{directory}/{place.name}")
    finally:
        os.close(directory)


@contextmanager
def disk_calls(disk_of_caller: Callable[[], Disk | None]) -> Iterator[None]:
    """Report each sync and write of the process to the disk of its caller."""
    calls = _Calls(disk_of_caller)
    with (
        patch.object(os, "fsync", calls.syncing(os.fsync)),
        patch.object(os, "fdatasync", calls.syncing(os.fdatasync)),
        patch.object(os, "pwrite", calls.writing(os.pwrite)),
        patch.object(os, "write", calls.writing(os.write)),
        patch.object(os, "open", calls.opening(os.open)),
    ):
        yield


class _Calls:
    """Replacements of calls of the operating system."""

    def __init__(self, disk_of_caller: Callable[[], Disk | None]) -> None:
        self._disk = disk_of_caller

    def writing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(descriptor: int, *arguments: Any) -> Any:
            disk = self._disk()
            if disk is not None and (disk.full or disk.fail) and _is_below(disk.root, descriptor):
                disk.check_write()
            return real(descriptor, *arguments)

        return write

    def syncing(self, real: Callable[[int], None]) -> Callable[[Any], None]:
        def sync(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            disk = self._disk()
            if disk is None or not _is_below(disk.root, descriptor):
                real(descriptor)
                return
            if disk.full or disk.fail:
                disk.sync_failed(descriptor)
                disk.check_write()
            disk.synced(descriptor)

        return sync

    def opening(self, real: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            disk = self._disk()
            if disk is not None and (disk.full or disk.fail) and flags & os.O_CREAT and flags & _WRITING:
                place = Path(os.fspath(path)) if dir_fd is None else _place(dir_fd) / path
                if place.is_relative_to(disk.root) and not place.exists():
                    disk.check_write()
            return real(path, flags, mode, dir_fd=dir_fd)

        return opened


def _place(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def _is_below(root: Path, descriptor: int) -> bool:
    """Return True if an open file is the directory `root`, or below it."""
    place = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path is slower
    return place == str(root) or place.startswith(f"{root}/")
