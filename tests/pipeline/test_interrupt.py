"""Ctrl-C waits for a moment between two calls; a second one does not wait."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pyspark import SparkConf

from pipeline.run import RunSettings, await_end
from pipeline.spark import session
from pipeline.spark.interrupt import deferred


def press_ctrl_c(times: int = 1) -> None:
    """The signal that the terminal sends."""
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_takes_effect_where_the_run_loop_looks_for_it() -> None:
    with deferred() as interrupt:
        interrupt.check()
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


class EndingQuery:
    """A query that has ended when it is looked at for the first time, which is when Ctrl-C is pressed."""

    isActive, lastProgress = False, None  # noqa: N815 - Spark's names
    status: ClassVar = {"message": "", "isTriggerActive": False}

    def exception(self) -> None:
        """It has ended well."""
        press_ctrl_c()

    def awaitTermination(self, _: int) -> bool:  # noqa: N802
        """At once."""
        return True

    def stop(self) -> None:
        """Nothing is left to stop."""


def test_ctrl_c_that_comes_when_a_query_has_just_ended_ends_the_run(tmp_path: Path) -> None:
    tracker = SimpleNamespace(getActiveStageIds=list)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        await_end(spark, RunSettings(tmp_path, {}), EndingQuery)
    assert signal.getsignal(signal.SIGINT) == before


def test_a_second_ctrl_c_does_not_wait() -> None:
    with deferred(), pytest.raises(KeyboardInterrupt):
        press_ctrl_c(times=2)


def test_behind_the_run_loop_ctrl_c_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with deferred():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize("stage", ["context", "session"])
def test_ctrl_c_while_spark_starts_ends_it_when_it_is_there(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def reached(name: str) -> None:
        if name == stage:
            press_ctrl_c()
        done.append(name)

    def context(_: SparkConf) -> None:
        reached("context")

        def calls_the_jvm(*_: Any) -> None:
            """As PySpark's own handler does, in the middle of another call."""
            done.append("frames")

        signal.signal(signal.SIGINT, calls_the_jvm)

    def opened() -> SimpleNamespace:
        reached("session")
        return SimpleNamespace(stop=lambda: done.append("stopped"))

    builder = SimpleNamespace(config=lambda **_: SimpleNamespace(getOrCreate=opened))
    monkeypatch.setattr(session, "SparkContext", SimpleNamespace(getOrCreate=context))
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        session._started(SparkConf(loadDefaults=False))
    assert done == ["context", "session", "stopped"]
    assert signal.getsignal(signal.SIGINT) == before
