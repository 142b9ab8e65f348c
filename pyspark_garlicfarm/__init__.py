"""The registration of `spark.read.format("farm")` for any Spark program, without a call of `dataSource.register`.

At the first use of a Python data source, Spark imports every top-level module with a name `pyspark_…`, and uses the
class `DefaultSource` of each. A module that cannot be imported would disable the sources of all other packages too. So
without the extra `pipeline`, the import succeeds without a source, and Spark reports that it does not know the name
`farm`.
"""

from contextlib import suppress

with suppress(ImportError):
    from pipeline.source.farm import FarmDataSource as DefaultSource

__all__ = ["DefaultSource"]
