"""Spark's own Kafka source reads a topic, in a process of its own: `python -m tests.interop.kafka.spark_reader JOB`.

    {"address": …, "topic": …, "jars": […]}                     all there is, as a table
    with "checkpoint": DIRECTORY                                what is new since the last run with that directory

Prints `[[offset, value, timestamp in ms, headers], …]` as JSON, in the order of offsets. The commands are Spark's
own: nothing of this project's pipeline is at work.
"""

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, unix_millis


def read(session: SparkSession, job: dict[str, Any]) -> list[list[Any]]:
    """The records."""
    options = {
        "kafka.bootstrap.servers": job["address"],
        "subscribe": job["topic"],
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    if "checkpoint" not in job:
        return _rows(session.read.format("kafka").options(**options).load())
    found: list[list[Any]] = []
    stream = session.readStream.format("kafka").options(**options).load()
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: found.extend(_rows(batch)))
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


def _rows(records: DataFrame) -> list[list[Any]]:
    told = records.select("offset", "value", unix_millis(col("timestamp")).alias("ms"), "headers")
    return [
        [
            row.offset,
            bytes(row.value).decode(),
            row.ms,
            [[header.key, bytes(header.value).decode()] for header in row.headers],
        ]
        for row in told.orderBy("offset").collect()
    ]


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", ",".join(asked["jars"]))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    print(json.dumps(read(spark, asked)))
    spark.stop()
