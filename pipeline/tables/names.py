"""What stands behind pseudonyms: the salt that makes them, and the addresses, in files that only their owner can read.

    <output>/pseudonym.salt   the secret                                   mode 0600
    <output>/names.sqlite     pseudonym and b32 address of a destination   mode 0600

They are apart from the tables, which others may be let read.
"""

import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from pipeline.source.log_client import FarmLogError
from pipeline.tables.files import TableDamagedError

NAMES_FILE = "names.sqlite"
SALT_FILE = "pseudonym.salt"
SALT_BYTES = 32
SALT_LEAST = 16
"""The fewest characters of a salt that an operator chose: without one a list of addresses reveals the pseudonyms."""
BUSY_SECONDS = 10.0
_DAMAGED = frozenset({"SQLITE_NOTADB", "SQLITE_CORRUPT"})


def salt_of(output: Path) -> str:
    """The secret that makes pseudonyms; made once for an output directory. Raises FarmLogError when it is damaged."""
    path = output / SALT_FILE
    if not path.exists():
        output.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{SALT_FILE}.new")
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(SALT_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    salt = path.read_text(encoding="utf-8", errors="replace").strip()
    if len(salt) < SALT_LEAST or not salt.isascii():
        raise FarmLogError(
            f"{path} is damaged: it should hold {2 * SALT_BYTES} hexadecimal digits. Restore it, since the pseudonyms"
            " in the tables are made with it; or read the log again into another output directory"
        )
    return salt


def remember_names(output: Path, names: Mapping[str, str]) -> None:
    """Notes which address is behind which pseudonym. Raises TableDamagedError, OSError."""
    path = output / NAMES_FILE
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    with _damage_told(path), closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS names (destination PRIMARY KEY, address)")
        connection.executemany("INSERT OR IGNORE INTO names VALUES (?, ?)", names.items())


def read_names(output: Path) -> dict[str, str]:
    """Pseudonyms and the addresses behind them. Raises TableDamagedError, OSError."""
    path = output / NAMES_FILE
    if not path.exists():
        return {}
    with _damage_told(path), closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
        return dict(connection.execute("SELECT destination, address FROM names").fetchall())


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """While the block has this file open: damage is a TableDamagedError with what to do, all else an OSError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") in _DAMAGED:
            raise TableDamagedError(
                f"{path} is damaged ({error}): stop the run and remove it; what it held comes again with the next"
                " entries about it"
            ) from error
        raise OSError(f"{path} cannot be used: {error}") from error
