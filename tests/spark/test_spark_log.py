"""Spark's error output, with pages of frames, goes to a file; the operator sees only the reason."""

from pyspark.sql import SparkSession

from pipeline.spark.scratch import scratch_directory
from pipeline.spark.session import LOG_FILE
from tests.spark import JVM_SOCKETS

pytestmark = JVM_SOCKETS


def test_spark_errors_are_written_to_file(session: SparkSession) -> None:
    assert session._jvm is not None
    logs = session._jvm.org.apache.logging.log4j.LogManager
    assert [*logs.getContext(False).getConfiguration().getAppenders().keySet()] == ["file"]  # noqa: FBT003 - Java's
    text = f"an error of the session {session.sparkContext.applicationId}"
    logs.getLogger("garlicfarm").error(text)
    session._jvm.java.lang.System.err.println(f"printed: {text}")
    written = (scratch_directory() / LOG_FILE).read_text(encoding="utf-8")
    assert f"ERROR garlicfarm: {text}" in written
    assert f"printed: {text}" in written
