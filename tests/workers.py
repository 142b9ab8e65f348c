"""Worker processes of a test session, forked from the process that has collected the tests.

    the session: collects ── fork ──▶ a worker ── requests a group of tests ──▶ the session
                                          │ ◀────────── the group ──────────────────┘
                                          └── each start and each report ──▶ hooks of the session

The import of all tests takes 5 s of processor time, and 18 s in a new clone, which compiles them. pytest-xdist is the
ordinary way, but each of its workers imports all tests again. Forked workers also share the memory of the modules.

A worker requests the next group before the last test of a group, because pytest ends the fixtures that the next test
does not need. If a worker ends, its test fails, and a new worker runs its other tests.
"""

import atexit
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from threading import Timer
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from _pytest.config import create_terminal_writer

END_S = 30.0
"""The longest wait for the end of a worker after its last message, and after an interrupt."""
CHECK_S = 1.0
"""The time between checks for workers that ended while a process of a test still has their connection."""


@dataclass(slots=True)
class Worker:
    """A worker process, and the indexes of its tests that it has not started."""

    number: int
    pid: int
    connection: Connection
    assigned: deque[int] = field(default_factory=deque)
    running: int | None = None


class Workers:
    """The workers of a session. `group` returns the group of a test by its node id; groups are consecutive tests."""

    def __init__(self, session: pytest.Session, group: Callable[[str], str]) -> None:
        self._session = session
        self._hook = session.config.hook
        in_groups = groupby(range(len(session.items)), lambda index: group(session.items[index].nodeid))
        self._groups = deque([*tests] for _, tests in in_groups)
        self._workers: list[Worker] = []
        self._forks = 0

    def run(self, count: int) -> None:
        """Run all tests in `count` workers."""
        session = self._session
        try:
            for _ in range(min(count, len(self._groups))):
                self._fork()
            while self._workers:
                self._receive()
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for worker in self._workers:
                worker.connection.close()
                os.kill(worker.pid, signal.SIGINT)
            for worker in self._workers:
                _wait_end(worker.pid)

    def _fork(self) -> None:
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # shared by all workers
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._forks += 1
        pid = os.fork()
        if pid == 0:
            for other in (ours, *(each.connection for each in self._workers)):
                other.close()
            _work(self._session, self._forks, theirs)
        theirs.close()
        self._workers.append(Worker(self._forks, pid, ours))

    def _receive(self) -> None:
        ready = wait([each.connection for each in self._workers], CHECK_S)
        for worker in [*self._workers]:
            try:
                if worker.connection in ready:
                    self._take(worker, worker.connection.recv())
                elif not ready and os.waitpid(worker.pid, os.WNOHANG)[0]:
                    self._replace(worker)
            except (EOFError, OSError):
                _wait_end(worker.pid)
                self._replace(worker)

    def _take(self, worker: Worker, message: object) -> None:
        """Process a message: None requests a group, a number is a started test, other messages are reports."""
        match message:
            case None:
                group = self._groups.popleft() if self._groups else []
                worker.assigned.extend(group)
                worker.connection.send(group)
            case int():
                worker.assigned.remove(message)
                worker.running = message
            case _:
                report = self._hook.pytest_report_from_serializable(config=self._session.config, data=message)
                if report.when == "teardown":
                    worker.running = None
                self._report(worker, report)

    def _report(self, worker: Worker, report: Any) -> None:
        # pytest prints these names in the lines of `-v`, and above the text of a failure.
        name = f"worker {worker.number}"
        report.node = SimpleNamespace(gateway=SimpleNamespace(id=name), _workerinfocache=f"[{name}]")
        self._hook.pytest_runtest_logreport(report=report)

    def _replace(self, worker: Worker) -> None:
        """Fail the test that ended the worker; start another worker for the remaining tests."""
        self._workers.remove(worker)
        worker.connection.close()
        if worker.running is not None:
            item = self._session.items[worker.running]
            reason = f"worker {worker.number} ended in {item.nodeid}"
            # pytest counts a failure in `setup` or `teardown` as an error.
            failed = pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "???")  # type: ignore[arg-type]
            self._report(worker, failed)
            self._groups.extendleft([[*worker.assigned]] if worker.assigned else [])
            if self._groups:
                self._fork()
        elif worker.assigned:
            raise RuntimeError(f"worker {worker.number} ended before {self._session.items[worker.assigned[0]].nodeid}")


def _wait_end(pid: int) -> None:
    """Wait for the end of a worker; kill it if it takes too long."""
    limit = Timer(END_S, os.kill, (pid, signal.SIGKILL))
    limit.start()
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
    limit.cancel()
    limit.join(END_S)


# -- in a worker -------------------------------------------------------------------------------------------------------


class _Reports:
    """A plugin that sends the reports of tests to the session."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._connection.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def _work(session: pytest.Session, number: int, connection: Connection) -> NoReturn:
    """Run the tests of this worker, and end the process."""
    code = 1
    try:
        _separate(session.config, number)
        session.config.pluginmanager.register(_Reports(session.config, connection))
        try:
            _run(session, connection)
            code = 0
        finally:
            session._setupstate.teardown_exact(None)
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # the session has ended, and reports it
    except BaseException:  # noqa: BLE001 - the hook prints it; the session reports the test
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _separate(config: pytest.Config, number: int) -> None:
    """Use a separate directory and separate capture files, and print no results."""
    factory = config._tmp_path_factory  # type: ignore[attr-defined] # also used by pytest-xdist
    factory._basetemp = factory.getbasetemp() / f"worker-{number}"
    factory._basetemp.mkdir(mode=0o700)
    capture = config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    capture.stop_global_capturing()
    capture.start_global_capturing()
    # pytest-timeout prints stacks with the terminal's writer: here they are output of the test.
    config.pluginmanager.unregister(name="terminalreporter")
    silent = SimpleNamespace(_tw=create_terminal_writer(config, sys.stdout))
    config.pluginmanager.register(silent, "terminalreporter")
    capture.suspend_global_capture()


def _run(session: pytest.Session, connection: Connection) -> None:
    tests = _assigned(connection)
    current = next(tests, None)
    while current is not None:
        following = next(tests, None)
        connection.send(current)
        item = session.items[current]
        item.config.hook.pytest_runtest_protocol(
            item=item, nextitem=None if following is None else session.items[following]
        )
        current = following


def _assigned(connection: Connection) -> Iterator[int]:
    """Yield the indexes of the tests of this worker."""
    while True:
        connection.send(None)
        group = connection.recv()
        if not group:
            return
        yield from group
