"""One Spark session for all tests of the pipeline: starting it takes longer than most of them.

Its settings are those for few rows; the runs of real processes have the others as well.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.spark.session import fit_to_size, open_session
from tests.spark import QUICK_JVM


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """A session in local mode with the source registered."""
    opened = open_session("local[2]", [("spark.driver.extraJavaOptions", QUICK_JVM)])
    fit_to_size(opened, rows=0)
    opened.conf.set("spark.sql.shuffle.partitions", "1")
    opened.conf.set("spark.sql.adaptive.enabled", "false")
    yield opened
    opened.stop()
