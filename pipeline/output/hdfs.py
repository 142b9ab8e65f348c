"""Files of HDFS, by the operations of obstore's client that `BucketPath` uses; the client is hdfs-native, without Java.

    key                  a document of version 1, or a data file
    key.~2, key.~3, …    later versions of a document; the highest one is valid, and its number is the entity tag

HDFS has atomic renames that fail if the target exists, but it cannot replace a file on a condition. So a document is
replaced by a file with the next number: the rename decides between two writers. A writer then deletes the earlier
versions. A suspended writer may use a number whose file was deleted. It finds that its own version does not follow the
version before it, deletes its file, and fails. Delta Lake's commits have numbers already, and delta-rs makes them with
the same renames.

A file is written and synced as `.~…` first. A killed process may leave such a file, which nothing reads.
"""

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_VERSION: Final = re.compile(r"(.+)\.~(\d+)")
_ASIDE: Final = ".~"
_PART_BYTES: Final = 1024 * 1024


class PreconditionError(Exception):
    """The file exists, or has another version. The class has the name of obstore's."""


@dataclass(frozen=True, slots=True)
class HdfsFile:
    """A file to read; `meta` has its entity tag."""

    reader: Any
    meta: dict[str, str]

    def stream(self) -> Iterator[bytes]:
        """Yield the content in parts."""
        while part := self.reader.read(_PART_BYTES):
            yield part


class HdfsStore:
    """The files below the root of one HDFS; a key is a path without the slash at its begin."""

    def __init__(self, authority: str) -> None:
        from hdfs_native import Client, WriteOptions  # noqa: PLC0415 - only for HDFS

        self._client = Client(f"hdfs://{authority}")
        self._new = WriteOptions(overwrite=False, create_parent=True)

    def list_with_delimiter(self, key: str) -> dict[str, Sequence[Any]]:
        """Return the folders and files of a folder."""
        found = dict(self._below(key, recursive=False))
        return {
            "common_prefixes": sorted(path for path, is_folder in found.items() if is_folder),
            "objects": [{"path": path} for path, is_folder in sorted(found.items()) if not is_folder],
        }

    def head(self, key: str) -> dict[str, int]:
        """Return the size of a file. Raise FileNotFoundError."""
        found = self._client.get_file_info(f"/{self._newest(key)[0]}")
        if found.isdir:
            raise FileNotFoundError(key)
        return {"size": found.length}

    def get(self, key: str) -> HdfsFile:
        """Open a file. Raise FileNotFoundError."""
        while True:
            path, version = self._newest(key)
            try:
                return HdfsFile(self._client.read(f"/{path}"), {"e_tag": str(version)})
            except FileNotFoundError:
                # It was replaced in the meantime, or deleted.
                if self._newest(key)[0] == path:
                    raise

    def put(self, key: str, content: bytes | Path, mode: str | dict[str, str] = "overwrite") -> dict[str, str]:
        """Write a file: a new one (`create`), or the next version of this entity tag. Raise PreconditionError."""
        number = 1 + _number(mode)
        if isinstance(mode, dict) and number == 1:
            raise PreconditionError(f"{key} has another version")
        folder, _, name = key.rpartition("/")
        aside = f"/{folder}/{_ASIDE}{uuid.uuid4()}"
        with self._client.create(aside, self._new) as file:
            for part in _parts(content):
                file.write(part)
            file.hsync()
        written = f"/{folder}/{_name(name, number)}"
        try:
            self._client.rename(aside, written, overwrite=mode == "overwrite")
        except FileExistsError as error:
            raise PreconditionError(f"{key} exists") from error
        finally:
            self._delete(aside)
        versions = self._versions(key)
        follows = max(versions) == number and (number == 1 or number - 1 in versions)
        if mode != "overwrite" and not follows:
            self._delete(written)
            raise PreconditionError(f"{key} has another version")
        for each in versions - {number}:
            self._delete(f"/{folder}/{_name(name, each)}")
        return {"e_tag": str(number)}

    def delete(self, keys: str | Iterable[str]) -> None:
        """Delete files; a missing file is not an error."""
        for key in [keys] if isinstance(keys, str) else keys:
            folder, _, name = key.rpartition("/")
            for each in sorted({1, *self._versions(key)}):
                self._delete(f"/{folder}/{_name(name, each)}")

    def copy(self, key: str, target: str) -> None:
        """Copy a file over another one."""
        self.put(target, b"".join(self.get(key).stream()))

    def _below(self, key: str, *, recursive: bool) -> Iterator[tuple[str, bool]]:
        """Yield the keys below a folder, without versions and unfinished files, and whether each is a folder."""
        with suppress(FileNotFoundError):
            for each in self._client.list_status(f"/{key}", recursive):
                path, is_folder = each.path.lstrip("/"), bool(each.isdir)
                if path != key and not path.rpartition("/")[2].startswith(_ASIDE) and not (recursive and is_folder):
                    found = _VERSION.fullmatch(path)
                    yield found[1] if found else path, is_folder

    def _versions(self, key: str) -> set[int]:
        """Return the versions of a file; a data file and a commit have only the first."""
        folder, _, name = key.rpartition("/")
        if folder.endswith("_delta_log") or name.endswith(".parquet"):
            return {1}
        versions = set[int]()
        with suppress(FileNotFoundError):
            for each in self._client.list_status(f"/{folder}"):
                found = _VERSION.fullmatch(last := each.path.rpartition("/")[2])
                if (found[1] if found else last) == name and not each.isdir:
                    versions.add(int(found[2]) if found else 1)
        return versions

    def _newest(self, key: str) -> tuple[str, int]:
        version = max(self._versions(key), default=1)
        folder, slash, name = key.rpartition("/")
        return f"{folder}{slash}{_name(name, version)}", version

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._client.delete(path)

    def list(self, key: str, chunk_size: int = 0) -> Iterator[Sequence[dict[str, str]]]:
        """Yield one page with all files below a folder, or no page."""
        del chunk_size
        if found := {path for path, _ in self._below(key, recursive=True)}:
            yield [{"path": each} for each in sorted(found)]


def _number(mode: str | dict[str, str]) -> int:
    """Return the version of an entity tag; 0 for another tag, or none."""
    tag = mode["e_tag"] if isinstance(mode, dict) else ""
    return int(tag) if tag.isdecimal() else 0


def _name(name: str, version: int) -> str:
    return name if version == 1 else f"{name}{_ASIDE}{version}"


def _parts(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while part := file.read(_PART_BYTES):
            yield part
