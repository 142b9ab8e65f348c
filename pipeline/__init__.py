"""The data pipeline, in one process or on Spark: from a farm's committed log to tables about the health of routers.

The only package that imports pyspark, and it knows the farm only by a node's control endpoint
(`docs/explanation/pipeline.md`).
"""

INSTALL = "pip install 'garlicfarm[pipeline]', or in a checkout: make pipeline"
"""The command that installs everything for the pipeline, a Java too."""
