"""Copies of empty tables: delta-rs needs 5 ms of processor time to create one, and a test opens up to thirty."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest
from deltalake import DeltaTable

from pipeline.output.buckets import Output
from pipeline.output.documents import sync
from pipeline.tables import delta
from pipeline.tables.delta import TableSpec

LOG = "_delta_log"


@pytest.fixture(scope="session", autouse=True)
def _copied_empty_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Create the first table of each specification, and copy it for the next ones."""
    create, made = delta._created, dict[object, Path]()

    def created(root: Output, spec: TableSpec) -> DeltaTable:
        key = spec, delta.LOG_KEPT
        if not isinstance(root, Path) or root.exists() or key not in made:
            table = create(root, spec)
            if isinstance(root, Path) and not table.version():
                made[key] = copytree(root / LOG, tmp_path_factory.mktemp("empty") / LOG)
            return table
        copytree(made[key], root / LOG)
        sync(root, root.parent)
        return DeltaTable(root)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delta, "_created", created)
        yield
