"""The processor time of commands that an operator or a shell starts, compared with an empty start of Python.

    python -c pass, status, members, farm, --help, --version, completion      in turns, against a running farm

Each figure is the user and system time of one whole process, as the kernel counts it when the process ends. The load of
the machine changes it much less than the elapsed time, and changes the ratio to the empty start still less.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import trio

from benchmarks.farm import BenchmarkError, Farm
from benchmarks.figures import Figure

GOAL_S = 0.25
EXIT_STATUSES = (0, 3)
"""`status` ends with 3 for a farm with a warning."""
GROUP = "processor time of a command, user and system, whole process"
COMMANDS = (("status",), ("members",), ("farm",), ("--help",), ("--version",))
EMPTY = "python -c pass"
COMPLETION = "completion of a command's name"


async def measure(farm: Farm, runs: int) -> list[Figure]:
    """Return the time of each command, and its ratio to an empty start."""
    return await trio.to_thread.run_sync(_measure, farm.servers[0].node.directory, runs)


def _measure(node: Path, runs: int) -> list[Figure]:
    # Without stored bytecode each start would compile all modules.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["GARLICFARM_NODE"] = str(node)
    garlicfarm = (sys.executable, "-m", "bridge.cli.main")
    typed = {"_GARLICFARM_COMPLETE": "bash_complete", "COMP_WORDS": "garlicfarm st", "COMP_CWORD": "1"}
    starts: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {EMPTY: ((sys.executable, "-c", "pass"), environment)}
    starts |= {" ".join(each): ((*garlicfarm, *each), environment) for each in COMMANDS}
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
        Figure(GROUP, name, "s", tuple(found), f"goal {GOAL_S:g}" if name == "status" else "")
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
