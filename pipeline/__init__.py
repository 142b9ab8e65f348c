"""The data pipeline, in one process or on Spark: from a farm's committed log to tables about the health of routers.

No other package of the wheel imports pyspark itself. The pipeline reads a log from a node's control endpoint, a state
directory or a Kafka listener (`docs/explanation/pipeline.md`).
"""

INSTALL = "pip install 'garlicfarm[pipeline]', or in a checkout: make pipeline"
"""The commands; each installs everything for the pipeline, including Java."""


def ignore(*_: object) -> None:
    """Do nothing: the default of a callback."""
