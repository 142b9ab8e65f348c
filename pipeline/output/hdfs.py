"""Files of HDFS, which hdfs-native reads and writes without Java.

`HdfsStore` has the methods of obstore's client that `BucketPath` calls.

    key            a data file, or a file of a table's log
    key.~/         a document
        .~VERSION  an empty file, whose name shows the valid version: a random number, which is the entity tag
        VERSION    the content of this version

HDFS cannot replace a file on a condition, but a rename fails if its source is missing or its target exists. A writer
writes the content of its version, and then renames `.~OLD` to `.~NEW`. So this one rename decides between writers. The
rename fails after another write or a deletion, even if the document was created again, because random versions do not
occur again. A new document is written as the folder `.~VERSION` and then renamed. Delta Lake's commits have numbers
already, and delta-rs makes them with such renames.

A killed writer may leave files that no reader uses:

- The content of a version of a document that is not the valid version: the writer of the next version deletes it.
- The folder `.~VERSION` of a new document: after `LEFT_MS`, it is deleted when another document is created next to it.
- A part of a data file: the cleanup of the table deletes it, because no commit names this file.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

LEFT_MS: Final = 3_600_000
"""The lifetime of an unfinished folder of a new document; an older one is from a killed writer."""
_MARK: Final = ".~"
_DOCUMENT: Final = ".~"
"""The end of the name of a document's folder."""
_PART_BYTES: Final = 1024 * 1024


class PreconditionError(Exception):
    """The file exists, or has another version. `BucketPath` identifies this error by its name, as obstore's error."""


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
    """The files below the root of one HDFS; a key is a path without its first slash."""

    def __init__(self, authority: str) -> None:
        from hdfs_native import Client, WriteOptions  # noqa: PLC0415 - only for HDFS

        self._client = Client(f"hdfs://{authority}")
        self._new = WriteOptions(overwrite=False, create_parent=True)
        self._replacing = WriteOptions(overwrite=True, create_parent=True)
        self._inside = WriteOptions(overwrite=False, create_parent=False)

    def list_with_delimiter(self, key: str) -> dict[str, Sequence[Any]]:
        """Return the folders and files of a folder."""
        found = dict(self._below(key, recursive=False))
        return {
            "common_prefixes": sorted(path for path, is_folder in found.items() if is_folder),
            "objects": [{"path": path} for path, is_folder in sorted(found.items()) if not is_folder],
        }

    def head(self, key: str) -> dict[str, int]:
        """Return the size of a file. Raise FileNotFoundError."""
        if not _is_plain(key):
            files = self._files(key)
            return {"size": files[_valid(key, files)]}
        found = self._client.get_file_info(f"/{key}")
        if found.isdir:
            raise FileNotFoundError(key)
        return {"size": found.length}

    def get(self, key: str) -> HdfsFile:
        """Open a file. Raise FileNotFoundError."""
        if _is_plain(key):
            return HdfsFile(self._client.read(f"/{key}"), {"e_tag": ""})
        while True:
            version = _valid(key, self._files(key))
            try:
                opened = HdfsFile(self._client.read(f"{_folder(key)}/{version}"), {"e_tag": version})
                return HdfsFile(BytesIO(b"".join(opened.stream())), opened.meta)
            except Exception:
                # It was replaced in the meantime, or deleted.
                if self._version(key) == version:
                    raise

    def put(self, key: str, content: bytes | Path, mode: str | dict[str, str] = "overwrite") -> dict[str, str]:
        """Write a file; return its entity tag. Raise PreconditionError.

        With a tag as `mode`, replace this version of a document. Without a tag, a document must not exist. A data file
        must not exist with the mode `create`. A write that fails in an outage may still have an effect.
        """
        if isinstance(mode, dict):
            return {"e_tag": self._replace(key, content, mode["e_tag"])}
        if not _is_plain(key):
            return {"e_tag": self._create(key, content)}
        try:
            self._write(f"/{key}", content, self._replacing if mode == "overwrite" else self._new)
        except FileExistsError as error:
            raise PreconditionError(f"{key} exists") from error
        return {"e_tag": ""}

    def delete(self, key: str) -> None:
        """Delete a file; a missing file is not an error."""
        self._delete(f"/{key}" if _is_plain(key) else _folder(key))

    def rename_folder(self, key: str, target: str) -> None:
        """Rename a folder with all its files. Raise FileNotFoundError, FileExistsError."""
        self._client.rename(f"/{key}", f"/{target}", overwrite=False)

    def _create(self, key: str, content: bytes | Path) -> str:
        """Create a document; return its version."""
        version, parent = uuid.uuid4().hex, f"/{key}".rpartition("/")[0]
        aside = f"{parent}/{_MARK}{version}"
        try:
            self._write(f"{aside}/{version}", content, self._new)
            self._client.create(f"{aside}/{_MARK}{version}", self._inside).close()
            self._client.rename(aside, _folder(key), overwrite=False)
        except Exception as error:
            found = self._version(key)
            if found is None:
                raise
            # Without a reply to the rename, it may have been successful.
            if found != version:
                raise PreconditionError(f"{key} exists") from error
        finally:
            self._discard(aside)
        # The write was successful, even if the cleanup fails.
        with suppress(Exception):
            self._delete_left(parent, _folder(key))
        return version

    def _replace(self, key: str, content: bytes | Path, tag: str) -> str:
        """Replace a version of a document; return the next version."""
        version, folder, files = uuid.uuid4().hex, _folder(key), self._files(key)
        if not tag or _MARK + tag not in files:
            raise PreconditionError(f"{key} has another version")
        try:
            self._write(f"{folder}/{version}", content, self._inside)
            self._client.rename(f"{folder}/{_MARK}{tag}", f"{folder}/{_MARK}{version}", overwrite=False)
        except Exception as error:
            found = self._version(key)
            # The content stays, because a rename without a reply may still take effect. The next writer deletes it.
            if found == tag:
                raise
            if found != version:
                self._discard(f"{folder}/{version}")
                raise PreconditionError(f"{key} has another version") from error
        # `files` was listed before the rename: its files belong to this tag, or to writers whose rename fails now. A
        # file written since then may be the content of the next version, so it stays.
        for each in files.keys() - {_MARK + tag}:
            self._discard(f"{folder}/{each}")
        return version

    def _write(self, path: str, content: bytes | Path, options: Any) -> None:
        """Create a file, write it and sync it. If this fails after the creation, delete the file."""
        opened = self._client.create(path, options)
        try:
            with opened as file:
                for part in _parts(content):
                    file.write(part)
                file.hsync()
        except BaseException:
            self._discard(path)
            raise

    def _delete_left(self, parent: str, new: str) -> None:
        """Delete the folders of killed writers. The time of the new document serves as the present time of HDFS."""
        found = [*self._client.list_status(parent or "/")]
        now = max((each.modification_time for each in found if _last(each.path) == _last(new)), default=0)
        for each in found:
            if _last(each.path).startswith(_MARK) and each.modification_time < now - LEFT_MS:
                self._delete(f"{parent}/{_last(each.path)}")

    def _below(self, key: str, *, recursive: bool) -> Iterator[tuple[str, bool]]:
        """Yield each key below a folder, with True for a folder, and False for a document or another file.

        Omit unfinished documents. With `recursive`, yield the files of all subfolders, but not the subfolders.
        """
        with suppress(FileNotFoundError):
            for each in self._client.list_status(f"/{key}", recursive):
                path, is_folder = each.path.lstrip("/"), bool(each.isdir)
                parent, _, name = path.rpartition("/")
                if path == key or _last(parent).startswith(_MARK):
                    continue
                if parent.endswith(_DOCUMENT):
                    if name.startswith(_MARK):
                        yield parent.removesuffix(_DOCUMENT), False
                elif not name.startswith(_MARK) and not (recursive and is_folder):
                    yield path.removesuffix(_DOCUMENT), is_folder and not path.endswith(_DOCUMENT)

    def _files(self, key: str) -> dict[str, int]:
        """Return the names and sizes of a document's files; empty if the document does not exist."""
        with suppress(FileNotFoundError):
            return {_last(each.path): int(each.length) for each in self._client.list_status(_folder(key))}
        return {}

    def _version(self, key: str) -> str | None:
        """Return the valid version of a document; None if the document does not exist."""
        with suppress(FileNotFoundError):
            return _valid(key, self._files(key))
        return None

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._client.delete(path, recursive=True)

    def _discard(self, path: str) -> None:
        """Delete a path that no reader uses. Ignore an error, because a later writer deletes the path."""
        with suppress(Exception):
            self._delete(path)

    def list(self, key: str, chunk_size: int = 0) -> Iterator[Sequence[dict[str, str]]]:
        """Yield one page with all files below a folder, or no page."""
        del chunk_size
        if found := {path for path, _ in self._below(key, recursive=True)}:
            yield [{"path": each} for each in sorted(found)]


def _is_plain(key: str) -> bool:
    """Return True for a data file or a file of a table's log, which are never replaced."""
    return key.endswith(".parquet") or key.rpartition("/")[0].endswith("_delta_log")


def _folder(key: str) -> str:
    return f"/{key}{_DOCUMENT}"


def _valid(key: str, files: Iterable[str]) -> str:
    """Return the valid version among the names of a document's files. Raise FileNotFoundError."""
    for each in files:
        if each.startswith(_MARK):
            return each.removeprefix(_MARK)
    raise FileNotFoundError(key)


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _parts(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while part := file.read(_PART_BYTES):
            yield part
