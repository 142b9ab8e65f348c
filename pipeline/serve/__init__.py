"""The outputs of the pipeline for people and other programs: the report, and metrics of the run itself."""
