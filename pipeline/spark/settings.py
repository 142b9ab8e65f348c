"""Spark's settings and their sources: an operator's values have priority over ours.

    --conf KEY=VALUE  ▶  spark-submit's options (PYSPARK_SUBMIT_ARGS)  ▶  spark-defaults.conf  ▶  ours  ▶  Spark's own

PySpark's values in a `SparkConf` replace spark-submit's values from files. So the files are read here as well, and
their settings are left unchanged. Spark looks for `spark-defaults.conf` in SPARK_CONF_DIR, and else in `conf` of
SPARK_HOME.

This module has two kinds of settings. Some apply everywhere, such as UTC. Others are for a machine with other work than
Spark: little memory, no web page, few partitions. They apply only to local masters, because a cluster has its own
defaults.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

MASTER = "local[*]"
DEFAULTS_FILE = "spark-defaults.conf"
PREFIX = "spark."
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
"""Spark puts these before `spark.driver.extraJavaOptions`, and of two equal options a JVM uses the last."""
IVY_SETTINGS = "spark.jars.ivySettings"
EVERYWHERE: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Jobs of derived tables have a separate pool (`pipeline/gold/deriving.py`).
    "spark.scheduler.mode": "FAIR",
    # For its messages, Spark would record the line of Python that makes each column, with eight calls into the JVM per
    # column.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Not INT96, Spark's old default: it lacks the statistics for skipping files of other days.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
ON_ONE_MACHINE: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_SMALL_COLLECTOR = "-XX:+UseSerialGC"
_NAMES_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
_LINE = re.compile(r"\s*([^\s=:#!][^\s=:]*)\s*[\s=:]\s*(.*?)\s*")


def is_local(master: str) -> bool:
    """Return True if driver and tasks are one process here."""
    return master.startswith("local")


def operator_settings(environment: Mapping[str, str], conf: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Return an operator's settings, from files, spark-submit's options and `conf`, in rising order of priority."""
    directory = environment.get("SPARK_CONF_DIR")
    home = environment.get("SPARK_HOME")
    if directory is None and home is not None:
        directory = str(Path(home) / "conf")
    given = {} if directory is None else read_defaults(Path(directory) / DEFAULTS_FILE)
    given |= _of_arguments(shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", "")))
    return given | dict(conf)


def read_defaults(file: Path) -> dict[str, str]:
    """Return the settings in a file of Spark's, one a line: `key value`, `key=value` or `key: value`.

    Empty without a file.
    """
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found = (_LINE.fullmatch(line) for line in lines)
    return {each[1]: each[2] for each in found if each is not None and each[1].startswith(PREFIX)}


def settings_for(given: Mapping[str, str], master: str | None, java_options: Iterable[str]) -> dict[str, str]:
    """Return all settings of a session. This program's `master` and `java_options` take precedence over `given`."""
    chosen = master or given.get("spark.master") or MASTER
    defaults = dict(EVERYWHERE)
    collector = []
    if is_local(chosen):
        defaults |= ON_ONE_MACHINE
        given_options = (given.get(name, "") for name in (JAVA_OPTIONS, "spark.driver.extraJavaOptions"))
        # A JVM with two collectors among its options does not start.
        collector = [] if any(map(_NAMES_COLLECTOR.search, given_options)) else [_SMALL_COLLECTOR]
    java = " ".join([*java_options, *collector, given.get(JAVA_OPTIONS, "")]).strip()
    return {**defaults, **given, "spark.master": chosen, JAVA_OPTIONS: java}


def fetching(given: Mapping[str, str], packages: Iterable[str], repositories: Path | None) -> dict[str, str]:
    """Return the settings for fetching jars by their Maven coordinates, except jars that `spark.jars` names.

    `repositories`: the file for Ivy, unless an operator sets one.
    """
    missing = without_jars(given, packages)
    if not missing:
        return {}
    names = [each for each in given.get("spark.jars.packages", "").split(",") if each]
    found = {"spark.jars.packages": ",".join([*names, *missing])}
    if repositories is not None and IVY_SETTINGS not in given:
        found[IVY_SETTINGS] = str(repositories)
    return found


def without_jars(given: Mapping[str, str], packages: Iterable[str]) -> list[str]:
    """Return the Maven coordinates whose jars `spark.jars` does not name."""
    return [each for each in packages if each.split(":")[1] not in given.get("spark.jars", "")]


def _of_arguments(arguments: list[str]) -> dict[str, str]:
    """Return the settings in options of spark-submit: `--conf K=V`, `--conf=K=V`, `--master` and `--driver-memory`."""
    own = {"--master": "spark.master", "--driver-memory": "spark.driver.memory"}
    given = {}
    words = iter(arguments)
    for word in words:
        name, joined, value = word.partition("=")
        if name not in {"--conf", "-c", *own}:
            continue
        if not joined:
            value = next(words, "")
        if name in own:
            given[own[name]] = value
        else:
            key, _, setting = value.partition("=")
            given[key] = setting
    return given
