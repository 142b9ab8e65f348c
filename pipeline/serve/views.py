"""`garlicfarm pipeline views`: SQL for other programs that open the tables in DuckDB.

    garlicfarm pipeline views ─▶ farm.sql ─▶ farm.duckdb ─▶ a BI tool over JDBC or ODBC, Grafana, a notebook

`query` reads the present files of a table. A program that stays connected would lose them when they are merged. So each
view reads the table's own log at every query (`delta_scan`, of DuckDB's extension `delta`). A database of these views
does not hold rows: each query sees the current rows of the tables that existed when the script was printed. The named
queries are views, too, with their default objective. The script also defines the functions of Spark that they use.

A view needs an existing table, and a failed statement would end the script. So for a table that no run has made yet,
the script makes a view with the columns and without rows. A comment explains this.

This is a separate module: `query` must work without a network, so without that extension.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.gold.answers import ANSWERS, answer_sql
from pipeline.gold.sources import MACROS
from pipeline.output.buckets import ENDPOINT, HDFS, BucketPath, Output
from pipeline.serve.query import TABLES, QueryError, no_rows, refuse_without_tables

_HEAD = """\
-- The tables in {output}
-- as views, for DuckDB with its extension `delta`, which DuckDB fetches at the first use.
-- Make the views again after an upgrade, and when new tables exist."""

_BUCKET_ACCESS = "CREATE OR REPLACE SECRET garlicfarm_tables (TYPE s3, PROVIDER credential_chain{store});"
"""The credentials of the environment; a script must not contain keys."""


def view_statements(output: Output) -> Iterator[str]:
    """Yield the script, statement by statement. Raise QueryError without tables."""
    if isinstance(output, BucketPath) and output.scheme == HDFS:
        raise QueryError("DuckDB's extension delta cannot read HDFS: use `garlicfarm pipeline query`, or Spark")
    refuse_without_tables(output)
    place = output.resolve()
    yield _HEAD.format(output=" ".join(str(place).splitlines()))
    yield "INSTALL delta;"
    yield "LOAD delta;"
    if not isinstance(output, Path):
        yield _BUCKET_ACCESS.format(store=_store_options())
    for name in TABLES:
        yield f"CREATE OR REPLACE VIEW {name} AS {_rows(place, name)};"
    for macro in MACROS:
        yield f"{macro.replace('CREATE MACRO', 'CREATE OR REPLACE MACRO', 1)};"
    for name in ANSWERS:
        yield f"CREATE OR REPLACE VIEW {name} AS\n{answer_sql(name).strip()};"


def _store_options() -> str:
    """Return the store of the environment as options of a secret; none for AWS."""
    url = urlsplit(os.environ.get(ENDPOINT, ""))
    if not url.netloc:
        return ""
    # An address may have a name and a password before the host.
    host = url.netloc.rpartition("@")[2].replace("'", "''")
    return f", ENDPOINT '{host}', URL_STYLE 'path', USE_SSL {str(url.scheme != 'http').lower()}"


def _rows(output: Output, name: str) -> str:
    if (output / name / "_delta_log").is_dir():
        place = str(output / name).replace("'", "''")
        return f"SELECT * FROM delta_scan('{place}')"  # noqa: S608 - a path of the operator's, quoted
    return f"{no_rows(name)} /* not there yet */"
