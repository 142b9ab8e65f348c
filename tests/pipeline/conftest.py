"""One Spark session for all tests of the pipeline: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.session import open_session


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """A session in local mode with the source registered."""
    opened = open_session("local[2]")
    yield opened
    opened.stop()
