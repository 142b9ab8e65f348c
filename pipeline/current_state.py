"""The newest known state of everything, in one file that can be queried: `<output>/current.sqlite`.

    farm          one row: how far the tables reach in the log, its log time, the leader
    routers       one row a server: its last report
    destinations  one row a destination and server: what the last report says about it
    publishers    one row a master: the last publication
    watched       one row a server: healthy, unhealthy or silent, since when (from the stateful query)

History says how things were. To learn how they are now from it, a reader would have to search all of it for the last
row of each server. SQLite is in every Python, its transactions make one batch visible at once and survive a SIGKILL,
and other programs may read while it is written (write-ahead log). 64 rows take milliseconds.

The destinations behind the pseudonyms are in a file of their own, `names.sqlite`, which only its owner can read.

An older row never replaces a newer one: each update carries its index in the log and is taken only if it is at least
that of the row that is there. So a batch that is repeated after a crash changes nothing.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.schemas import HISTORY, TRANSITIONS
from pipeline.table_files import TableDamagedError

FILE = "current.sqlite"
NAMES_FILE = "names.sqlite"
BUSY_SECONDS = 10.0
_DAMAGED = frozenset({"SQLITE_NOTADB", "SQLITE_CORRUPT"})
KEYS: dict[str, tuple[str, ...]] = {
    "farm": ("farm",),
    "routers": ("server_id",),
    "destinations": ("destination", "server_id"),
    "publishers": ("master",),
    "watched": ("server_id",),
}
_FARM = ("farm", "index", "term", "log_time", "leader_id", "period_ms", "batch_id")
COLUMNS: dict[str, tuple[str, ...]] = {
    "farm": _FARM,
    "routers": tuple(HISTORY["reports"].names),
    "destinations": tuple(HISTORY["destination_reports"].names),
    "publishers": tuple(HISTORY["publications"].names),
    "watched": ("order_ms", *TRANSITIONS.names),
}
ORDER = {"farm": "index", "routers": "index", "destinations": "index", "publishers": "index", "watched": "order_ms"}


@contextmanager
def opened(output: Path) -> Iterator[sqlite3.Connection]:
    """The state's file, for reading and writing; made if it is not there. Raises TableDamagedError, OSError."""
    path = output / FILE
    with _damage_told(path), closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        for table, columns in COLUMNS.items():
            known = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            if not known:
                keys = ", ".join(f'"{key}"' for key in KEYS[table])
                declared = ", ".join(f'"{column}"' for column in columns)
                # Two queries of a run may come here at the same moment.
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({declared}, PRIMARY KEY ({keys}))")
            for column in columns:
                if known and column not in known:
                    connection.execute(f'ALTER TABLE {table} ADD COLUMN "{column}"')
        yield connection


def last_rows(rows: DataFrame, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The row with the highest index for each key."""
    last = rows.groupBy(*keys).agg(f.max_by(f.struct(*rows.columns), "index").alias("last"))
    return [row["last"].asDict() for row in last.collect()]


def update(output: Path, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Takes rows of several tables at once; each replaces what has its key, unless that is newer."""
    with opened(output) as connection, connection:
        for table, found in rows.items():
            _upsert(connection, table, found)


def read(output: Path, table: str) -> list[dict[str, Any]]:
    """All rows of one table; nothing is changed by that, so the directory need not be one's own.

    Raises TableDamagedError, OSError.
    """
    path = output / FILE
    if not path.exists():
        return []
    place = f"{path.resolve().as_uri()}?mode=ro"
    if not os.access(output, os.W_OK) and not path.with_name(f"{FILE}-wal").exists():
        # Even a reader makes files beside it, unless it is told that no other process writes.
        place += "&immutable=1"
    with _damage_told(path), closing(sqlite3.connect(place, uri=True, timeout=BUSY_SECONDS)) as connection:
        known = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if not known:
            return []
        columns = ", ".join(f'"{column}"' if column in known else "NULL" for column in COLUMNS[table])
        rows = connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2").fetchall()  # noqa: S608 - own names
    return [dict(zip(COLUMNS[table], row, strict=True)) for row in rows]


def remember_names(output: Path, names: Mapping[str, str]) -> None:
    """Notes which address is behind which pseudonym, in a file that only its owner can read.

    Raises TableDamagedError, OSError.
    """
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
                f"{path} is damaged ({error}): stop the run and remove it, with {path.name}-wal and {path.name}-shm if"
                " they are there; what it held comes again with the next entries about it"
            ) from error
        raise OSError(f"{path} cannot be used: {error}") from error


def _upsert(connection: sqlite3.Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    columns, keys, order = COLUMNS[table], KEYS[table], ORDER[table]
    names = ", ".join(f'"{column}"' for column in columns)
    marks = ", ".join("?" for _ in columns)
    # What a batch does not say of the farm, such as the leader, stays as it was.
    new = 'coalesce(excluded."{0}", {1}."{0}")' if table == "farm" else 'excluded."{0}"'
    changes = ", ".join(f'"{column}" = {new.format(column, table)}' for column in columns if column not in keys)
    conflict = ", ".join(f'"{key}"' for key in keys)
    connection.executemany(
        f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT ({conflict}) DO UPDATE SET {changes}"  # noqa: S608
        f' WHERE excluded."{order}" >= {table}."{order}"',
        ([_stored(row.get(column)) for column in columns] for row in rows),
    )


def _stored(value: Any) -> Any:
    """Times as text in UTC, flags as numbers: what SQLite can hold."""
    match value:
        case datetime():
            aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
            return aware.isoformat(timespec="milliseconds")
        case bool():
            return int(value)
        case _:
            return value
