"""Spark's own word on a failure, with pages of frames, goes to a file; an operator is told the reason."""

from pyspark.sql import SparkSession

from pipeline.spark.scratch import scratch_directory
from pipeline.spark.session import LOG_FILE
from tests.spark import JVM_SOCKETS

pytestmark = JVM_SOCKETS


def test_what_spark_says_of_a_failure_is_in_a_file_and_not_on_the_screen(session: SparkSession) -> None:
    assert session._jvm is not None
    logs = session._jvm.org.apache.logging.log4j.LogManager
    assert [*logs.getContext(False).getConfiguration().getAppenders().keySet()] == ["file"]  # noqa: FBT003 - Java's
    said = f"an error of the session {session.sparkContext.applicationId}"
    logs.getLogger("garlicfarm").error(said)
    session._jvm.java.lang.System.err.println(f"printed: {said}")
    written = (scratch_directory() / LOG_FILE).read_text(encoding="utf-8")
    assert f"ERROR garlicfarm: {said}" in written
    assert f"printed: {said}" in written
