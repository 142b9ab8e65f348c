"""Lets any Spark program say `spark.read.format("farm_events")`: see `pyspark_garlicfarm`."""

from contextlib import suppress

with suppress(ImportError):
    from pipeline.source.events import FarmEventsDataSource as DefaultSource

__all__ = ["DefaultSource"]
