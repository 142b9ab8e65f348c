"""Tests with Spark. They share one JVM, so one worker (tests/conftest.py) runs the whole folder.

Two files start a JVM of their own and run here, too, because the start of a JVM occupies both processors of a small
machine.
"""

import pytest

JVM_SOCKETS = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of each file: the finalizers of pyspark close its sockets to the JVM."""
QUICK_JVM = "-XX:TieredStopAtLevel=1"
"""The option for the first compiler only: a run of minutes does not gain the time of the second one."""
