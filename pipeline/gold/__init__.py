"""Tables that SQL makes out of the base tables, by windows of log time: one text for DuckDB and for Spark."""
