"""The registration of `spark.read.format("farm")` for any Spark program, without a call.

At the first use of a Python data source, Spark imports every module of the path with a name `pyspark_…`. It uses the
class `DefaultSource` of each. So this package is at the top level. A module that cannot be imported would disable the
sources of all other packages too. So without the extra `pipeline` this module does not have a source, and Spark reports
an unknown name.
"""

from contextlib import suppress

with suppress(ImportError):
    from pipeline.source.farm import FarmDataSource as DefaultSource

__all__ = ["DefaultSource"]
