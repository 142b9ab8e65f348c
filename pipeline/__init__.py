"""The data pipeline, in one process or on Spark: from a farm's committed log to tables about the health of routers.

The only package of the wheel that imports pyspark. It reads a log from a node's control endpoint, a state directory or
a Kafka listener (`docs/explanation/pipeline.md`).
"""

INSTALL = "pip install 'garlicfarm[pipeline]', or in a checkout: make pipeline"
"""The command that installs everything for the pipeline, including Java."""


def ignore(*_: object) -> None:
    """Do nothing: the default of a callback."""
