"""docs/tutorial.md: every command of the page runs, and prints the output of the page.

The commands go to one shell, in order. In the page's output, `…` matches any text of a line, and a line with only
`…` matches any lines. A command that only reads is repeated until its output matches, because the farm needs some
time; all others run once. `make run`, and commands that end in `&`, run in the background. Ports that other tests may
use are replaced.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.farm import START_BOUND_S, wait_until
from tests.end_to_end.settings import LOOPBACK, free_port

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```console\n(.*?)^```$", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
CACHE = "garlicfarm"
"""The directory of the commands' cache, below XDG_CACHE_HOME."""
ONCE = ("kill", "source", "garlicfarm submit", "garlicfarm run", "garlicfarm connect")
BRIDGE, LISTEN = "127.0.0.1:17656", "127.0.0.1:8080"
"""The addresses on the page: of the SAM bridge of `up`, and of the client."""
REPEATED_S = 2.0
"""The pause between repetitions of a command; each starts an interpreter."""
END = "__the_end_of_the_command__"


class Shell:
    """A shell in a directory, used like a new user's terminal."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc"],  # noqa: S607
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                "XDG_CACHE_HOME": str(directory),
                "XDG_RUNTIME_DIR": str(directory),
            },
        )
        self._type("set -m")

    def _type(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def run(self, command: str) -> str:
        """Run a command to its end; return its output."""
        assert self._process.stdout is not None
        self._type(f"{command}\necho {END}")
        return "".join(iter(self._process.stdout.readline, f"{END}\n"))

    def close(self) -> None:
        """End the background processes and the shell."""
        self._process.communicate("kill $(jobs -p) 2> /dev/null; wait\n", START_BOUND_S)


@contextmanager
def make_run(directory: Path) -> Iterator[Path]:
    """Run `make run` in the first terminal until the block ends, then send Ctrl-C. Its packages exist already."""
    make = ["make", "--old-file", ".venv/base.stamp", "run"]
    log = directory / "make-run.log"
    with log.open("wb") as output:
        process = subprocess.Popen(make, cwd=directory, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield log
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(START_BOUND_S)


def bridge_of(log: Path) -> str:
    """Return the address of the SAM bridge that `make run` prints."""
    found = wait_until(
        lambda: re.search(r"--sam (\S+)", log.read_text()), START_BOUND_S, "`make run` prints the address of its bridge"
    )
    return found[1]


def steps() -> list[tuple[str, str]]:
    """Return the commands of the page, with their output."""
    parts = [re.split(r"^\$ (.+)$", block, flags=re.MULTILINE) for block in BLOCKS]
    return [(part[at], part[at + 1].lstrip("\n")) for part in parts for at in range(1, len(part), 2)]


def pattern(shown: str) -> re.Pattern[str]:
    lines = [
        "(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*").replace(r"\ ", " +") + r" *\n"
        for line in shown.splitlines()
    ]
    return re.compile("".join(lines))


def walk(shell: Shell, command: str, shown: str) -> None:
    """Run one command of the page until it prints the page's output."""
    expected_output, printed = pattern(shown), [""]

    def matches() -> bool:
        printed.append(shell.run(command))
        return expected_output.fullmatch(printed[-1]) is not None

    if command.startswith(ONCE):
        assert matches(), f"{command} printed\n{printed[-1]}"
    else:
        wait_until(matches, START_BOUND_S, f"{command} prints\n{shown}", lambda: printed[-1], poll_s=REPEATED_S)


def test_tutorial_commands_print_documented_output(tmp_path: Path) -> None:
    shutil.copy2(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (first, shown), *others = steps()
    assert (first, shown) == ("make run", "")
    listen = f"{LOOPBACK}:{free_port(socket.SOCK_STREAM)}"
    with make_run(tmp_path) as log:
        shell = Shell(tmp_path)
        bridge = bridge_of(log)
        try:
            for command, expected in others:
                walk(shell, command.replace(BRIDGE, bridge).replace(LISTEN, listen), expected)
        finally:
            shell.close()
    made = {each.name for each in tmp_path.iterdir()} - {"Makefile", log.name, CACHE}
    assert made == {".venv", "farm-state"}, "the commands write only ignored files"
