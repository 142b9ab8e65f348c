"""`garlicfarm up` as a separate process for the tests, with its output, its children and its end."""

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.end_to_end.farm import START_BOUND_S, command, wait_until


class Up:
    """A running `garlicfarm up`."""

    def __init__(self, directory: Path, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self.directory = directory
        self.process = process
        self._output = output
        self._known: set[psutil.Process] = set()

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the output contains `text` this many times."""
        wait_until(
            lambda: self.output.count(text) >= times, START_BOUND_S, f"`up` prints {text!r}", lambda: self.output
        )

    def children(self) -> list[psutil.Process]:
        """Return the processes of the running nodes, without short-lived children."""
        with suppress(psutil.NoSuchProcess):
            self._known.update(filter(_is_node, psutil.Process(self.process.pid).children()))
        return [child for child in self._known if child.is_running()]


def _is_node(child: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        # The command line of a process that has just started is empty for a moment.
        wait_until(lambda: bool(child.cmdline()), START_BOUND_S, "a child has a command line")
        return "run" in child.cmdline()
    return False


@contextmanager
def running_up(directory: Path, *options: str) -> Iterator[Up]:
    """Run `garlicfarm up` on `directory` during the block; afterwards end all of its processes."""
    output = directory.with_name(f"{directory.name}.out")
    with output.open("wb") as file:
        process = subprocess.Popen(
            command("up", "--state-dir", directory, *options),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    up = Up(directory, process, output)
    try:
        yield up
    finally:
        children = up.children()
        if process.poll() is None:
            process.kill()
        process.wait(START_BOUND_S)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def all_ended(processes: Iterable[psutil.Process], timeout_s: float) -> bool:
    _, alive = psutil.wait_procs(list(processes), timeout_s)
    return not alive
