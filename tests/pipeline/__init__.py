"""Tests of the pipeline that do not start Spark. `tests/spark` has the tests on Spark in local mode."""
