"""One Spark session for all tests of the pipeline: its start takes longer than most tests.

It has the settings for few rows; runs of real processes also use the other settings.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.spark.session import fit_to_size, open_session
from tests.spark import QUICK_JVM


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """Return a session in local mode with the registered source."""
    opened = open_session("local[2]", [("spark.driver.extraJavaOptions", QUICK_JVM)])
    fit_to_size(opened, rows=0)
    opened.conf.set("spark.sql.shuffle.partitions", "1")
    opened.conf.set("spark.sql.adaptive.enabled", "false")
    # Derived constraints only serve large scans; to plan the longest query with them takes 6 of 26 s of processor time.
    opened.conf.set("spark.sql.constraintPropagation.enabled", "false")
    yield opened
    opened.stop()
