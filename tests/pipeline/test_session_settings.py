"""Settings of Spark: an operator's settings override the pipeline's defaults."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pipeline.cli.options import Engine
from pipeline.cli.places import Topic
from pipeline.source.kafka import connector
from pipeline.spark.session import _REPOSITORIES
from pipeline.spark.settings import JAVA_OPTIONS, fetching, operator_settings, read_defaults, settings_for

OURS = ("-Dours=1",)


def test_defaults_suit_small_machine_but_not_cluster() -> None:
    here = settings_for({}, None, OURS)
    assert (here["spark.master"], here["spark.driver.memory"]) == ("local[*]", "1g")
    assert here["spark.sql.session.timeZone"] == "UTC"
    assert here[JAVA_OPTIONS] == "-Dours=1 -XX:+UseSerialGC"
    assert "TieredStopAtLevel" not in " ".join(here.values())
    cluster = settings_for({}, "spark://host:7077", OURS)
    assert cluster["spark.sql.session.timeZone"] == "UTC"
    assert not {"spark.ui.enabled", "spark.driver.memory", "spark.sql.shuffle.partitions"} & cluster.keys()


def test_master_of_command_overrides_files() -> None:
    settings = {"spark.master": "spark://host:7077"}
    assert settings_for(settings, None, OURS)["spark.master"] == "spark://host:7077"
    assert settings_for(settings, "local[1]", OURS)["spark.master"] == "local[1]"


@pytest.mark.parametrize("name", [JAVA_OPTIONS, "spark.driver.extraJavaOptions"])
def test_operator_collector_replaces_ours_and_options_come_last(name: str) -> None:
    found = settings_for({name: "-XX:+UseG1GC -Dours=2"}, None, OURS)
    assert "SerialGC" not in " ".join(found.values())
    assert found[name].endswith("-XX:+UseG1GC -Dours=2")
    assert found[JAVA_OPTIONS].startswith("-Dours=1")


def test_defaults_file_is_parsed_like_in_spark(tmp_path: Path) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_text("# spark.a 1\nspark.b   2 3\nspark.c=4\n spark.d : 5\nelse 6\n\nspark.e\n!spark.f 7\n")
    assert read_defaults(file) == {"spark.b": "2 3", "spark.c": "4", "spark.d": "5"}
    assert read_defaults(tmp_path / "absent") == {}


def test_command_overrides_submit_options_and_file(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.a file\nspark.b file\nspark.c file\n")
    environment = {
        "SPARK_HOME": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": "--master local[3] --conf 'spark.b=sub mitted' --conf=spark.c=submitted pyspark-shell",
    }
    settings = operator_settings(environment, [("spark.c", "command")])
    assert settings == {"spark.a": "file", "spark.b": "sub mitted", "spark.c": "command", "spark.master": "local[3]"}


def test_fetching_adds_packages_and_respects_operator() -> None:
    file, package = Path("ivy.xml"), "org.example:a-b_2.13:1"
    alone = fetching({}, [package], file)
    assert alone == {"spark.jars.packages": package, "spark.jars.ivySettings": "ivy.xml"}
    theirs = {"spark.jars.packages": "org.example:c:2", "spark.jars.ivySettings": "theirs.xml"}
    assert fetching(theirs, [package], file) == {"spark.jars.packages": f"org.example:c:2,{package}"}
    assert fetching({"spark.jars": "jars/a-b_2.13-1.jar"}, [package], file) == {}
    assert fetching({}, [package], None) == {"spark.jars.packages": package}
    assert fetching({}, [], file) == {}


def test_run_reports_only_packages_that_spark_fetches() -> None:
    place = Topic(servers="a:1")
    assert Engine(None, None, ()).fetched(place) == [connector()]
    own = ("spark.jars", "/srv/spark-sql-kafka-0-10_2.13-4.2.0.jar,/srv/kafka-clients-3.9.1.jar")
    assert Engine(None, None, (own,)).fetched(place) == []


def test_ivy_queries_maven_before_local_cache() -> None:
    root = ET.fromstring(_REPOSITORIES)  # noqa: S314 - our own text
    roots = [each.get("root") for each in root.iter("ibiblio")]
    assert roots == [None, "file:${user.home}/.m2/repository"]
    assert [each.get("name") for each in root.iter("chain")] == [each.get("defaultResolver") for each in root[:1]]
