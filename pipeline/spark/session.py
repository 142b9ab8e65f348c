"""A Spark session on any machine, with settings that an operator can replace (`pipeline/spark/settings.py`).

Spark's workers would run `python3` from PATH. A setting makes them run this interpreter, which has the package.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.source.events import FarmEventsDataSource
from pipeline.source.farm import FarmDataSource
from pipeline.spark.interrupt import Interrupt, deferred
from pipeline.spark.java import find_java, use_java
from pipeline.spark.scratch import run_directory, scratch_directory
from pipeline.spark.settings import fetching, is_local, operator_settings, settings_for
from pipeline.spark.versions import VersionError, refuse_other_delta_jar, refuse_other_spark

SMALL_ROWS = 20_000
_OF_SIZE = {
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
}
"""The values for few rows, and for many rows (Spark's defaults)."""
_PYTHONS = {"PYSPARK_PYTHON": "spark.pyspark.python", "PYSPARK_DRIVER_PYTHON": "spark.pyspark.driver.python"}
LOG_FILE = "spark.log"
_REPOSITORIES = """<ivysettings>
  <settings defaultResolver="maven"/>
  <resolvers>
    <chain name="maven">
      <ibiblio name="central" m2compatible="true"/>
      <ibiblio name="cache-of-user" m2compatible="true" root="file:${user.home}/.m2/repository"/>
    </chain>
  </resolvers>
</ivysettings>
"""
"""Ivy takes a module from the first repository with its description, and its jar from there only. By default, Spark
tries Maven's cache of this user first, which often has descriptions without their jars. Here this cache is the last."""
_LOGGING = """# An operator sees the reason of a failure; Spark's own report, with pages of frames, is in a file.
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
# At the level of the root it does not print a hint about levels at every start.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.file.type = RollingFile
appender.file.name = file
property.log = ${sys:garlicfarm.log:-${sys:java.io.tmpdir}/spark.log}
appender.file.fileName = ${log}
appender.file.filePattern = ${log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %pid %p %c{1}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
"""


def open_session(
    master: str | None = None, conf: Iterable[tuple[str, str]] = (), packages: Iterable[str] = ()
) -> SparkSession:
    """Open a session with the source `farm` registered, in UTC, bound to loopback when local.

    `master`, `conf`: from the command; without a master, `spark.master` of an operator's settings, or this machine.
    `packages`: Maven coordinates of jars that PySpark does not include; a jar in `spark.jars` is not fetched.
    """
    scratch, own = scratch_directory(), run_directory()
    log = scratch / LOG_FILE
    use_java(find_java(dict(os.environ), scratch), os.environ)
    given = operator_settings(os.environ, [*_of_submission(), *conf])
    refuse_other_delta_jar(pyspark.__version__, given)
    if not has_own_settings(os.environ):
        (scratch / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
        os.environ["SPARK_CONF_DIR"] = str(scratch)
    for name, setting in _PYTHONS.items():
        os.environ.setdefault(name, given.get(setting, sys.executable))
    java_options = ("-Duser.timezone=UTC", f'"-Djava.io.tmpdir={own}"', f'"-Dgarlicfarm.log={log}"')
    given |= fetching(given, packages, _repositories(scratch))
    settings = {
        "spark.app.name": "garlicfarm",
        "spark.sql.warehouse.dir": str(own / "warehouse"),
        **settings_for(given, master, java_options),
    }
    if is_local(settings["spark.master"]):
        os.environ.setdefault("SPARK_LOCAL_IP", settings["spark.driver.bindAddress"])
    session = _started(SparkConf().setAll([*settings.items()]))
    session.sparkContext.setLogLevel("ERROR")
    _print_into(log, session)
    session.dataSource.register(FarmDataSource)
    session.dataSource.register(FarmEventsDataSource)
    return session


def _repositories(scratch: Path) -> Path | None:
    """Write the list of Ivy's repositories; return None if the environment names a mirror, as Spark allows."""
    if "DEFAULT_ARTIFACT_REPOSITORY" in os.environ:
        return None
    file = scratch / "ivysettings.xml"
    file.write_text(_REPOSITORIES, encoding="utf-8")
    return file


def has_own_settings(environment: Mapping[str, str]) -> bool:
    """Return True if an operator has set up Spark, as for a cluster: those settings are then not replaced."""
    return bool({"SPARK_CONF_DIR", "SPARK_HOME"} & environment.keys())


def _of_submission() -> list[tuple[str, str]]:
    """Return the JVM's settings if spark-submit has started it before this program."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return []
    SparkContext._ensure_initialized()  # noqa: SLF001 - without a context nothing else connects to that JVM
    return SparkConf().getAll()


def _started(settings: SparkConf) -> SparkSession:
    """Start the session; defer a Ctrl-C until it has started. The second Ctrl-C acts immediately."""
    with deferred(Interrupt()) as interrupt:
        context = SparkContext.getOrCreate(settings)
        try:
            refuse_other_spark(pyspark.__version__, context.version)
        except VersionError:
            context.stop()
            raise
        if threading.current_thread() is threading.main_thread():
            # PySpark has set its own handler, which calls the JVM. In the middle of another call this fails, and Ctrl-C
            # would print pages of frames.
            signal.signal(signal.SIGINT, interrupt.note)
        session = SparkSession.builder.config(conf=settings).getOrCreate()
    try:
        interrupt.check()
    except KeyboardInterrupt:
        session.stop()
        raise
    return session


def _print_into(log: Path, session: SparkSession) -> None:
    """Also write the error output of Spark's Python processes, such as the notice of a start, to the file."""
    java: Any = session._jvm  # noqa: SLF001 - there is no other way to it
    java = java.java
    java.lang.System.setErr(java.io.PrintStream(java.io.FileOutputStream(str(log), True), True))  # noqa: FBT003 - Java's


def fit_to_size(session: SparkSession, rows: int) -> None:
    """Tune the session for its next work, on about this number of rows.

    The compilation of operators pays off for many rows. For a few hundred rows, the output of a farm in a second, it
    would be a large part of the work.
    """
    for name, (few, many) in _OF_SIZE.items():
        session.conf.set(name, few if rows <= SMALL_ROWS else many)


def rows_of_files(session: SparkSession, schema: StructType, files: Iterable[Path]) -> DataFrame:
    """Return the rows of these Parquet files, with NULL for columns that a file lacks; none without files."""
    paths = [str(file) for file in files]
    if not paths:
        return session.createDataFrame([], schema)
    # A bracket or a star in a directory's name is not a pattern.
    return session.read.schema(schema).option("__globPaths__", "false").parquet(*paths)
