"""Tests with Spark. They share one JVM, so one worker (tests/conftest.py) runs the whole folder.

Two files start a JVM of their own and run here, too: two JVMs that start at a time exceed the time limits of a small
machine.
"""

import pytest

JVM_SOCKETS = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of each file: the finalizers of pyspark close its sockets to the JVM."""
