"""The registration of `spark.read.format("farm_events")` for any Spark program: see `pyspark_garlicfarm`."""

from contextlib import suppress

with suppress(ImportError):
    from pipeline.source.events import FarmEventsDataSource as DefaultSource

__all__ = ["DefaultSource"]
