"""Documents in HDFS: a writer that continues after a suspension of any length cannot replace a later version.

The client is a directory with the rename rules of HDFS. `make interop-hdfs` runs a real name node.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from pipeline.output import buckets, hdfs
from pipeline.output.buckets import BucketPath, OvertakenError, output_of
from pipeline.output.hdfs import HdfsStore, PreconditionError
from pipeline.output.leases import LIFETIME_S, Lease

KEY = "farm/batches-log.json"


class Directory:
    """The methods of hdfs-native that the pipeline uses, in a directory.

    `before`, `after`: a method and a function, which runs once, before or after the next call of the method.
    """

    root = Path()
    before: tuple[str, Callable[[], Any]] | None = None
    after: tuple[str, Callable[[], Any]] | None = None

    def __init__(self, _: str) -> None:
        pass

    def create(self, path: str, options: SimpleNamespace) -> IO[bytes]:
        self._run("before", "create")
        place = self._place(path)
        if options.create_parent:
            place.parent.mkdir(parents=True, exist_ok=True)
        file: Any = place.open("wb" if options.overwrite else "xb")
        file.hsync = lambda: (file.flush(), self._run("before", "hsync"))
        return file  # type: ignore[no-any-return]  # a file with one more method

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename a file or a folder; fail if the target exists."""
        assert not overwrite
        self._run("before", "rename")
        if self._place(source).is_dir():
            if self._place(target).exists():
                raise FileExistsError(target)
            self._place(source).rename(self._place(target))
        else:
            os.link(self._place(source), self._place(target))
            self._place(source).unlink()
        self._run("after", "rename")

    def delete(self, path: str, *, recursive: bool) -> None:
        self._run("before", "delete")
        if recursive and self._place(path).is_dir():
            shutil.rmtree(self._place(path))
        else:
            self._place(path).unlink()

    def read(self, path: str) -> IO[bytes]:
        self._run("before", "read")
        return BytesIO(self._place(path).read_bytes())

    def get_file_info(self, path: str) -> SimpleNamespace:
        """Return the size of a file."""
        found = self._place(path)
        return SimpleNamespace(isdir=found.is_dir(), length=found.stat().st_size)

    def list_status(self, path: str, recursive: bool = False) -> Iterator[SimpleNamespace]:  # noqa: FBT001, FBT002 - its signature
        """Yield the files of a folder."""
        place = self._place(path)
        for each in sorted(place.rglob("*") if recursive else place.iterdir()):
            found = each.stat()
            yield SimpleNamespace(
                path=f"/{each.relative_to(self.root)}",
                isdir=each.is_dir(),
                length=found.st_size,
                modification_time=found.st_mtime_ns // 1_000_000,
            )
        self._run("after", "list_status")

    def _place(self, path: str) -> Path:
        assert "//" not in path, "HDFS refuses empty parts"
        return self.root / path.lstrip("/")

    @classmethod
    def _run(cls, moment: str, call: str) -> None:
        found = getattr(cls, moment)
        if found is not None and found[0] == call:
            setattr(cls, moment, None)
            found[1]()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HdfsStore:
    for name, value in (("root", tmp_path), ("before", None), ("after", None)):
        monkeypatch.setattr(Directory, name, value)
    monkeypatch.setitem(sys.modules, "hdfs_native", SimpleNamespace(Client=Directory, WriteOptions=SimpleNamespace))
    return HdfsStore("namenode:8020")


def content(store: HdfsStore, key: str = KEY) -> tuple[bytes, str]:
    found = store.get(key)
    return b"".join(found.stream()), found.meta["e_tag"]


def create(text: bytes = b"1") -> str:
    """Create the document as another process; return its tag."""
    return HdfsStore("namenode:8020").put(KEY, text, mode="create")["e_tag"]


def replace(times: int = 1) -> None:
    """Replace the document as another process."""
    other = HdfsStore("namenode:8020")
    for _ in range(times):
        found, tag = content(other)
        other.put(KEY, found + b"+", mode={"e_tag": tag})


def delete() -> None:
    HdfsStore("namenode:8020").delete(KEY)


def names(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


def create_again(replacements: int = 0) -> None:
    """Delete, create and replace the document as other processes."""
    delete()
    create()
    replace(replacements)


OTHERS: dict[str, Callable[[], None]] = {
    "replaced": replace,
    "replaced twice": lambda: replace(2),
    "replaced four times": lambda: replace(4),
    "deleted": delete,
    "created again": create_again,
    "created again and replaced": lambda: create_again(3),
}
"""The writes of other processes while a writer is suspended."""


@pytest.mark.parametrize("call", ["create", "hsync", "rename"])
@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_suspended_writer_does_not_change_document(others: Callable[[], None], call: str, store: HdfsStore) -> None:
    create()
    replace()
    _, tag = content(store)
    expected: list[object] = []

    def suspend() -> None:
        others()
        expected.append(content(store) if [*store.list("farm")] else None)

    Directory.before = (call, suspend)
    with pytest.raises(PreconditionError):
        store.put(KEY, b"suspended", mode={"e_tag": tag})
    assert [content(store) if [*store.list("farm")] else None] == expected
    # If the writer is killed here instead, it leaves one unused content at most, which the next writer deletes.
    if expected == [None]:
        create(b"next")
    replace()
    assert [*store.list("farm")] == [[{"path": KEY}]]
    assert len(names(Directory.root / f"{KEY}.~")) == 2


@pytest.mark.parametrize("call", ["create", "hsync", "rename"])
def test_second_creation_is_refused(call: str, store: HdfsStore) -> None:
    Directory.before = (call, create)
    with pytest.raises(PreconditionError):
        store.put(KEY, b"second", mode="create")
    assert content(store)[0] == b"1"
    assert [each for each in names(Directory.root / "farm") if each.startswith(hdfs._MARK)] == []


def test_tag_of_deleted_document_is_refused_after_its_creation(store: HdfsStore) -> None:
    old = create()
    delete()
    assert create() != old
    with pytest.raises(PreconditionError):
        store.put(KEY, b"x", mode={"e_tag": old})
    assert content(store)[0] == b"1"


@pytest.mark.parametrize("times", [1, 2, 5])
def test_write_that_others_have_followed_is_successful(times: int, store: HdfsStore) -> None:
    tag = create()
    Directory.after = ("rename", lambda: replace(times))
    store.put(KEY, b"mine", mode={"e_tag": tag})
    assert content(store)[0] == b"mine" + b"+" * times


@pytest.mark.parametrize("mode", ["create", "replace"])
def test_write_without_a_reply_is_successful(mode: str, store: HdfsStore) -> None:
    condition = "create" if mode == "create" else {"e_tag": create()}

    def lose() -> None:
        raise ConnectionError

    Directory.after = ("rename", lose)
    written = store.put(KEY, b"mine", mode=condition)
    assert content(store) == (b"mine", written["e_tag"])


def test_failed_cleanup_does_not_fail_the_write(store: HdfsStore) -> None:
    def fail() -> None:
        raise ConnectionError

    for moment, condition in (("before", "create"), ("before", "replace")):
        setattr(Directory, moment, ("delete", fail))
        store.put(KEY, b"mine", mode="create" if condition == "create" else {"e_tag": content(store)[1]})
    # The next write deletes the content that is left.
    assert len(names(Directory.root / f"{KEY}.~")) == 3
    replace()
    assert len(names(Directory.root / f"{KEY}.~")) == 2


@pytest.mark.parametrize("call", ["hsync", "rename"])
@pytest.mark.parametrize("mode", ["create", "replace"])
def test_failed_write_deletes_its_files(mode: str, call: str, store: HdfsStore) -> None:
    condition = "create" if mode == "create" else {"e_tag": create()}

    def fail() -> None:
        raise OSError("the quota is exceeded")

    Directory.before = (call, fail)
    with pytest.raises(OSError, match="quota"):
        store.put(KEY, b"mine", mode=condition)
    if mode == "replace":
        replace()
    assert len(names(Directory.root / "farm")) == (0 if mode == "create" else 3)


@pytest.mark.parametrize("call", ["hsync", "rename", "delete"])
def test_killed_writer_leaves_old_or_new_version(call: str, store: HdfsStore) -> None:
    tag = create(b"old")

    def kill() -> None:
        raise SystemExit

    with pytest.MonkeyPatch.context() as patched:
        # A killed process does not clean up.
        patched.setattr(HdfsStore, "_discard", HdfsStore._discard if call == "delete" else lambda *_: None)
        Directory.before = (call, kill)
        with pytest.raises(SystemExit):
            store.put(KEY, b"new", mode={"e_tag": tag})
    assert content(store)[0] == (b"new" if call == "delete" else b"old")
    replace()
    assert ([*store.list("farm")], len(names(Directory.root / f"{KEY}.~"))) == ([[{"path": KEY}]], 2)


@pytest.mark.parametrize("age", [-1, 1])
def test_folder_of_killed_creation_is_deleted_after_an_hour(age: int, store: HdfsStore) -> None:
    left = Directory.root / "farm" / ".~0123"
    left.mkdir(parents=True)
    (left / "0123").write_bytes(b"left")
    time = left.stat().st_mtime - hdfs.LEFT_MS / 1000 - age * 60
    os.utime(left, (time, time))
    assert [*store.list("farm")] == []
    create()
    assert left.exists() == (age < 0)
    assert [*store.list("farm")] == [[{"path": KEY}]]


@pytest.mark.parametrize("times", [1, 3])
def test_reader_of_replaced_document_reads_later_version(times: int, store: HdfsStore) -> None:
    create()
    Directory.before = ("read", lambda: replace(times))
    assert content(store)[0] == b"1" + b"+" * times
    Directory.after = ("list_status", lambda: replace(times))
    assert store.head(KEY)["size"] > times
    delete()
    for call in (store.head, store.get):
        with pytest.raises(FileNotFoundError):
            call(KEY)


def test_suspended_run_cannot_renew_lock_of_later_run(store: HdfsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_made_hdfs", lambda _: store)
    lock = BucketPath("namenode:8020", "farm/.lock", buckets.HDFS)
    suspended = Lease(lock)
    suspended.take(lambda _: None)
    suspended.renew()
    times = iter((0.0, LIFETIME_S))
    successor = Lease(lock, clock=lambda: next(times), wait=lambda _: None)
    successor.take(lambda _: None)
    successor.release()
    later = Lease(lock)
    later.take(lambda _: None)
    later.renew()
    with pytest.raises(OvertakenError):
        suspended.renew()
    later.renew()


def test_folder_is_renamed_without_reading_files(store: HdfsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_made_hdfs", lambda _: store)
    root = BucketPath("namenode:8020", "farm", buckets.HDFS)
    create()
    (Directory.root / "data").write_bytes(b"rows")
    (root / "events" / "a.parquet").upload(Directory.root / "data")
    (root / "events" / "sub" / "note").write(b"1", None)
    monkeypatch.setattr(Directory, "read", None)
    (root / "events").rename(root / ".replaced-events-1")
    assert sorted(each.key for each in root.objects()) == [
        "farm/.replaced-events-1/a.parquet",
        "farm/.replaced-events-1/sub/note",
        KEY,
    ]
    assert [each.name for each in root.iterdir()] == [".replaced-events-1", "batches-log.json"]
    assert ((root / "events").exists(), (root / ".replaced-events-1" / "a.parquet").size()) == (False, 4)


def test_document_in_root_has_path_of_one_part(store: HdfsStore) -> None:
    tag = store.put("note", b"1", mode="create")["e_tag"]
    store.put("note", b"2", mode={"e_tag": tag})
    assert (content(store, "note")[0], [*store.list("")]) == (b"2", [[{"path": "note"}]])


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("hdfs://", "host"),
        ("hdfs://:8020/x", "host"),
        ("hdfs:///x", "host"),
        ("hdfs://h h/x", "host"),
        ("hdfs://h:/x", "port"),
        ("hdfs://h:a/x", "port"),
        ("hdfs://h:0/x", "port"),
        ("hdfs://h:65536/x", "port"),
        ("hdfs://h:1:2/x", "port"),
        ("hdfs://h:8020", "directory"),
        ("hdfs://h:8020/", "directory"),
    ],
)
def test_incomplete_address_is_refused(name: str, missing: str) -> None:
    with pytest.raises(ValueError, match=rf"does not have a {missing}.*: write hdfs://HOST:PORT/PREFIX"):
        output_of(name)


@pytest.mark.parametrize("name", ["hdfs://h:8020/x", "hdfs://farms/x", "hdfs://10.0.0.1:8020/a/b"])
def test_complete_address_is_accepted(name: str) -> None:
    assert str(output_of(name)) == name
