"""Tests with Spark. They share one JVM, so one worker (tests/conftest.py) runs the whole folder.

Two files start a separate JVM. They are in this folder too, because the start of a JVM occupies both processors of a
small machine.
"""

import pytest

JVM_SOCKETS = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of each file: the finalizers of pyspark close its sockets to the JVM."""
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Options for runs of minutes: only the first compiler, because the second one costs more time than it saves.

Classes are not verified. Their verification takes a tenth of the processor time of the start.
"""
COMMAND_BOUND_S = 1_200.0
"""Limit for one command with Spark, which takes 25 s of processor time. A busy machine takes many times as long."""
