"""The supervisor of a local farm's processes: starts, watches and ends them for `garlicfarm up`.

    stopped ──start──▶ running ──SIGTERM──▶ stopping ──exit──▶ stopped
                          └──────exits on its own─────────────▶ stopped (`exit_text` has the exit code or signal)

Each child has its own session, so that Ctrl-C in the terminal reaches only this process, which then stops the children.
Each child's standard input is a pipe that this process never writes to. When this process dies in any way, the pipe
closes and the child stops. (To kill a process group in a signal handler would be simpler, but children would survive a
SIGKILL of this process.)

An ended child is not started again: an operator who kills a node must see the farm's reaction. The command to start it
again is printed.
"""

import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
from msgspec import Struct, field

STOP_GRACE_SECONDS = 10.0


class Command(Struct, frozen=True):
    """One process to run: its name, its arguments after `garlicfarm`, and the file for its output."""

    name: str
    arguments: tuple[str, ...]
    log_file: Path


class Child(Struct):
    """One started process."""

    command: Command
    process: trio.Process
    exit_text: str = ""
    exited: trio.Event = field(default_factory=trio.Event)

    @property
    def pid(self) -> int:
        """The process id; reused by the system some time after the process ended."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return not self.exited.is_set()


async def run_children(
    commands: tuple[Command, ...],
    use: Callable[[tuple[Child, ...]], Awaitable[None]],
) -> None:
    """Start `commands`, call `use` with the children, and stop every child at the end of `use` or if canceled."""
    async with trio.open_nursery() as nursery:
        children: list[Child] = []
        try:
            for command in commands:
                child = await _start(command)
                children.append(child)
                nursery.start_soon(_watch, child)
            await use(tuple(children))
        finally:
            with trio.CancelScope(shield=True):
                await _stop_all(children)
            nursery.cancel_scope.cancel()


async def _start(command: Command) -> Child:
    async with await trio.open_file(command.log_file, "ab") as output:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "bridge.cli.main", *command.arguments],
            stdin=subprocess.PIPE,
            stdout=output.wrapped,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Child(command, process)


async def _watch(child: Child) -> None:
    with trio.CancelScope(shield=True):
        code = await child.process.wait()
    child.exit_text = describe_exit(code)
    child.exited.set()


async def _stop_all(children: list[Child]) -> None:
    for child in children:
        if child.running:
            child.process.terminate()
    with trio.move_on_after(STOP_GRACE_SECONDS):
        for child in children:
            await child.exited.wait()
    for child in children:
        if child.running:
            child.process.kill()
            await child.exited.wait()
        if child.process.stdin is not None:
            await child.process.stdin.aclose()


def describe_exit(code: int) -> str:
    """Return the kind of a process's end as text: `ended by SIGKILL`, `exit code 1`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
