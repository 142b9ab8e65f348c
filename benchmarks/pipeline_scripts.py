"""Short scripts over the entries of a log as Parquet, for comparison with `backfill`: DuckDB, Polars, plain Spark.

    python -m benchmarks.pipeline_scripts duckdb|polars|spark ENTRIES_DIRECTORY OUTPUT_DIRECTORY

Each writes reports, destination_reports, clocks, publications and router_health as Parquet, as an analyst would in some
thirty lines. Destinations become hashes. The differences from `backfill` are in `OMISSIONS` of `pipeline_contenders`.
"""
# ruff: noqa: S608 - the queries contain only constants and the paths of the benchmark

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

REPORTS = """index, term, log_time, e.id AS server_id, e.date AS written_at_ms, e.router.attached, e.router.uptime,
    e.router.jobLag AS job_lag_ms, e.router.participatingTunnels AS tunnels, e.router.currentBandwidth AS bandwidth,
    e.router.cpuPercent AS cpu_percent, e.router.memoryPercent AS memory_percent, e.meta.publishing, e.request"""

CLOCKS_AND_PUBLICATIONS = {
    "clocks": "SELECT index, term, log_time, e.clock.id AS leader_id, e.clock.period FROM entries WHERE e.clock.id > 0",
    "publications": """SELECT index, term, log_time, sha256(e.publication.master) AS master,
        e.publication.id AS server_id, e.publication.contentHash FROM entries WHERE e.publication.id > 0""",
}


def with_duckdb(source: Path, output: Path) -> None:
    """Read with DuckDB's functions for JSON. Entries that are not text or not JSON become NULL."""
    import duckdb  # noqa: PLC0415

    run = duckdb.connect(config={"threads": 2}).execute
    form = """{"date": "BIGINT", "id": "BIGINT", "request": "VARCHAR", "proof": "VARCHAR", "router": {
        "attached": "BOOLEAN", "uptime": "BIGINT", "jobLag": "DOUBLE", "participatingTunnels": "BIGINT",
        "currentBandwidth": "DOUBLE", "cpuPercent": "DOUBLE", "memoryPercent": "DOUBLE"},
        "meta": {"publishing": "BOOLEAN"}, "destinations": [{"destination": "VARCHAR", "healthy": "BOOLEAN"}],
        "clock": {"id": "BIGINT", "period": "BIGINT"},
        "publication": {"master": "VARCHAR", "id": "BIGINT", "contentHash": "VARCHAR"}}"""
    run(f"""CREATE TABLE texts AS SELECT *, TRY(decode(body)) AS entry
        FROM '{source}/*.parquet' WHERE kind = 'application'""")
    run(f"""CREATE TABLE entries AS SELECT * FROM (
        SELECT index, term, make_timestamp(log_time_ms * 1000) AS log_time, TRY(from_json(entry, '{form}')) AS e
        FROM texts WHERE json_valid(entry)) WHERE e.proof IS NOT NULL""")
    queries = {
        "reports": f"""SELECT {REPORTS}, len(e.destinations) AS destinations,
            len(list_filter(e.destinations, lambda d: d.healthy)) AS healthy FROM entries WHERE e.router IS NOT NULL""",
        "destination_reports": """SELECT index, log_time, server_id, sha256(d.destination) AS destination, d.healthy
            FROM (SELECT *, e.id AS server_id, unnest(e.destinations) AS d FROM entries WHERE e.router IS NOT NULL)""",
        **CLOCKS_AND_PUBLICATIONS,
        "router_health": f"""SELECT date_trunc('minute', log_time) AS window_start, server_id, count(*) AS reports,
            median(job_lag_ms) AS p50, quantile_cont(job_lag_ms, 0.95) AS p95, avg(cpu_percent) AS cpu,
            avg(memory_percent) AS memory, max(uptime) AS uptime, avg(tunnels) AS tunnels
            FROM '{output}/reports.parquet' GROUP BY ALL""",
    }
    for name, query in queries.items():
        run(f"COPY ({query}) TO '{output}/{name}.parquet' (FORMAT parquet)")


def with_polars(source: Path, output: Path) -> None:
    """Read with Polars. A malformed entry would end its decoder, so only entries with the usual beginnings are read."""
    import polars as pl  # noqa: PLC0415

    whole, text, number = pl.Int64, pl.String, pl.Float64
    figures = {"jobLag": number, "participatingTunnels": whole, "currentBandwidth": number, "cpuPercent": number}
    router = pl.Struct({"attached": pl.Boolean, "uptime": whole, **figures, "memoryPercent": number})
    forms: dict[str, dict[str, Any]] = {
        "report": {"date": whole, "id": whole, "router": router, "meta": pl.Struct({"publishing": pl.Boolean})}
        | {"request": text, "destinations": pl.List(pl.Struct({"destination": text, "healthy": pl.Boolean}))},
        "clock": {"clock": pl.Struct({"time": whole, "id": whole, "period": whole})},
        "publication": {"publication": pl.Struct({"master": text, "id": whole, "contentHash": text})},
    }
    begins = {"report": b'{"cluster":"farm",', "clock": b'{"clock":{', "publication": b'{"publication":{'}
    log_time = pl.from_epoch("log_time_ms", time_unit="ms").alias("log_time")
    entries = pl.scan_parquet(source / "*.parquet").filter(pl.col("kind") == "application")

    def of_kind(kind: str) -> Any:
        mine = entries.filter(pl.col("body").bin.starts_with(begins[kind]) & pl.col("body").bin.contains(b'"proof":"'))
        decoded = pl.col("body").cast(text).str.json_decode(pl.Struct(forms[kind])).struct.unnest()
        return mine.select("index", "term", log_time, decoded)

    healthy = pl.col("destinations").list.eval(pl.element().struct.field("healthy")).list.sum().alias("healthy")
    found = of_kind("report").collect().lazy()
    reports = found.with_columns(healthy, pl.col("destinations").list.len()).unnest("router", "meta")
    leaves = found.select("index", "log_time", "id", "destinations").explode("destinations").unnest("destinations")
    clocks, publications = of_kind("clock").unnest("clock"), of_kind("publication").unnest("publication")
    lag = pl.col("jobLag")
    health = reports.group_by(pl.col("log_time").dt.truncate("1m").alias("window_start"), "id").agg(
        *(pl.len().alias("reports"), lag.median().alias("p50"), lag.quantile(0.95).alias("p95")),
        *(pl.col("cpuPercent", "memoryPercent", "participatingTunnels").mean(), pl.col("uptime").max()),
    )
    reports.sink_parquet(output / "reports.parquet")
    leaves.with_columns(pl.col("destination").hash()).sink_parquet(output / "destination_reports.parquet")
    clocks.sink_parquet(output / "clocks.parquet")
    publications.with_columns(pl.col("master").hash()).sink_parquet(output / "publications.parquet")
    health.sink_parquet(output / "router_health.parquet")


def with_spark(source: Path, output: Path) -> None:
    """Read with Spark's `from_json`, which returns NULL for a malformed entry."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from pipeline.spark.java import find_java, use_java  # noqa: PLC0415

    use_java(find_java(dict(os.environ), Path(tempfile.mkdtemp())), os.environ)
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "1g")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    of_kinds = """clock STRUCT<time: BIGINT, id: BIGINT, period: BIGINT>,
        publication STRUCT<master: STRING, id: BIGINT, contentHash: STRING>, proof STRING"""
    form = f"""date BIGINT, id BIGINT, request STRING, meta STRUCT<publishing: BOOLEAN>,
        router STRUCT<attached: BOOLEAN, uptime: BIGINT, jobLag: DOUBLE, participatingTunnels: BIGINT,
        currentBandwidth: DOUBLE, cpuPercent: DOUBLE, memoryPercent: DOUBLE>,
        destinations ARRAY<STRUCT<destination: STRING, healthy: BOOLEAN>>, {of_kinds}"""
    raw = spark.read.parquet(str(source)).where("kind = 'application'")
    decoded = f"from_json(CAST(body AS STRING), '{form}') AS e"
    entries = raw.selectExpr("index", "term", "timestamp_millis(log_time_ms) AS log_time", decoded)
    entries.where("e.proof IS NOT NULL").createOrReplaceTempView("entries")
    spark.sql("CACHE TABLE entries")
    queries = {
        "reports": f"""SELECT {REPORTS}, size(e.destinations) AS destinations,
            size(filter(e.destinations, d -> d.healthy)) AS healthy FROM entries WHERE e.router IS NOT NULL""",
        "destination_reports": """SELECT index, log_time, server_id, sha2(d.destination, 256) AS destination, d.healthy
            FROM (SELECT *, e.id AS server_id, explode(e.destinations) AS d FROM entries WHERE e.router IS NOT NULL)""",
        **{
            name: query.replace("sha256(e.publication.master)", "sha2(e.publication.master, 256)")
            for name, query in CLOCKS_AND_PUBLICATIONS.items()
        },
        "router_health": """SELECT date_trunc('minute', log_time) AS window_start, server_id, count(*) AS reports,
            percentile(job_lag_ms, 0.5) AS p50, percentile(job_lag_ms, 0.95) AS p95, avg(cpu_percent) AS cpu,
            avg(memory_percent) AS memory, max(uptime) AS uptime, avg(tunnels) AS tunnels
            FROM reports GROUP BY 1, 2""",
    }
    for name, query in queries.items():
        spark.sql(query).write.parquet(str(output / f"{name}.parquet"))
        spark.read.parquet(str(output / f"{name}.parquet")).createOrReplaceTempView(name)
    spark.stop()


if __name__ == "__main__":
    contender, entries_directory, tables = sys.argv[1:]
    Path(tables).mkdir()
    {"duckdb": with_duckdb, "polars": with_polars, "spark": with_spark}[contender](
        Path(entries_directory), Path(tables)
    )
