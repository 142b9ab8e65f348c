"""Claims of an output directory: its content is recorded, and other content is rejected."""

from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from pipeline.cli.places import Nodes
from pipeline.cli.queries import query
from pipeline.output.buckets import output_of
from pipeline.run import LAYOUT, RunSettings, claim_layout, claim_range, prepare, run_forever, run_once
from pipeline.source.log_client import FarmLogError
from tests.pipeline.made_tables import write_batch

NO_SESSION = cast("SparkSession", None)
"""No session: the directory is checked before Spark starts."""


def test_range_continues_only_in_its_directory(tmp_path: Path) -> None:
    claim_range(tmp_path / "part", 1, 500)
    claim_range(tmp_path / "part", 1, 500)
    with pytest.raises(FarmLogError, match="contains entries 1 to 500; choose another"):
        claim_range(tmp_path / "part", 1, 600)


def test_run_and_range_do_not_share_directory(tmp_path: Path) -> None:
    claim_range(tmp_path / "part", 1, 500)
    settings = RunSettings(tmp_path / "part", {"node": "nowhere"})
    with pytest.raises(FarmLogError, match="backfill"):
        run_once(NO_SESSION, settings)
    with pytest.raises(FarmLogError, match="backfill"):
        run_forever(NO_SESSION, settings, lambda: None)
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    with pytest.raises(FarmLogError, match="the tables of another run"):
        claim_range(tmp_path / "run", 1, 500)


@pytest.mark.parametrize("part", ["%20", "\n", "\x7f", "\\", "\udcff"])
def test_directory_that_delta_rs_misreads_is_refused(part: str, tmp_path: Path) -> None:
    (tmp_path / f"a{part}b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / f"a{part}b")
    for place in (tmp_path / f"a{part}b", tmp_path / "link" / "tables"):
        refused = CliRunner().invoke(query, ["farms", "--output", str(place)])
        assert refused.exit_code == 2
        assert f"because of {part!r} in its path." in refused.stderr


def test_directory_with_unusual_name_is_accepted(tmp_path: Path) -> None:
    write_batch(output_of(str(tmp_path / "100% [é] #? a'b*")), "clocks", 0, [])


def test_directory_below_loop_of_links_does_not_have_tables(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused = CliRunner().invoke(query, ["farms", "--output", str(tmp_path / "loop" / "tables")])
    assert (refused.exit_code, "does not contain tables" in refused.stderr) == (1, True)


def test_socket_that_links_to_itself_is_reported(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(FarmLogError, match="Too many levels of symbolic links"):
        Nodes(nodes=(str(tmp_path / "loop"),)).refuse_outside(1, 1)


@pytest.mark.parametrize(("table", "checkpoint"), [("reports", "checkpoint"), ("events", "checkpoint-events")])
def test_table_without_checkpoint_is_refused(table: str, checkpoint: str, tmp_path: Path) -> None:
    claim_layout(tmp_path)
    for name in ("checkpoint", "checkpoint-events"):
        (tmp_path / name).mkdir()
    prepare(tmp_path)
    write_batch(tmp_path, table, 0, [{"log_time": datetime(2026, 1, 1, tzinfo=UTC)}])
    prepare(tmp_path)
    (tmp_path / checkpoint).rmdir()
    with pytest.raises(FarmLogError, match=f"tables .{table}. without their {checkpoint}:"):
        prepare(tmp_path)
    (tmp_path / table).rename(tmp_path / "away")
    prepare(tmp_path)


@pytest.mark.parametrize("damage", ["", "[1]", "{", '{"layouts": 2}', "\ud800"])
def test_damaged_layout_file_error_shows_expected_content(damage: str, tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_bytes(damage.encode("utf-8", "surrogatepass"))
    with pytest.raises(FarmLogError, match=rf'should be {{"layout": {LAYOUT}}}'):
        claim_layout(tmp_path)


def test_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    claim_layout(tmp_path)
    claim_layout(tmp_path)
    old = tmp_path / "old"
    (old / "checkpoint").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(FarmLogError, match=r"layout 1 and this version writes .* new output directory"):
            claim_layout(old)
