"""Child processes and threads of tests: each ends with its block, and each wait for an end is bounded.

`with subprocess.Popen(…)` waits without a limit when its block ends, also after an exception. A child that ignores a
signal would then keep its test, its worker and the whole run for ever. `child` kills what the block leaves running.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

END_S = 60.0
"""The longest wait for the end of a process that was killed, or of a thread that was stopped."""


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
    """Run a command with text pipes; kill it if it outlives the block."""
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True, env=env, cwd=cwd, stdin=stdin)
    try:
        yield process
    finally:
        process.kill()
        process.wait(END_S)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
