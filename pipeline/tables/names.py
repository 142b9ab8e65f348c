"""The secrets of pseudonyms: their salt, and the addresses, in files that only their owner can read.

    <output>/pseudonym.salt   the secret                                   mode 0600
    <output>/names.sqlite     pseudonym and b32 address of a destination   mode 0600

They are separate from the tables, which others may be allowed to read. In a bucket the names are one JSON object,
`names.json`, and the policy of the bucket must protect both objects.
"""

import errno
import json
import os
import secrets
import shlex
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from pipeline.output.buckets import Output
from pipeline.output.documents import Document
from pipeline.source.log_client import FarmLogError
from pipeline.tables.files import TableDamagedError

NAMES_FILE = "names.sqlite"
NAMES_OBJECT = "names.json"
SALT_FILE = "pseudonym.salt"
SALT_BYTES = 32
SALT_BYTES_MAX = 4_096
SALT_LEAST = 16
"""The minimum length of a salt in characters. If a salt can be guessed, a list of addresses reveals the pseudonyms."""
BUSY_SECONDS = 10.0
_OTHERS = 0o077
_DAMAGED = frozenset({"SQLITE_NOTADB", "SQLITE_CORRUPT"})


def salt_of(output: Output) -> str:
    """Return the secret that makes pseudonyms; create it once per output. Raise FarmLogError when it is damaged."""
    content = _salt_in_directory(output) if isinstance(output, Path) else _salt_in_bucket(Document(output / SALT_FILE))
    salt = content.decode("utf-8", "replace").strip()
    if len(salt) < SALT_LEAST or not salt.isascii():
        raise FarmLogError(
            f"{output / SALT_FILE} is damaged: it should hold {2 * SALT_BYTES} hexadecimal digits. Restore it, since"
            " the pseudonyms in the tables are made with it; or read the log again into another output directory"
        )
    return salt


def _salt_in_bucket(document: Document) -> bytes:
    content = document.read()
    if content is None:
        content = secrets.token_hex(SALT_BYTES).encode() + b"\n"
        document.write(content)
    return content[:SALT_BYTES_MAX]


def _salt_in_directory(output: Path) -> bytes:
    path = output / SALT_FILE
    refuse_writable_by_others(output)
    if not path.exists() and not path.is_symlink():
        output.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{SALT_FILE}.new")
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(SALT_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    return _secret(path)


def remember_names(output: Output, names: Mapping[str, str]) -> None:
    """Store the address of each pseudonym. Raise TableDamagedError, OSError."""
    if not isinstance(output, Path):
        document = Document(output / NAMES_OBJECT)
        known = _names_in(document, output)
        if names.keys() - known.keys():
            document.write(json.dumps({**names, **known}, indent=0).encode())
        return
    path = output / NAMES_FILE
    with _own_only(path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        path.chmod(0o600)
    with _naming_damaged_table(path), closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS names (destination PRIMARY KEY, address)")
        connection.executemany("INSERT OR IGNORE INTO names VALUES (?, ?)", names.items())


def read_names(output: Output) -> dict[str, str]:
    """Return pseudonyms and their addresses. Raise TableDamagedError, OSError."""
    if not isinstance(output, Path):
        return _names_in(Document(output / NAMES_OBJECT), output)
    path = output / NAMES_FILE
    if not path.exists() and not path.is_symlink():
        return {}
    with _own_only(path):
        os.close(os.open(path, os.O_RDONLY | os.O_NOFOLLOW))
    with _naming_damaged_table(path), closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
        return dict(connection.execute("SELECT destination, address FROM names").fetchall())


def _names_in(document: Document, output: Output) -> dict[str, str]:
    try:
        return msgspec.json.decode(document.read() or b"{}", type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise TableDamagedError(
            f"{output / NAMES_OBJECT} is damaged ({error}): stop the run and delete it; the next entries write its"
            " content again"
        ) from error


def refuse_writable_by_others(output: Path) -> None:
    """Raise FarmLogError if every user can put files into the output directory, and so choose the salt."""
    try:
        mode = output.stat().st_mode
    except FileNotFoundError:
        return
    if mode & stat.S_IWOTH:
        raise FarmLogError(
            f"every user can write {output}, and with it the secret that makes pseudonyms: chmod o-w"
            f" {shlex.quote(str(output))}"
        )


def _secret(path: Path) -> bytes:
    """Return the content of a file that only its owner can read; its mode is corrected, a link is refused."""
    with _own_only(path), os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        if os.fstat(file.fileno()).st_mode & _OTHERS:
            os.fchmod(file.fileno(), 0o600)
        return file.read(SALT_BYTES_MAX)


@contextmanager
def _own_only(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FarmLogError(
                f"{path} is a link, which another user may have made: remove it, and copy the file itself there"
            ) from error
        raise


@contextmanager
def _naming_damaged_table(path: Path) -> Iterator[None]:
    """Convert damage of the block's file into TableDamagedError with the remedy, other errors into OSError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") in _DAMAGED:
            raise TableDamagedError(
                f"{path} is damaged ({error}): stop the run and remove it; the next entries write its content again"
            ) from error
        raise OSError(f"{path} cannot be used: {error}") from error
