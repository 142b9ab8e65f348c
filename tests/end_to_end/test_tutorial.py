"""docs/tutorial.md as a newcomer walks it: every command of the page runs, and prints what the page says.

The commands of the page go to one shell, one after the other. In the output that the page shows, `…` stands for any
text of a line, and a line of it alone for any lines. A command that only looks is repeated until its output is the
page's, since the farm needs a moment to get there; any other one runs once. `make run` and what ends in `&` run beside.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.farm import START_BOUND_S, wait_until

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```console\n(.*?)^```$", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
ONCE = ("kill", "source", "garlicfarm submit", "garlicfarm run")
END = "__the_end_of_the_command__"


class Shell:
    """A shell that a newcomer types into, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc"],  # noqa: S607
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._type("set -m")

    def _type(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def run(self, command: str) -> str:
        """Run a command to its end; what it printed."""
        assert self._process.stdout is not None
        self._type(f"{command}\necho {END}")
        return "".join(iter(self._process.stdout.readline, f"{END}\n"))

    def close(self) -> None:
        """End what runs in the background, and the shell."""
        self._process.communicate("kill $(jobs -p) 2> /dev/null; wait\n", START_BOUND_S)


@contextmanager
def make_run(directory: Path) -> Iterator[None]:
    """`make run` in the first terminal until the block ends, then Ctrl-C. What it would install is there already."""
    make = ["make", "--old-file", ".venv/base.stamp", "run"]
    with (directory / "make-run.log").open("wb") as output:
        process = subprocess.Popen(make, cwd=directory, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(START_BOUND_S)


def steps() -> list[tuple[str, str]]:
    """Each command of the page, and what it prints."""
    parts = [re.split(r"^\$ (.+)$", block, flags=re.MULTILINE) for block in BLOCKS]
    return [(part[at], part[at + 1].lstrip("\n")) for part in parts for at in range(1, len(part), 2)]


def pattern(shown: str) -> re.Pattern[str]:
    """What fits the output that the page shows."""
    lines = [
        "(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*").replace(r"\ ", " +") + r" *\n"
        for line in shown.splitlines()
    ]
    return re.compile("".join(lines))


def walk(shell: Shell, command: str, shown: str) -> None:
    """Run one command of the page until it prints what the page says."""
    fits, printed = pattern(shown), [""]

    def printed_it() -> bool:
        printed.append(shell.run(command))
        return fits.fullmatch(printed[-1]) is not None

    if command.startswith(ONCE):
        assert printed_it(), f"{command} printed\n{printed[-1]}"
    else:
        wait_until(printed_it, START_BOUND_S, f"{command} prints\n{shown}", lambda: printed[-1])


def test_a_newcomer_walks_the_tutorial_to_its_end(tmp_path: Path) -> None:
    shutil.copy2(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (first, shown), *others = steps()
    assert (first, shown) == ("make run", "")
    with make_run(tmp_path):
        shell = Shell(tmp_path)
        try:
            for command, expected in others:
                walk(shell, command, expected)
        finally:
            shell.close()
