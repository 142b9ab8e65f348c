"""Tests of the pipeline, on real Spark in local mode."""
