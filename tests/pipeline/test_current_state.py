"""The file of the current state: what is wrong with it is told with its name and what to do."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pipeline import current_state
from pipeline.table_files import TableDamagedError
from pipeline.watching import rules_for

FARM = {"farm": [{"farm": 1, "index": 7, "period_ms": 10_000}]}


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("current.sqlite", lambda output: current_state.read(output, "farm")),
        ("current.sqlite", lambda output: current_state.update(output, FARM)),
        ("current.sqlite", rules_for),
        ("names.sqlite", current_state.read_names),
        ("names.sqlite", lambda output: current_state.remember_names(output, {"d-1": "address"})),
    ],
)
def test_a_damaged_file_is_told_with_its_name_and_what_to_do(
    name: str, use: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"no database at all " * 500)
    with pytest.raises(TableDamagedError, match=rf"{name} is damaged .* remove it, with {name}-wal"):
        use(tmp_path)


def test_a_file_that_another_process_holds_is_an_error_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_state, "BUSY_SECONDS", 0.0)
    current_state.update(tmp_path, FARM)
    with closing(sqlite3.connect(tmp_path / "current.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match=r"current\.sqlite cannot be used: database is locked"):
            current_state.update(tmp_path, FARM)
        assert rules_for(tmp_path).silent_after_ms == 30_000, "no writer delays a reader"


def test_an_older_row_replaces_no_newer_one_and_a_repeated_one_changes_nothing(tmp_path: Path) -> None:
    def publisher(index: int, server_id: int | None) -> dict[str, list[dict[str, object]]]:
        return {"publishers": [{"master": "d-1", "index": index, "server_id": server_id}]}

    for index, server_id in ((10, 1), (9, 2), (10, 1), (11, 3), (10, 1)):
        current_state.update(tmp_path, publisher(index, server_id))
    assert [(row["index"], row["server_id"]) for row in current_state.read(tmp_path, "publishers")] == [(11, 3)]
    # and what a batch does not tell of the farm stays as it was
    current_state.update(tmp_path, FARM)
    current_state.update(tmp_path, {"farm": [{"farm": 1, "index": 8, "leader_id": 2}]})
    current_state.update(tmp_path, {"farm": [{"farm": 1, "index": 7, "leader_id": 1}]})
    (farm,) = current_state.read(tmp_path, "farm")
    assert (farm["index"], farm["period_ms"], farm["leader_id"]) == (8, 10_000, 2)
