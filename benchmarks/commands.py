"""The processor time of commands that an operator or a shell starts, compared with an empty start of Python.

    python -c pass, status, members, farm, --help, --version, completion      in turns, against a running farm
    status of the largest farm                                                served by this process

Each figure is the user and system time of one whole process, as the kernel counts it when the process ends. The load of
the machine changes it much less than the elapsed time, and changes the ratio to the empty start still less.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import trio

from benchmarks.child import BenchmarkError
from benchmarks.farm import Farm
from benchmarks.figures import Figure
from bridge.api.control_routes import VIEW
from bridge.api.view import FarmView
from bridge.node.control.routes import Call
from bridge.node.control.server import ControlServer
from bridge.node.security.control_socket import SOCKET_NAME
from tests.operator_views import largest_farm_view

EXIT_STATUSES = (0, 3)
"""`status` ends with 3 for a farm with a warning."""
GROUP = "processor time of a command, user and system, whole process"
COMMANDS = (("status",), ("members",), ("farm",), ("--help",), ("--version",))
EMPTY = "python -c pass"
COMPLETION = "completion of a command's name"
LARGEST = "status of a farm of 64 servers, 16 places"
GOALS_S = {"status": 0.25, LARGEST: 0.3}


async def measure(farm: Farm, runs: int) -> list[Figure]:
    """Return the time of each command, and its ratio to an empty start."""
    large = farm.files.directory / "large"
    await trio.Path(large).mkdir(mode=0o700)
    async with trio.open_nursery() as nursery:
        await nursery.start(ControlServer(large / SOCKET_NAME, {VIEW: _view_of_largest_farm}).run)
        figures = await trio.to_thread.run_sync(_measure, farm.servers[0].node.directory, large, runs)
        nursery.cancel_scope.cancel()
    return figures


async def _view_of_largest_farm(_: Call[None]) -> FarmView:
    await trio.lowlevel.checkpoint()
    return largest_farm_view()


def _measure(node: Path, large: Path, runs: int) -> list[Figure]:
    # Without stored bytecode each start would compile all modules.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["GARLICFARM_NODE"] = str(node)
    garlicfarm = (sys.executable, "-m", "bridge.cli.main")
    typed = {"_GARLICFARM_COMPLETE": "bash_complete", "COMP_WORDS": "garlicfarm st", "COMP_CWORD": "1"}
    starts: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {EMPTY: ((sys.executable, "-c", "pass"), environment)}
    starts |= {" ".join(each): ((*garlicfarm, *each), environment) for each in COMMANDS}
    starts[LARGEST] = ((*garlicfarm, "status"), environment | {"GARLICFARM_NODE": str(large)})
    starts[COMPLETION] = (garlicfarm, environment | typed)
    times: dict[str, list[float]] = {name: [] for name in starts}
    for number in range(runs + 1):
        for name, (command, its_environment) in starts.items():
            spent_s = _processor_s(command, its_environment)
            # The first round reads the files of the modules into the system's cache, and stores their bytecode.
            if number:
                times[name].append(spent_s)
    empty_s = statistics.median(times[EMPTY])
    figures = [
        Figure(GROUP, name, "s", tuple(found), f"goal {GOALS_S[name]:g}" if name in GOALS_S else "")
        for name, found in times.items()
    ]
    figures += [
        Figure(GROUP, f"{name}, compared with {EMPTY}", "x", tuple(each / empty_s for each in found))
        for name, found in times.items()
        if name != EMPTY
    ]
    return figures


def _processor_s(command: tuple[str, ...], environment: dict[str, str]) -> float:
    """Return the processor time of one process; raise `BenchmarkError` if it fails."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _, status, used = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in EXIT_STATUSES:
        raise BenchmarkError(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime
