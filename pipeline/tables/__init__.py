"""The tables: Delta Lake, written by one process, readable by Spark, DuckDB, Polars and Trino.

specs.py: the tables that a run appends to, and their columns. rows.py: rows of base tables from entries. tasks.py: the
work of Spark's tasks on a batch. recent.py: the recent entries that feedback needs. files.py: data files with
statistics. delta.py: one table, its files, commits and versions. current.py: the newest known state. farm_files.py: a
small table in files by farm. names.py: the addresses for pseudonyms. upkeep.py: OPTIMIZE, retention, VACUUM.
"""
