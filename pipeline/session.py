"""A Spark session on a machine about which nothing is assumed: sets what small machines need.

Workers would take `python3` from PATH; they are told to run this very interpreter, which has the package installed.
"""

import os
import signal
import sys
import threading

from pyspark.sql import SparkSession

from pipeline.events_source import FarmEventsDataSource
from pipeline.java import find_java
from pipeline.scratch import run_directory, scratch_directory
from pipeline.source import FarmDataSource

SMALL_ROWS = 20_000
_OF_SIZE = {
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
}
"""What is set for few rows, and, as Spark has it by itself, for many."""
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC"
_LOGGING = """# Spark's own word on every start is nothing that an operator can do something about.
rootLogger.level = error
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def open_session(master: str = "local[*]", *, shuffle_partitions: int = 2) -> SparkSession:
    """A session with the source `farm` registered, in UTC, bound to loopback when local.

    Raises NoJavaError, ScratchError. The caller stops the session.
    """
    scratch, own = scratch_directory(), run_directory()
    java = find_java(dict(os.environ), scratch)
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    if "SPARK_CONF_DIR" not in os.environ:
        (scratch / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
        os.environ["SPARK_CONF_DIR"] = str(scratch)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.appName("garlicfarm")
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(shuffle_partitions))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", f'{_JAVA_OPTIONS} "-Djava.io.tmpdir={own}"')
        # Jobs of derived tables have a pool of their own (`pipeline/deriving.py`).
        .config("spark.scheduler.mode", "FAIR")
        # Where in Python each column was made, for Spark's messages, costs eight calls into the JVM for one.
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        # Not INT96, Spark's old default: it has no statistics, by which files of other days are passed over.
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.sql.warehouse.dir", str(own / "warehouse"))
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
    )
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    session = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        # PySpark's own handler calls the JVM, which it cannot in the middle of another call: pages of frames at Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(FarmDataSource)
    session.dataSource.register(FarmEventsDataSource)
    return session


def fit_to_size(session: SparkSession, rows: int) -> None:
    """What the session does next is about so many rows.

    To compile operators pays for many of them; for a few hundred, such as a farm writes in a second, it is a good part
    of all the work.
    """
    for name, (few, many) in _OF_SIZE.items():
        session.conf.set(name, few if rows <= SMALL_ROWS else many)
