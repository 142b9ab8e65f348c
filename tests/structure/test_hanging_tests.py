"""A run of tests always ends: with a hanging test, with a test that ends its worker, and with ignored signals.

One small run has all of these; each test here reads one of its results. The run starts as by `nohup` and `make test &`
in a shell without job control: SIGINT and SIGHUP are ignored.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import GroupScheduling
from tests.processes import END_S

ROOT = Path(__file__).parents[2]
SUITE = {
    "a_first": "def test_runs(): pass",
    "b_hangs": """
        import threading
        def test_hangs(): threading.Event().wait()
        def test_follows(): pass
    """,
    "c_ends_worker": """
        import os
        def test_precedes(): pass
        def test_ends(): os._exit(1)
        def test_follows(): pass
    """,
    "d_hangs_after_limit": """
        import subprocess, threading
        def test_hangs():
            with subprocess.Popen(["sleep", "60"]):
                threading.Event().wait()
        def test_follows(): pass
    """,
    "e_signals": """
        import pytest, signal, subprocess
        @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
        def test_child_ends(number):
            process = subprocess.Popen(["sleep", "60"])
            process.send_signal(number)
            assert process.wait(10) == -number
    """,
    "f_changes_process": """
        import gc
        def test_disables_collector(): gc.disable()
        def test_follows(): assert gc.isenabled()
    """,
    **{f"g_last_{number}": "def test_runs(): pass" for number in range(3)},
}
LIMITS = ("timeout=4", "faulthandler_timeout=12", "faulthandler_exit_on_timeout=true")
START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    directory = tmp_path_factory.mktemp("suite")
    for name, text in SUITE.items():
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        (directory / f"test_{name}.py").write_text("\n".join(line[indent:] for line in lines))
    (directory / "pytest.ini").write_text("[pytest]\n")
    plugins = ("tests.conftest", "xdist.plugin", "pytest_timeout", "no:cacheprovider")
    options = ["-n2", "-v", *(f"-p{each}" for each in plugins), *(f"-o{limit}" for limit in LIMITS)]
    command = [sys.executable, "-c", START, *options, f"--rootdir={directory}", str(directory)]
    # The import of the other plugins, in each worker, takes longer than the tests.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=2 * END_S, env=environment
    )
    found: dict[str, list[str]] = {}
    for line in run.stdout.splitlines():
        reported = re.match(r"\[gw\d+\].*? (PASSED|FAILED|ERROR) (?:.*/)?test_(\S+)\.py::test_(\S+)", line)
        if reported:
            found.setdefault(f"{reported[2]}.{reported[3]}", []).append(reported[1])
    assert "f_changes_process.follows" in found, run.stdout + run.stderr
    return found


def test_run_executes_every_test(outcomes: dict[str, list[str]]) -> None:
    expected = {f"{name}.{test}" for name, text in SUITE.items() for test in re.findall(r"def test_(\w+)", text)}
    assert {each.partition("[")[0] for each in outcomes} == expected


def test_hanging_test_fails_and_the_next_one_runs(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["b_hangs.hangs"] == ["FAILED"]
    assert outcomes["b_hangs.follows"] == ["PASSED"]


def test_test_that_changes_the_process_fails_alone(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["f_changes_process.disables_collector"] == ["PASSED", "ERROR"]
    assert outcomes["f_changes_process.follows"] == ["PASSED"]


def test_fatal_test_fails_once_and_the_next_one_runs(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["c_ends_worker.ends"] == ["FAILED"]
    assert outcomes["c_ends_worker.follows"] == ["PASSED"]


def test_finished_test_of_an_ended_worker_runs_once(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["c_ends_worker.precedes"] == ["PASSED"]


def test_hang_after_the_limit_ends_its_worker_alone(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["d_hangs_after_limit.hangs"] == ["FAILED"]
    assert outcomes["d_hangs_after_limit.follows"] == ["PASSED"]


class _Worker:
    """A worker of xdist that accepts tests, or one that has ended before its controller knows."""

    shutting_down = False

    def __init__(self, *, ended: bool = False) -> None:
        self.ended = ended
        self.received: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        if self.ended:
            raise OSError("cannot send (already closed?)")
        self.received += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_group_for_an_ended_worker_goes_to_the_next_one() -> None:
    config = SimpleNamespace(getvalue=lambda _: ["popen"], option=SimpleNamespace(loadscopereorder=False))
    scheduling = GroupScheduling(config)
    ended, following = _Worker(ended=True), _Worker()
    collected = ["tests/test_a.py::test_1", "tests/test_a.py::test_2", "tests/test_b.py::test_1"]
    scheduling.add_node(ended)
    scheduling.add_node_collection(ended, collected)
    scheduling.schedule()
    scheduling.add_node(following)
    scheduling.add_node_collection(following, collected)
    assert scheduling.remove_node(ended) == collected[0]
    assert sorted(following.received) == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_child_of_a_background_run_obeys_signals(outcomes: dict[str, list[str]], number: signal.Signals) -> None:
    assert outcomes[f"e_signals.child_ends[{number}]"] == ["PASSED"]
