"""The pipeline's two ways to read the log, as a process: `python -m tests.interop.kafka.pipeline_reader JOB`.

    {"address": …, "node": …, "jars": […]}     the topic by Spark's connector, and the node by the source `farm`

Prints `{"kafka": [row, …], "farm": [row, …], "seconds": {"kafka": …, "farm": …}}` as JSON. Rows are in the
order of their index, and all columns are text. The seconds are the duration of the second run of each way.
"""

import json
import sys
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipeline.source.kafka import SERVERS, kafka_stream, refuse_other_farm
from pipeline.spark.session import open_session

Way = Callable[[], DataFrame]


def read(stream: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend(json.loads(str(row)) for row in batch.toJSON().collect())

    with TemporaryDirectory() as checkpoint:
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    return sorted(found, key=lambda row: int(row["index"]))


def both(session: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of both ways, and their seconds."""
    options = {SERVERS: job["address"]}
    ways: dict[str, Way] = {
        "kafka": lambda: kafka_stream(session, options, refuse_other_farm(session, options, ())),
        "farm": lambda: session.readStream.format("farm").option("node", job["node"]).load(),
    }
    result: dict[str, Any] = {"seconds": {}}
    for _ in range(2):
        for name, way in ways.items():
            began = time.perf_counter()
            result[name] = read(way())
            result["seconds"][name] = round(time.perf_counter() - began, 2)
    return result


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    spark = open_session("local[1]", [("spark.jars", ",".join(job["jars"]))])
    print(json.dumps(both(spark, job)))
    spark.stop()
