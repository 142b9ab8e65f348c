"""Child processes and threads of tests: each ends with its block, and each wait for an end is limited.

`with subprocess.Popen(…)` waits without a limit at the end of its block, even after an exception. A child that ignores
a signal would then block its test, its worker and the whole run forever. `child` kills the process at the end of the
block.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

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
