"""Paths of objects in a bucket: the part of `pathlib.Path` that the pipeline uses, with conditional writes.

    s3://BUCKET/PREFIX ──▶ `output_of` ──▶ BucketPath / "reports" / "_delta_log" ──▶ one request for each operation

HDFS has the same operations (`pipeline/output/hdfs.py`): `hdfs://HOST:PORT/PREFIX`, with the name node as the bucket.

The code of the tables uses an `Output`, which is a `Path` or a `BucketPath`. obstore is imported only for a bucket. A
bucket has neither locks nor renames. It has *conditional writes* instead. `If-None-Match` creates an object only if it
does not exist. `If-Match` replaces an object only if its present entity tag is the given one. delta-rs makes its
commits with the first kind. `refuse_unconditional` refuses a store that ignores a condition.

Address, region and credentials come from the environment (`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, …) or
from the machine's role. They are not options of a command, because other users can read command lines.
"""

import os
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self, TypeAlias
from urllib.parse import urlsplit

from pipeline.output.hdfs import HdfsStore

SCHEME: Final = "s3://"
HDFS: Final = "hdfs://"
CONNECT_SECONDS: Final = 5.0
_MAXIMUM_PORT: Final = 65_535
RIGHTS: Final = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
ENDPOINT, _PROFILE, _KEY = "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"
_IS_PRESENT = frozenset({"AlreadyExistsError", "PreconditionError"})
_TREE = re.compile(r"\x1b\[\d*m|\u21b3")
"""The colors and arrows in an error of delta-rs."""
_NOT_OF_DELTA = re.compile(r"[\x00-\x1f\x7f\\\udc80-\udcff]|%[0-9A-Fa-f]{2}")
"""Parts of a path that delta-rs refuses, or reads as another character."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_REFUSED = frozenset({"PermissionDeniedError", "UnauthenticatedError"})


class BucketError(OSError):
    """The store refused a request, or did not reply; the text has the bucket and the remedy."""


class OvertakenError(BucketError):
    """Another process has changed an object since this process read or wrote it."""


class MissingObjectError(FileNotFoundError):
    """An object was deleted, such as a data file that a table does not need any more."""


@dataclass(frozen=True, slots=True)
class BucketPath:
    """The path of an object, or of a folder, which is the common prefix of its objects."""

    bucket: str
    key: str
    scheme: str = SCHEME

    def __str__(self) -> str:
        return f"{self.store}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> "BucketPath":
        return self._at("/".join(part for part in (self.key, name) if part))

    @property
    def store(self) -> str:
        """The bucket, or the HDFS, as its URL."""
        return f"{self.scheme}{self.bucket}"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "BucketPath":
        """The path without its last part."""
        return self._at(self.key.rpartition("/")[0])

    def resolve(self) -> Self:
        """Return the path itself: objects do not have links."""
        return self

    def mkdir(self, mode: int = 0o777, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder exists with its first object."""

    def is_file(self) -> bool:
        """Return True if there is an object with this key."""
        return self.size() is not None

    def is_dir(self) -> bool:
        """Return True if there is an object below this path."""
        with self._named():
            return any(True for _ in _client(self).list(self.key, chunk_size=1))

    def exists(self) -> bool:
        """Return True for an object or a folder."""
        return self.is_file() or self.is_dir()

    def size(self) -> int | None:
        """Return the length of the object in bytes; None without one."""
        with self._named():
            try:
                return int(_client(self).head(self.key)["size"])
            except FileNotFoundError as error:
                self._refuse_no_bucket(error)
                return None

    def iterdir(self) -> Iterator["BucketPath"]:
        """Yield the objects and folders directly below this path."""
        with self._named():
            found = _client(self).list_with_delimiter(self.key)
        for key in (*found["common_prefixes"], *(each["path"] for each in found["objects"])):
            yield self._at(str(key))

    def objects(self) -> Iterator["BucketPath"]:
        """Yield all objects below this path."""
        with self._named():
            for page in _client(self).list(self.key):
                yield from (self._at(str(each["path"])) for each in page)

    def read(self) -> tuple[bytes, str] | None:
        """Return the content of the object, and its entity tag; None without one."""
        with self._named():
            try:
                found = _client(self).get(self.key)
            except FileNotFoundError as error:
                self._refuse_no_bucket(error)
                return None
            return b"".join(found.stream()), str(found.meta["e_tag"])

    def write(self, content: bytes | Path, tag: str | None) -> str:
        """Replace the object with this entity tag, or create it (None); return the new tag. Raise OvertakenError."""
        return self._put(content, mode="create" if tag is None else {"e_tag": tag})

    def upload(self, file: Path) -> None:
        """Write an object with a new name from a file."""
        self._put(file)

    def download(self, file: Path) -> None:
        """Write the object into a new file. Raise FileNotFoundError if it is missing."""
        # Errors of the local disk, such as a full one, are not errors of the store.
        with file.open("xb") as opened:
            for part in self._parts():
                opened.write(part)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete the object. S3 does not report whether it existed."""
        del missing_ok
        with self._named():
            _client(self).delete(self.key)

    def rename(self, target: "BucketPath") -> "BucketPath":
        """Move all objects below this path to another one; HDFS renames the folder.

        In a bucket the objects are copied and then deleted, so a killed call can be repeated.
        """
        client = _client(self)
        if isinstance(client, HdfsStore):
            with self._named():
                client.rename_folder(self.key, target.key)
            return target
        keys = [each.key for each in self.objects()]
        with self._named():
            for key in keys:
                client.copy(key, f"{target.key}{key.removeprefix(self.key)}")
            client.delete(keys)
        return target

    def _at(self, key: str) -> "BucketPath":
        return BucketPath(self.bucket, key, self.scheme)

    def _put(self, content: bytes | Path, **options: Any) -> str:
        with self._named():
            try:
                return str(_client(self).put(self.key, content, **options)["e_tag"])
            except Exception as error:
                if type(error).__name__ not in _IS_PRESENT:
                    raise
                # The client repeats a request without a reply, whose first try may have been successful.
                if isinstance(content, bytes) and (found := self.read()) is not None and found[0] == content:
                    return found[1]
                raise OvertakenError(
                    f"{self} was written by another process in the meantime, and only one pipeline may write there:"
                    " stop the other one, then start this one again"
                ) from error

    def _parts(self) -> Iterator[bytes]:
        with self._named():
            try:
                found = _client(self).get(self.key)
            except FileNotFoundError as error:
                self._refuse_no_bucket(error)
                raise MissingObjectError(f"{self} is missing") from error
            yield from found.stream()

    def _refuse_no_bucket(self, error: Exception) -> None:
        if "NoSuchBucket" in str(error):
            raise error

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Convert errors of the store into BucketError with the bucket and the remedy."""
        try:
            yield
        except (BucketError, MissingObjectError):
            raise
        except Exception as error:
            raise bucket_error(self, error) from error


Output: TypeAlias = Path | BucketPath
"""The place of the tables of a run."""


def output_of(text: str) -> Output:
    """Return the place with this name. Raise ValueError for an incomplete URL, and for a path that delta-rs refuses."""
    scheme = next((each for each in (SCHEME, HDFS) if text.startswith(each)), None)
    if scheme is None:
        if found := _NOT_OF_DELTA.search(os.path.realpath(text)):
            raise ValueError(f"delta-rs cannot use the directory {text!r}, because of {found[0]!r} in its path")
        return Path(text)
    form = "s3://BUCKET/PREFIX" if scheme == SCHEME else "hdfs://HOST:PORT/PREFIX"
    bucket, _, prefix = text.removeprefix(scheme).partition("/")
    parts = [each for each in prefix.split("/") if each]
    host, colon, port = bucket.partition(":") if scheme == HDFS else (bucket, "", "")
    if not host or not all(each.isalnum() or each in "-._" for each in host):
        raise ValueError(f"{text!r} does not have a {'host' if scheme == HDFS else 'bucket'}: write {form}")
    if colon and not (port.isascii() and port.isdecimal() and 0 < int(port) <= _MAXIMUM_PORT):
        raise ValueError(f"{text!r} does not have a port after the colon: write {form}")
    if scheme == HDFS and not parts:
        raise ValueError(f"{text!r} does not have a directory: write {form}")
    if any(each in {".", ".."} for each in parts):
        raise ValueError(f"{text!r} has a part that is . or ..: write {form}")
    return BucketPath(bucket, "/".join(parts), scheme)


def delta_options(root: Output) -> dict[str, str] | None:
    """Return the options of delta-rs for a table; None in a directory or HDFS."""
    if isinstance(root, Path) or root.scheme == HDFS:
        return None
    is_plain = os.environ.get(ENDPOINT, "").startswith("http://")
    return {"aws_conditional_put": "etag", **({"allow_http": "true"} if is_plain else {})}


def refuse_unconditional(output: BucketPath) -> None:
    """Raise BucketError if the store ignores the condition of a write, or refuses a needed request."""
    probe = output / f".probe-{uuid.uuid4()}"
    try:
        tag = probe.write(b"1", None)
        for condition, known in (("If-None-Match", None), ("If-Match", '"another"')):
            try:
                probe.write(b"2", known)
            except OvertakenError:
                continue
            raise BucketError(
                f"{output.store}: the store ignores {condition}, so two writers would damage the tables: use"
                " a store with conditional writes"
            )
        probe.write(b"3", tag)
        if not any(each == probe for each in output.iterdir()):
            raise BucketError(f"{output.store}: the list of objects lacks a new object: use another store")
    finally:
        with suppress(BucketError):
            probe.unlink()


def _refuse_unreachable(store: str, endpoint: str, shown: str) -> None:
    """Raise BucketError if an endpoint does not accept connections; the clients would retry for minutes."""
    try:
        url = urlsplit(endpoint)
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        with socket.create_connection((str(url.hostname), port), CONNECT_SECONDS):
            return
    except (OSError, ValueError, KeyError) as error:
        raise BucketError(
            f"{store}: {shown} does not reply ({error}): start the store, or correct its address"
        ) from error


def bucket_error(path: BucketPath, error: Exception) -> BucketError:
    """Return an error of obstore or delta-rs in one line, with the bucket and the remedy."""
    return BucketError(f"{path.store}: {_hdfs_remedy(error) if path.scheme == HDFS else _remedy(error)}")


def _hdfs_remedy(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "the package hdfs-native is missing: pip install 'garlicfarm[pipeline,hdfs]'"
    # Without the frames of the name node.
    reason = " ".join(_TREE.sub("", str(error).partition("\n\tat ")[0]).split())
    if isinstance(error, FileNotFoundError):
        return f"a file was deleted ({reason}): run `garlicfarm pipeline repair --output OUTPUT`"
    if isinstance(error, PermissionError):
        return f"access was refused ({reason}): give the user HADOOP_USER_NAME the right to write there"
    return f"HDFS cannot be used ({reason}): check the address, and HADOOP_CONF_DIR for a name service"


def _remedy(error: Exception) -> str:
    text = _TREE.sub("", str(error).partition("\n\nDebug source")[0])
    code = _CODE.search(text)
    reason = code[1] if code else " ".join(text.rpartition("Server returned ")[2].split())
    if "NoSuchBucket" in text:
        return "this bucket does not exist: create it, or choose another --output"
    if type(error).__name__ in _REFUSED or "403 Forbidden" in text:
        return f"access was refused ({reason}): set {_KEY} and AWS_SECRET_ACCESS_KEY to a key with the rights {RIGHTS}"
    if isinstance(error, FileNotFoundError):
        return f"an object was deleted ({reason}): run `garlicfarm pipeline repair --output OUTPUT`"
    if isinstance(error, ImportError):
        return "the package obstore is missing: pip install 'garlicfarm[pipeline]'"
    endpoint = os.environ.get(ENDPOINT)
    where = f"{ENDPOINT} is {endpoint}" if endpoint else f"{ENDPOINT} is not set, so the store is AWS S3"
    return f"the store cannot be used ({reason}): {where}; check it, and AWS_REGION and {_KEY}"


def _client(path: BucketPath) -> Any:
    if path.scheme == HDFS:
        return _made_hdfs(path.bucket)
    if _PROFILE in os.environ and _KEY not in os.environ:
        raise BucketError(
            f"{path.store}: {_PROFILE} is not supported: set {_KEY} and AWS_SECRET_ACCESS_KEY, as `aws configure"
            " export-credentials --format env` prints them"
        )
    return _made_client(path.bucket, os.environ.get(ENDPOINT), os.environ.get(_KEY))


@cache
def _made_hdfs(authority: str) -> HdfsStore:
    # A name without a port is a name service of the configuration.
    if ":" in authority:
        _refuse_unreachable(f"{HDFS}{authority}", f"{HDFS}{authority}", "the name node")
    return HdfsStore(authority)


@cache
def _made_client(bucket: str, endpoint: str | None, _key: str | None) -> Any:
    """Return a client of the bucket, one for each endpoint and key."""
    from obstore.store import S3Store  # noqa: PLC0415 - only for a bucket

    if endpoint:
        _refuse_unreachable(f"{SCHEME}{bucket}", endpoint, f"{ENDPOINT}={endpoint}")
    is_plain = endpoint is not None and endpoint.startswith("http://")
    return S3Store(bucket, config={"conditional_put": "etag"}, client_options={"allow_http": is_plain})
