"""Spark's own Kafka source reads a topic, as a process: `python -m tests.interop.kafka.spark_reader JOB`.

    {"address": …, "topic": …, "jars": […]}                     the whole topic, as a table
    with "checkpoint": DIRECTORY                                the new records since the last run with that directory

Prints `[[offset, value, timestamp in ms, headers], …]` as JSON, in the order of offsets. It uses only Spark's own
commands, not this project's pipeline.
"""

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, unix_millis


def read(session: SparkSession, job: dict[str, Any]) -> list[list[Any]]:
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
    selected = records.select("offset", "value", unix_millis(col("timestamp")).alias("ms"), "headers")
    return [
        [
            row.offset,
            bytes(row.value).decode(),
            row.ms,
            [[header.key, bytes(header.value).decode()] for header in row.headers],
        ]
        for row in selected.orderBy("offset").collect()
    ]


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", ",".join(job["jars"]))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    print(json.dumps(read(spark, job)))
    spark.stop()
