"""One Spark session for all tests of the pipeline: starting it takes longer than most of them.

A few rows do not pay for compiled operators and several partitions; the runs of real processes have both.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.session import open_session

FOR_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """A session in local mode with the source registered."""
    opened = open_session("local[2]")
    for name, value in FOR_FEW_ROWS.items():
        opened.conf.set(name, value)
    yield opened
    opened.stop()
