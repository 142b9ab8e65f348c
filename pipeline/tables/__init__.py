"""The tables: Delta Lake, written by one process, readable by Spark, DuckDB, Polars and Trino.

rows.py: rows of base tables out of entries. tasks.py: what Spark's tasks do with a batch. files.py: data files with
statistics. delta.py: one table, its files, commits and versions. current.py: the newest known state. lake.py: all
tables, their one writer, and what a batch does to them. names.py: what stands behind pseudonyms. upkeep.py: OPTIMIZE,
retention, VACUUM.
"""
