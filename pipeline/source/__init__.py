"""The sources of rows: a farm's log, and the traces of its nodes, as Spark's data sources `farm` and `farm_events`."""
