"""Ctrl-C during a run: the first one waits until the run loop checks for it, the second one acts immediately."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pyspark
import pytest
from click.testing import CliRunner
from pyspark import SparkConf

from benchmarks import measured_command
from benchmarks.measured_command import Resident
from pipeline.cli import commands, entry
from pipeline.gold.answers import answer_sql
from pipeline.run import RunSettings, await_end
from pipeline.serve.query import documents
from pipeline.spark import session
from pipeline.spark.interrupt import Interrupt, deferred
from tests.pipeline.farm_log_server import serve_log, three_servers
from tests.processes import END_S, child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_run_with_complete_tables(number: signal.Signals, tmp_path: Path) -> None:
    output = tmp_path / "tables"
    command = [sys.executable, "-m", "bridge.cli.main", "pipeline", "run", "--alert-command", "/bin/true"]
    with (
        serve_log(three_servers(minutes=1), tmp_path / "control.sock") as address,
        child([*command, "--node", address, "--output", str(output)], stderr=subprocess.DEVNULL) as run,
    ):
        assert run.stdout is not None
        assert select.select([run.stdout], [], [], END_S)[0], "the run prints the table of its first batch"
        run.send_signal(number)
        run.communicate(timeout=END_S)
        assert run.returncode == 0
    assert [each["complete"] for each in documents(output, answer_sql("completeness"))] == [True]
    assert {each["state"] for each in documents(output, answer_sql("alerting"))} == {"off"}


@pytest.mark.parametrize("name", ["backfill", "generate", "repair"])
def test_sigterm_aborts_any_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The abort runs the command's `finally` blocks, which SIGTERM's default action does not run."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    monkeypatch.setattr(commands.pipeline.commands[name], "callback", lambda **_: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(commands.pipeline.commands[name], "params", [])
    try:
        assert "Aborted" in CliRunner().invoke(entry.pipeline, [name]).output
        assert received == []
        signal.raise_signal(signal.SIGTERM)
        assert received, "the handler before the command is back"
    finally:
        signal.signal(signal.SIGTERM, before)


def press_ctrl_c(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_is_deferred_until_run_loop_checks() -> None:
    with deferred(Interrupt()) as interrupt:
        interrupt.check()
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


class EndingQuery:
    """A query that ends while Ctrl-C is pressed, before the first check."""

    isActive, lastProgress = False, None  # noqa: N815 - Spark's names
    status: ClassVar = {"message": "", "isTriggerActive": False}

    def exception(self) -> None:
        """Press Ctrl-C; return None, because the query did not fail."""
        press_ctrl_c()

    def awaitTermination(self, _: int) -> bool:  # noqa: N802
        return True

    def stop(self) -> None:
        """Do nothing: the query has ended."""


def test_ctrl_c_at_end_of_query_ends_run(tmp_path: Path) -> None:
    tracker = SimpleNamespace(getActiveStageIds=list)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        await_end(spark, RunSettings(tmp_path, {}), EndingQuery)
    assert signal.getsignal(signal.SIGINT) == before


def test_error_of_run_ends_waits_of_batch_before_stop(tmp_path: Path) -> None:
    settings, ending = RunSettings(tmp_path, {}), list[bool]()

    class Failing(EndingQuery):
        isActive = True  # noqa: N815 - Spark's name

        def awaitTermination(self, _: int) -> bool:  # noqa: N802
            raise OSError("failed")

        def stop(self) -> None:
            ending.append(settings.interrupt.is_ending)

    with pytest.raises(OSError, match="failed"):
        await_end(None, settings, Failing)
    assert ending == [True]


def test_second_ctrl_c_interrupts_immediately() -> None:
    with deferred(Interrupt()), pytest.raises(KeyboardInterrupt):
        press_ctrl_c(times=2)


def test_handler_is_restored_after_run_loop() -> None:
    before = signal.getsignal(signal.SIGINT)
    with deferred(Interrupt()):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize("stage", ["context", "session"])
def test_ctrl_c_during_spark_start_stops_session(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def enter_stage(name: str) -> None:
        if name == stage:
            press_ctrl_c()
        done.append(name)

    def context(_: SparkConf) -> SimpleNamespace:
        enter_stage("context")

        def calls_the_jvm(*_: Any) -> None:
            """Act like PySpark's handler, which can interrupt another call."""
            done.append("frames")

        signal.signal(signal.SIGINT, calls_the_jvm)
        return SimpleNamespace(version=pyspark.__version__)

    def open_session() -> SimpleNamespace:
        enter_stage("session")
        return SimpleNamespace(stop=lambda: done.append("stopped"))

    builder = SimpleNamespace(config=lambda **_: SimpleNamespace(getOrCreate=open_session))
    monkeypatch.setattr(session, "SparkContext", SimpleNamespace(getOrCreate=context))
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        session._started(SparkConf(loadDefaults=False))
    assert done == ["context", "session", "stopped"]
    assert signal.getsignal(signal.SIGINT) == before


async def test_interrupted_benchmark_ends_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def interrupt(pid: int) -> Resident:
        started.append(pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(measured_command, "resident_memory", interrupt)
    with pytest.raises(KeyboardInterrupt):
        await measured_command.run_measured("sleep", ["sleep", "600"], tmp_path / "output.txt")
    assert not psutil.pid_exists(started[0])
