"""A Spark session on any machine, with the settings that small machines need.

Workers would take `python3` from PATH; a setting makes them run this interpreter, which has the package installed.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.interrupt import deferred
from pipeline.java import find_java, use_java
from pipeline.scratch import run_directory, scratch_directory
from pipeline.source.events import FarmEventsDataSource
from pipeline.source.farm import FarmDataSource

SMALL_ROWS = 20_000
_OF_SIZE = {
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
}
"""What is set for few rows, and, as Spark has it by itself, for many."""
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC -Duser.timezone=UTC"
"""With one compiler the JVM reserves 48 MB for what it compiles. Spark makes new classes for each query of many rows:
after some minutes that is full, and from then on everything is interpreted."""
_SETTINGS = (
    ("spark.ui.enabled", "false"),
    ("spark.ui.showConsoleProgress", "false"),
    ("spark.sql.session.timeZone", "UTC"),
    ("spark.driver.memory", "1g"),
    # Jobs of derived tables have a pool of their own (`pipeline/deriving.py`).
    ("spark.scheduler.mode", "FAIR"),
    # Where in Python each column was made, for Spark's messages, costs eight calls into the JVM for one.
    ("spark.python.sql.dataFrameDebugging.enabled", "false"),
    # Not INT96, Spark's old default: it has no statistics, by which files of other days are passed over.
    ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"),
    (
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    ),
)
LOG_FILE = "spark.log"
_LOGGING = """# An operator sees the reason of a failure; Spark's own report, with pages of frames, is in a file.
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
# At the level of the root it does not tell on every start how to change that.
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


def open_session(master: str = "local[*]", *, shuffle_partitions: int = 2) -> SparkSession:
    """A session with the source `farm` registered, in UTC, bound to loopback when local.

    Raises NoJavaError, ScratchError. The caller stops the session.
    """
    scratch, own = scratch_directory(), run_directory()
    log = scratch / LOG_FILE
    use_java(find_java(dict(os.environ), scratch), os.environ)
    if not has_own_settings(os.environ):
        (scratch / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
        os.environ["SPARK_CONF_DIR"] = str(scratch)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = SparkConf().setAppName("garlicfarm").setMaster(master)
    settings.setAll([*_SETTINGS, ("spark.sql.shuffle.partitions", str(shuffle_partitions))])
    settings.set("spark.driver.extraJavaOptions", f'{_JAVA_OPTIONS} "-Djava.io.tmpdir={own}" "-Dgarlicfarm.log={log}"')
    settings.set("spark.sql.warehouse.dir", str(own / "warehouse"))
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        settings.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    session = _started(settings)
    session.sparkContext.setLogLevel("ERROR")
    _print_into(log, session)
    session.dataSource.register(FarmDataSource)
    session.dataSource.register(FarmEventsDataSource)
    return session


def has_own_settings(environment: Mapping[str, str]) -> bool:
    """Whether an operator has set up Spark, as for a cluster: then nothing replaces those settings."""
    return bool({"SPARK_CONF_DIR", "SPARK_HOME"} & environment.keys())


def _started(settings: SparkConf) -> SparkSession:
    """The session; Ctrl-C meanwhile ends it as soon as it is there, and at the second time at once."""
    with deferred() as interrupt:
        SparkContext.getOrCreate(settings)
        if threading.current_thread() is threading.main_thread():
            # PySpark has put a handler of its own, which calls the JVM. It cannot in the middle of another call: pages
            # of frames at Ctrl-C.
            signal.signal(signal.SIGINT, interrupt.note)
        session = SparkSession.builder.config(conf=settings).getOrCreate()
    try:
        interrupt.check()
    except KeyboardInterrupt:
        session.stop()
        raise
    return session


def _print_into(log: Path, session: SparkSession) -> None:
    """What Spark's Python processes print, such as that one has begun, goes to the file as well."""
    java: Any = session._jvm  # noqa: SLF001 - there is no other way to it
    java = java.java
    java.lang.System.setErr(java.io.PrintStream(java.io.FileOutputStream(str(log), True), True))  # noqa: FBT003 - Java's


def fit_to_size(session: SparkSession, rows: int) -> None:
    """What the session does next is about so many rows.

    To compile operators pays for many of them; for a few hundred, such as a farm writes in a second, it is a good part
    of all the work.
    """
    for name, (few, many) in _OF_SIZE.items():
        session.conf.set(name, few if rows <= SMALL_ROWS else many)


def rows_of_files(session: SparkSession, schema: StructType, files: Iterable[Path]) -> DataFrame:
    """The rows of these Parquet files; what a file lacks of the schema is NULL. Of no files there are none."""
    paths = [str(file) for file in files]
    if not paths:
        return session.createDataFrame([], schema)
    # A bracket or a star in a directory's name is no pattern.
    return session.read.schema(schema).option("__globPaths__", "false").parquet(*paths)
