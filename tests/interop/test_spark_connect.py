"""A client of Spark Connect reads the log by the sources, which run in the server's Python (`make interop-connect`)."""

import signal
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.farm_log_server import serve_log, three_servers
from tests.spark import JVM_SOCKETS, QUICK_JVM

pytestmark = [pytest.mark.interop, *JVM_SOCKETS]


def test_client_of_spark_connect_reads_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc", reason="make interop-connect installs pyspark[connect]")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    # The server's Python looks for the sources. It does not find an editable install elsewhere.
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf 'spark.driver.extraJavaOptions={QUICK_JVM}' pyspark-shell")
    log = three_servers(minutes=1)
    handler = signal.getsignal(signal.SIGINT)
    session = SparkSession.builder.remote("local[1]").getOrCreate()
    try:
        assert type(session).__module__ == "pyspark.sql.connect.session"
        with serve_log(log, tmp_path / "control.sock") as address:
            rows = session.read.format("farm").option("node", address).load().select("index", "entry").collect()
            stream = session.readStream.format("farm").option("node", address).load()
            writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
            stored = session.read.parquet(str(tmp_path / "rows")).count()
    finally:
        session.stop()
        # The start of Spark has set its own handler.
        signal.signal(signal.SIGINT, handler)
    assert sorted(row["index"] for row in rows) == [*range(1, log.commit_index + 1)]
    assert stored == log.commit_index
