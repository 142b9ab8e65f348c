"""The data files of a table on the disk of this machine: the files themselves, or copies of a bucket's objects.

    directory   <table>/day=2026-11-25/part-….parquet
    bucket      <cache>/BUCKET/PREFIX/<table>/day=2026-11-25/part-….parquet, written here first, or downloaded once

A data file never changes and its name is used once, so a copy is never outdated. DuckDB and pyarrow read local files in
both cases, with the same code and results. DuckDB's extension for S3 is not in its package, and `pipeline query` must
work without fetching code. A run does not download the files that it wrote.

The cache is `$XDG_CACHE_HOME/garlicfarm/tables` (`~/.cache/…`), for this user alone. Above `CACHE_BYTES`, files that
were not used for an hour are removed, the longest unused first.
"""

import os
import pwd
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pipeline.output.buckets import HDFS, SCHEME, BucketPath, MissingObjectError, Output
from pipeline.output.documents import sync
from pipeline.source.daemon_pool import DaemonPool

CACHE_BYTES: Final = 4 * 1024**3
UNUSED_S: Final = 3_600.0
TRIM_BYTES: Final = 256 * 1024**2
"""The bytes of new files between two measurements of the cache."""
DOWNLOADS: Final = 8
"""The number of simultaneous downloads."""
_new_bytes: list[int] = []
"""The sizes of new files since the last measurement."""


def cache_directory() -> Path:
    """Return the directory of copies."""
    given, home = (Path(os.environ.get(name, "")) for name in ("XDG_CACHE_HOME", "HOME"))
    if given.is_absolute():
        base = given
    elif home.is_absolute():
        base = home / ".cache"
    else:
        try:
            base = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache"
        except KeyError:
            base = Path(tempfile.gettempdir()) / f"garlicfarm-cache-{os.getuid()}"
    return base / "garlicfarm" / "tables"


def free_bytes() -> int:
    """Return the free space for copies."""
    cache_directory().mkdir(mode=0o700, parents=True, exist_ok=True)
    return shutil.disk_usage(cache_directory()).free


def place_on_disk(root: Output, path: str) -> Path:
    """Return the place of a table's data file on the disk; a copy may not exist yet."""
    return root / path if isinstance(root, Path) else _copies(root) / path


def _copies(root: BucketPath) -> Path:
    """Return the directory of copies of a table. The directory of an HDFS has a name that no bucket can have."""
    return cache_directory() / (root.store if root.scheme == HDFS else root.bucket).replace("//", "") / root.key


def make_folder(root: Output, file: Path) -> None:
    """Create the directory of a data file if it is missing."""
    if not isinstance(root, Path):
        cache_directory().mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
    elif not file.parent.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        sync(root)


def make_durable(root: Output, path: str) -> None:
    """Make a written data file durable: a commit may name it only when a power failure cannot remove it."""
    file = place_on_disk(root, path)
    if isinstance(root, Path):
        sync(file, file.parent)
    else:
        (root / path).upload(file)
        _note_new([file])


def files_on_disk(root: Output, paths: Iterable[str]) -> list[Path]:
    """Return data files, after downloading missing copies. Raise FileNotFoundError if an object was deleted."""
    places = [(path, place_on_disk(root, path)) for path in paths]
    if not isinstance(root, Path):
        missing = [(path, place) for path, place in places if not _is_used(place)]
        if missing:
            with DaemonPool(DOWNLOADS) as pool:
                # Iterated, so that an error of a download is raised here.
                list(pool.map(lambda each: _download(root, *each), missing))
            _note_new(place for _, place in missing)
    return [place for _, place in places]


def _note_new(files: Iterable[Path]) -> None:
    """Count new files of the cache, and remove unused ones if it is too large."""
    is_first = not _new_bytes
    for each in files:
        with suppress(FileNotFoundError):
            _new_bytes.append(each.stat().st_size)
    if is_first or sum(_new_bytes) > TRIM_BYTES:
        _new_bytes[:] = [0]
        trim(cache_directory(), CACHE_BYTES, time.time() - UNUSED_S)


def trim(directory: Path, limit_bytes: int, used_before_s: float) -> None:
    """Remove files last used before this time, the longest unused first, until all files fit into `limit_bytes`."""
    found = []
    for each in directory.rglob("*"):
        # Another process may remove files at the same time.
        with suppress(FileNotFoundError):
            known = each.stat()
            if stat.S_ISREG(known.st_mode):
                found.append((known.st_mtime, known.st_size, each))
    total = sum(size for _, size, _ in found)
    for used_s, size, file in sorted(found):
        if total <= limit_bytes or used_s >= used_before_s:
            return
        file.unlink(missing_ok=True)
        total -= size


def refresh_copy(root: Output, path: str) -> None:
    """Remove a copy that differs from its object. Raise FileNotFoundError if the object is missing."""
    if isinstance(root, Path):
        return
    place, size = place_on_disk(root, path), (root / path).size()
    if size is None:
        raise MissingObjectError(f"{root / path} is missing")
    with suppress(FileNotFoundError):
        if place.stat().st_size != size:
            place.unlink()


def shown(file: Path) -> str:
    """Return the name of a data file for an operator: the URL of the object of a copy."""
    try:
        name = str(file.relative_to(cache_directory()))
        return name.replace(":", "://", 1) if name.startswith(HDFS[:-2]) else f"{SCHEME}{name}"
    except ValueError:
        return str(file)


def _is_used(place: Path) -> bool:
    """Return True if a copy exists, and mark it as used."""
    try:
        os.utime(place)
    except FileNotFoundError:
        return False
    return True


def _download(root: BucketPath, path: str, place: Path) -> None:
    make_folder(root, place)
    aside = place.with_name(f".{place.name}.{uuid.uuid4()}")
    try:
        (root / path).download(aside)
        aside.replace(place)
    finally:
        aside.unlink(missing_ok=True)
