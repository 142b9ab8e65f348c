"""The outputs of the pipeline for people and other programs: queries, the report, views, and a run's metrics."""
