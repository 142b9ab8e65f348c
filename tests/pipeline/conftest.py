"""Copies of empty tables: delta-rs needs 5 ms of processor time to create one, and a test opens up to thirty.

Only the first commit of delta-rs is a copy. The pipeline's own code makes the directory, and syncs it.
"""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from deltalake import DeltaTable, Schema

LOG = "_delta_log"


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
