"""Lets any Spark program say `spark.read.format("farm")`, without a call that registers the source.

When the first Python data source is asked for, Spark imports every module of the path whose name begins with `pyspark_`
and takes the class `DefaultSource` of each. So this package stands beside the others. A module that cannot be imported
would take all other sources with it, also those of strangers: without what the extra `pipeline` brings, it has no
source, and Spark says that there is none of that name.
"""

from contextlib import suppress

with suppress(ImportError):
    from pipeline.source.farm import FarmDataSource as DefaultSource

__all__ = ["DefaultSource"]
