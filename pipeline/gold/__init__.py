"""Tables made by SQL from the base tables, by windows of log time: one text for DuckDB and for Spark."""
