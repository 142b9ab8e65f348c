"""Documents in HDFS: a writer that continues after a suspension of any length cannot replace a later version.

The client is a directory with the renames of HDFS. `make interop-hdfs` runs a real name node.
"""

import os
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from pipeline.output import hdfs
from pipeline.output.hdfs import HdfsStore, PreconditionError

KEY = "farm/batches-log.json"
LATER = {"first": 1, "second": 2, "several": 4}
"""The number of versions that another process writes while the writer is suspended."""


class Directory:
    """The used part of the client hdfs-native, in a directory. `before_rename` runs once before a rename."""

    root = Path()
    before_rename: Callable[[], Any] | None = None

    def __init__(self, _: str) -> None:
        pass

    def create(self, path: str, _: object) -> IO[bytes]:
        """Open a new file."""
        place = self._place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        file: Any = place.open("xb")
        file.hsync = file.flush
        return file  # type: ignore[no-any-return]  # a file with one more method

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename a file; without `overwrite` fail if the target exists."""
        run, Directory.before_rename = Directory.before_rename, None
        if run is not None:
            run()
        if overwrite:
            self._place(source).replace(self._place(target))
        else:
            os.link(self._place(source), self._place(target))
            self._place(source).unlink()

    def delete(self, path: str) -> None:
        """Delete a file."""
        self._place(path).unlink()

    def read(self, path: str) -> IO[bytes]:
        """Open a file."""
        return BytesIO(self._place(path).read_bytes())

    def get_file_info(self, path: str) -> SimpleNamespace:
        """Return the size of a file."""
        found = self._place(path)
        return SimpleNamespace(isdir=found.is_dir(), length=found.stat().st_size)

    def list_status(self, path: str, recursive: bool = False) -> Iterator[SimpleNamespace]:  # noqa: FBT001, FBT002 - its signature
        """Yield the files of a folder."""
        place = self._place(path)
        for each in place.rglob("*") if recursive else place.iterdir():
            yield SimpleNamespace(path=f"/{each.relative_to(self.root)}", isdir=each.is_dir())

    def _place(self, path: str) -> Path:
        return self.root / path.lstrip("/")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HdfsStore:
    """Return a store over a directory."""
    monkeypatch.setattr(Directory, "root", tmp_path)
    monkeypatch.setitem(sys.modules, "hdfs_native", SimpleNamespace(Client=Directory, WriteOptions=lambda **_: None))
    return HdfsStore("namenode:8020")


def content(store: HdfsStore) -> tuple[bytes, str]:
    """Return the content of the document, and its tag."""
    found = store.get(KEY)
    return b"".join(found.stream()), found.meta["e_tag"]


@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
def test_suspended_writer_does_not_replace_later_version(later: int, store: HdfsStore) -> None:
    store.put(KEY, b"1", mode="create")

    def replace_by_other() -> None:
        other = HdfsStore("namenode:8020")
        for _ in range(later):
            number = int(content(other)[1])
            other.put(KEY, str(number + 1).encode(), mode={"e_tag": str(number)})

    Directory.before_rename = replace_by_other
    with pytest.raises(PreconditionError):
        store.put(KEY, b"suspended", mode={"e_tag": "1"})
    assert content(store) == (str(1 + later).encode(), str(1 + later))
    # and the next writer continues
    assert store.put(KEY, b"next", mode={"e_tag": str(1 + later)}) == {"e_tag": str(2 + later)}
    assert [*store.list("farm")] == [[{"path": KEY}]]


def test_suspended_writer_does_not_restore_deleted_document(store: HdfsStore) -> None:
    store.put(KEY, b"1", mode="create")
    store.put(KEY, b"2", mode={"e_tag": "1"})
    Directory.before_rename = lambda: store.delete(KEY)
    with pytest.raises(PreconditionError):
        store.put(KEY, b"suspended", mode={"e_tag": "2"})
    with pytest.raises(FileNotFoundError):
        store.get(KEY)
    assert [*store.list("farm")] == []


def test_kill_between_rename_and_deletion_keeps_new_version(store: HdfsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(KEY, b"1", mode="create")

    def killed(_: HdfsStore, path: str) -> None:
        if hdfs._ASIDE not in path:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(HdfsStore, "_delete", killed)
        with pytest.raises(KeyboardInterrupt):
            store.put(KEY, b"2", mode={"e_tag": "1"})
    assert content(store) == (b"2", "2")
    with pytest.raises(PreconditionError):
        store.put(KEY, b"x", mode={"e_tag": "1"})
    with pytest.raises(PreconditionError):
        store.put(KEY, b"x", mode="create")
    store.put(KEY, b"3", mode={"e_tag": "2"})
    assert (content(store), [*store.list("farm")]) == ((b"3", "3"), [[{"path": KEY}]])
