"""What Spark is told, and by whom: an operator's word counts, ours fills in what was not said.

    --conf KEY=VALUE  ▶  spark-submit's options (PYSPARK_SUBMIT_ARGS)  ▶  spark-defaults.conf  ▶  ours  ▶  Spark's own

What PySpark sets in a `SparkConf` replaces what spark-submit reads from files. So the files are read here as well, and
what they name is left alone. Spark looks for `spark-defaults.conf` in SPARK_CONF_DIR, and else in `conf` of SPARK_HOME.

Ours are of two kinds. Some hold everywhere, such as UTC. Others are for one machine that does more than run Spark:
little memory, no web page, few partitions. A cluster has its own defaults for those, so they are for local masters.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

MASTER = "local[*]"
DEFAULTS_FILE = "spark-defaults.conf"
PREFIX = "spark."
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
"""Spark puts these before `spark.driver.extraJavaOptions`, and of two alike a JVM takes the last one."""
IVY_SETTINGS = "spark.jars.ivySettings"
EVERYWHERE: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Jobs of derived tables have a pool of their own (`pipeline/gold/deriving.py`).
    "spark.scheduler.mode": "FAIR",
    # Where in Python each column was made, for Spark's messages, costs eight calls into the JVM for one.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Not INT96, Spark's old default: it has no statistics, by which files of other days are passed over.
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
    """Whether driver and tasks are one process here."""
    return master.startswith("local")


def operator_settings(environment: Mapping[str, str], conf: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """What an operator has said, by files, by spark-submit's options and by `conf`, in rising order."""
    directory = environment.get("SPARK_CONF_DIR")
    home = environment.get("SPARK_HOME")
    if directory is None and home is not None:
        directory = str(Path(home) / "conf")
    told = {} if directory is None else read_defaults(Path(directory) / DEFAULTS_FILE)
    told |= _of_arguments(shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", "")))
    return told | dict(conf)


def read_defaults(file: Path) -> dict[str, str]:
    """The settings in a file of Spark's, one a line: `key value`, `key=value` or `key: value`. None without a file."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found = (_LINE.fullmatch(line) for line in lines)
    return {each[1]: each[2] for each in found if each is not None and each[1].startswith(PREFIX)}


def settings_for(told: Mapping[str, str], master: str | None, java_options: Iterable[str]) -> dict[str, str]:
    """All settings of a session. `master` and `java_options` are this program's; those of `told` stand behind them."""
    chosen = master or told.get("spark.master") or MASTER
    ours = dict(EVERYWHERE)
    collector = []
    if is_local(chosen):
        ours |= ON_ONE_MACHINE
        theirs = (told.get(name, "") for name in (JAVA_OPTIONS, "spark.driver.extraJavaOptions"))
        # A JVM that is told two collectors does not start.
        collector = [] if any(map(_NAMES_COLLECTOR.search, theirs)) else [_SMALL_COLLECTOR]
    java = " ".join([*java_options, *collector, told.get(JAVA_OPTIONS, "")]).strip()
    return {**ours, **told, "spark.master": chosen, JAVA_OPTIONS: java}


def fetching(told: Mapping[str, str], packages: Iterable[str], repositories: Path | None) -> dict[str, str]:
    """What makes Spark fetch jars by their Maven coordinates, but for those that an operator names with `spark.jars`.

    `repositories`: where Ivy looks, unless an operator says it.
    """
    wanted = [each for each in packages if each.split(":")[1] not in told.get("spark.jars", "")]
    if not wanted:
        return {}
    names = [each for each in told.get("spark.jars.packages", "").split(",") if each]
    found = {"spark.jars.packages": ",".join([*names, *wanted])}
    if repositories is not None and IVY_SETTINGS not in told:
        found[IVY_SETTINGS] = str(repositories)
    return found


def _of_arguments(arguments: list[str]) -> dict[str, str]:
    """What options of spark-submit say: `--conf K=V`, `--conf=K=V`, and those that have names of their own."""
    own = {"--master": "spark.master", "--driver-memory": "spark.driver.memory"}
    told = {}
    words = iter(arguments)
    for word in words:
        name, joined, value = word.partition("=")
        if name not in {"--conf", "-c", *own}:
            continue
        if not joined:
            value = next(words, "")
        if name in own:
            told[own[name]] = value
        else:
            key, _, setting = value.partition("=")
            told[key] = setting
    return told
