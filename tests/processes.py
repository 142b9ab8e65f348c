"""Child processes and threads of tests: each ends with its block, and each wait for an end is limited.

A `MockClock` jumps to the next timeout when all tasks are blocked, even if one of them waits for a thread. On a busy
machine a thread needs longer than any threshold, so the clock must count threads (`hold_for_threads`).

`with subprocess.Popen(…)` waits without a limit at the end of its block, even after an exception. A child that ignores
a signal would then block its test, its worker and the whole run forever. `child` kills the process at the end of the
block.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import trio
from trio.testing import MockClock

END_S = 60.0
"""The longest wait for the end of a killed process or a stopped thread."""


@contextmanager
def child(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    stdin: int | None = None,
    stdout: int | IO[str] | None = subprocess.PIPE,
    stderr: int | IO[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command with text pipes; kill it at the end of the block if it still runs."""
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True, env=env, cwd=cwd, stdin=stdin)
    try:
        yield process
    finally:
        process.kill()
        process.wait(END_S)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def hold_for_threads(clock: MockClock, idle_s: float = 0.0) -> None:
    """Set the threshold of a clock, and prevent jumps while trio's threads work."""
    clock.autojump_threshold = idle_s
    jump = clock._autojump

    def jump_without_threads() -> None:
        if not trio.to_thread.current_default_thread_limiter().borrowed_tokens:
            jump()

    clock._autojump = jump_without_threads  # type: ignore[method-assign]
