"""A Spark session has the settings of the command and, in a separate process, the settings in an operator's files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark import JVM_SOCKETS, QUICK_JVM

pytestmark = JVM_SOCKETS

PROGRAM = """
import json, sys
from pipeline.spark.session import open_session
session = open_session(None, [("spark.app.name", "set by the command")])
names = sys.argv[1:]
java = session._jvm.java.lang.System
print("FOUND " + json.dumps([session.conf.get(name) for name in names] + [java.getProperty("operator")]))
session.stop()
"""


def test_jvm_has_settings_of_command(session: SparkSession) -> None:
    assert session._jvm is not None
    java = session._jvm.java.lang
    assert {*QUICK_JVM.split()} <= {*java.management.ManagementFactory.getRuntimeMXBean().getInputArguments()}
    assert java.System.getProperty("user.timezone") == "UTC"
    # A cell of the notebook sets `spark.master` in the shared session; it does not change the context.
    assert session.sparkContext.master == "local[2]"
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.soak
def test_session_has_settings_of_files_and_command(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 7\nspark.driver.memory 700m\nspark.master local[1]\n"
        "spark.app.name file\nspark.driver.extraJavaOptions -XX:+UseParallelGC -Doperator=set\n"
    )
    names = ("spark.master", "spark.sql.shuffle.partitions", "spark.driver.memory", "spark.app.name")
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names, "spark.sql.session.timeZone"],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path), "JAVA_TOOL_OPTIONS": QUICK_JVM},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("FOUND ")] or [answer.stderr]
    found = json.loads(line.removeprefix("FOUND "))
    assert found == ["local[1]", "7", "700m", "set by the command", "UTC", "set"]
