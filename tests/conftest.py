"""Settings of all tests: Hypothesis, the environment of child processes, and the distribution to workers.

Hypothesis measures no time, because the machine may be busy. It runs few examples here and many in `make soak`,
which selects these tests.

Processes started by tests use compiled modules, even if the environment disables writing them. Otherwise each node of
a farm would compile some three hundred modules before its first step, which doubles the time of a short test.

Temporary directories are in memory if the machine has room. There a new file takes 0.02 ms of processor time; on ext4
with two syncs it takes 0.8 ms. No test depends on a sync, because none interrupts the machine itself. An
interrupted run leaves files there; the next run deletes them.

A run in the background (`make test &`, `nohup`, some CI systems) inherits ignored signals. Its child processes would
inherit them, too, and a node that ignores SIGINT never ends. A signal with a handler, even an empty one, is reset in a
child.

Several workers share the tests by group. A file is a group, because its tests share farms and simulations that take
long to set up. Groups start in the order of collection. The longest come first, so that none of them runs alone at
the end. (`--dist loadgroup` would be the ordinary way; pytest 9.2 ignores its marks.)
"""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.effort import EXAMPLES, IS_SOAK, room_in_memory
from tests.loop_watch.findings import as_text, findings_in, not_allowed, watched_environment
from tests.loop_watch.watch import ENVIRONMENT
from tests.process_state import changes, process_state, restore_garbage_collector

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a private directory in it
IN_MEMORY_BYTES = 4 * 1024**3
if not IS_SOAK and "TMPDIR" not in os.environ and room_in_memory(IN_MEMORY) >= IN_MEMORY_BYTES:
    os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

settings.register_profile(
    "garlicfarm",
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow,),
    print_blob=True,
    max_examples=EXAMPLES,
)
settings.load_profile("garlicfarm")

_STATE = pytest.StashKey[dict[str, object]]()
LONG_FARMS = (
    *("lan", "founding_commands", "hostile_member", "up", "pipeline_run"),
    *("kraft_how_to", "kraft_serve", "kafka_listener", "injected_faults", "tutorial"),
)
LONG = tuple(f"tests/end_to_end/test_{name}.py" for name in LONG_FARMS)
"""The slowest groups, slowest first."""
CLOCK = "autojump_clock"
YOUNG_OBJECTS = 20_000
"""Threshold of garbage collections: with Python's 700, collections need a tenth of the processor time."""
STARTED_TESTS = 2
"""xdist starts a test only when the next test is known, so a worker with so few tests receives more."""


def _group(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slow groups first, in the same order in each worker; mark Hypothesis tests for `make soak`."""

    def place(item: pytest.Item) -> tuple[int, str]:
        group = _group(item.nodeid)
        return (LONG.index(group) if group in LONG else len(LONG)), group

    items.sort(key=place)
    for item in items if IS_SOAK else ():
        if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
            item.add_marker(pytest.mark.search)


def pytest_collection() -> None:
    """Disable garbage collections until all modules and tests exist; they remain until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collections: each complete one would take a third of a second.

    The types of kio import Hypothesis's strategies, which takes seconds on a busy machine. So they are imported here,
    and not within the timeout of a request.
    """
    if "consensus.protocols.kafka.wire.schemas" in sys.modules:
        import_module("kio.static.primitive")
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.enable()


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Assigns groups to workers one by one.

    xdist 3.8 makes three mistakes when a worker ends. It queues the worker's finished groups again, so another worker
    receives a group without tests and waits forever. It assigns a single test to the next worker, which starts a test
    only when it has a second one. It repeats the test that ended the worker.
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

    def _assign_work_unit(self, node: WorkerController) -> None:
        # A worker that has just ended refuses the group. `remove_node` follows and queues it again.
        with suppress(OSError):
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down or node not in self.registered_collections:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) <= STARTED_TESTS:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Record the state of the process before a test; reject an unused simulated clock.

    pytest-trio uses the clock only if it is an argument of the test. A mark or a fixture does not change the time.
    """
    item.stash[_STATE] = process_state()
    if isinstance(item, pytest.Function) and CLOCK in item.fixturenames and CLOCK not in item._fixtureinfo.argnames:
        pytest.fail(f"{CLOCK} has no effect: declare it as an argument of the test")
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
    """Return the scheduler for `-n`, regardless of `--dist`."""
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make watch-loop`."""
    parser.addoption("--watch-loop", action="store_true", help="fail if a process blocks its event loop")


def pytest_configure(config: pytest.Config) -> None:
    """Watch all processes of the session; workers of xdist inherit the variables."""
    if config.getoption("--watch-loop") and not hasattr(config, "workerinput"):
        os.environ.update(watched_environment(Path(tempfile.mkdtemp(prefix="loop-watch-"))))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session if a finding is not allowed by an exception."""
    if not session.config.getoption("--watch-loop") or hasattr(session.config, "workerinput"):
        return
    directory = Path(os.environ[ENVIRONMENT])
    found = not_allowed(findings_in(directory))
    print(f"\nloop watch: {len(found)} findings in {directory}\n{as_text(found)}")  # noqa: T201 - the report
    if found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
