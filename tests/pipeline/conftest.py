"""Cheaper tables: delta-rs needs 5 ms of processor time to create or to open one, and a test opens up to 500.

So a new table gets a copy of an earlier table's first commit. The pipeline's own code still makes the directory, and
syncs it. In modules that use `shared_tables`, objects that only read share a table until its log changes.

DuckDB has one thread. With a second thread on two processors, queries that read few rows take about a tenth longer.
"""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from deltalake import DeltaTable, Schema

from pipeline.gold.sources import NO_EXTENSIONS
from pipeline.output.buckets import Output
from pipeline.tables import delta
from tests.effort import IS_SOAK

LOG = "_delta_log"
READING = {"get_add_actions", "metadata", "schema", "transaction_version", "version"}
SHARED_MAX = 200
State = frozenset[tuple[str, int, int, int]]


class SharedTable:
    """A `DeltaTable` that reads a shared one, and opens its version again before an operation outside `READING`."""

    def __init__(self, root: Path, shared: DeltaTable) -> None:
        self._root, self._table, self._is_shared = root, shared, True

    def __getattr__(self, name: str) -> Any:
        if self._is_shared and name not in READING:
            self._table, self._is_shared = DeltaTable(self._root, version=self._table.version()), False
        return getattr(self._table, name)


def state_of(log: Path) -> State:
    files = ((each.name, each.stat()) for each in log.iterdir())
    return frozenset((name, found.st_ino, found.st_size, found.st_mtime_ns) for name, found in files)


@pytest.fixture(scope="module")
def shared_tables() -> Iterator[None]:
    """Open each state of a table once; `make soak` runs the real function."""
    open_table, known = delta._opened, dict[Path, tuple[State, DeltaTable]]()

    def opened(root: Output) -> Any:
        if not isinstance(root, Path) or not (root / LOG).is_dir():
            return open_table(root)
        state = state_of(root / LOG)
        if root not in known or known[root][0] != state:
            if (found := open_table(root)) is None or state_of(root / LOG) != state:
                return found
            if len(known) >= SHARED_MAX:
                known.clear()
            known[root] = (state, found)
        return SharedTable(root, known[root][1])

    with pytest.MonkeyPatch.context() as patched:
        if not IS_SOAK:
            patched.setattr(delta, "_opened", opened)
        yield


@pytest.fixture(scope="session", autouse=True)
def _copied_empty_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Create the first table of each schema and configuration, and copy its log for the next ones."""
    create, made = DeltaTable.create, dict[object, Path]()

    def created(root: str, schema: Schema, **options: Any) -> DeltaTable:
        key, log = (schema.to_json(), repr(options)), Path(root, LOG)
        if "://" in root or log.exists():
            return create(root, schema, **options)
        if key in made:
            copytree(made[key], log)
            return DeltaTable(root)
        table = create(root, schema, **options)
        made[key] = copytree(log, tmp_path_factory.mktemp("empty") / LOG)
        return table

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DeltaTable, "create", created)
        yield


@pytest.fixture(scope="session", autouse=True)
def _duckdb_with_one_thread() -> Iterator[None]:
    """Open databases with one thread, but with all threads in `make soak`."""
    with pytest.MonkeyPatch.context() as patched:
        if not IS_SOAK:
            patched.setitem(NO_EXTENSIONS, "threads", 1)
        yield
