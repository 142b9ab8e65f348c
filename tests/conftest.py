"""Settings of all tests: what is judged, what child processes find, and which tests stay on one worker.

Hypothesis judges what is right, never how long it took on a busy machine. It plays a quarter of its examples here and
all in `make soak`, which selects these tests. A test that declares its own number keeps it.

Processes that the tests start find the project compiled, also where the environment asks Python to keep no compiled
modules. Each node of a farm would otherwise compile some three hundred modules before its first step, which takes as
long as everything else that it does in a short test.

A run in the background (`make test &`, `nohup`, some CI systems) inherits signals that are ignored, and so would each
child process: a node that ignores SIGINT never ends. A handler, even one that does nothing, is the default in a child.

Several workers share the tests by group. A file is a group, since its tests share farms and worlds that take long to
make. The folder tests/spark is one group, so that its tests share one JVM. Groups start in the order of collection, and
the long ones are put first, so that none is left to run alone at the end. (`--dist loadgroup` would be the ordinary
way; its marks have no effect with pytest 9.2.)
"""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import is_hypothesis_test, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.effort import EXAMPLES, IS_SOAK
from tests.loop_watch.findings import described, findings_in, not_allowed, watched_environment
from tests.loop_watch.watch import ENVIRONMENT
from tests.process_state import changes, process_state, restore_garbage_collector

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

settings.register_profile("garlicfarm", deadline=None, print_blob=True, max_examples=EXAMPLES)
settings.load_profile("garlicfarm")

_STATE = pytest.StashKey[dict[str, object]]()
SPARK = "tests/spark"
LONG_FARMS = ("lan", "kraft_serve", "injected_faults", "pipeline_run", "tutorial", "kraft_how_to")
LONG = (SPARK, *(f"tests/end_to_end/test_{name}.py" for name in LONG_FARMS))
"""The groups that take longest, the longest first."""
STARTED_TESTS = 2
"""A worker of xdist runs a test when the next one is known, so it gets more work while it has so few."""


def _group(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    return SPARK if path.startswith(f"{SPARK}/") else path


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long groups first, the order within a group stays; mark searches by Hypothesis for `make soak`."""
    items.sort(key=lambda item: LONG.index(group) if (group := _group(item.nodeid)) in LONG else len(LONG))
    for item in items if IS_SOAK else ():
        if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
            item.add_marker(pytest.mark.search)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Give a worker one group after the other.

    After the end of a worker, xdist 3.8 queues its finished groups again: another worker gets them as work without a
    test and waits for ever. It also gives the next worker a single test, which that worker does not begin before it
    has a second one, and runs again the test that ended the worker.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that ended the worker, and queue the tests after it."""
        waiting = {
            group: {test: done for test, done in tests.items() if not done}
            for group, tests in self.assigned_work.pop(node).items()
        }
        fatal = next((test for tests in waiting.values() for test in tests), None)
        if fatal is not None:
            del waiting[_group(fatal)][fatal]
        self.workqueue.update({group: tests for group, tests in waiting.items() if tests})
        for other in self.nodes:
            self._reschedule(other)
        return fatal

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down or node not in self.registered_collections:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) <= STARTED_TESTS:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Record the state of the process before a test."""
    item.stash[_STATE] = process_state()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fail a test that changed the state of the process."""
    yield
    before = item.stash[_STATE]
    found = changes(before, process_state())
    restore_garbage_collector(before)
    if found:
        pytest.fail(f"the test changed the process: {'; '.join(found)}")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """How `-n` shares the tests, whatever `--dist` says."""
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make watch-loop`."""
    parser.addoption("--watch-loop", action="store_true", help="fail if a process blocks its event loop")


def pytest_configure(config: pytest.Config) -> None:
    """Have all processes of the session watched; workers of xdist inherit the variables."""
    if config.getoption("--watch-loop") and not hasattr(config, "workerinput"):
        os.environ.update(watched_environment(Path(mkdtemp(prefix="loop-watch-"))))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail for findings that no exception allows."""
    if not session.config.getoption("--watch-loop") or hasattr(session.config, "workerinput"):
        return
    directory = Path(os.environ[ENVIRONMENT])
    found = not_allowed(findings_in(directory))
    print(f"\nloop watch: {len(found)} findings in {directory}\n{described(found)}")  # noqa: T201 - the report
    if found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
