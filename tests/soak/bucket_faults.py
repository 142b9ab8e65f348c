"""SIGKILLs of a run into a bucket, and the states of a bucket after random writes.

    `pipeline run --once` ──▶ the test's own S3 server ──▶ SIGKILL after a random write ──▶ the next run

The server is a thread of the test. So a kill happens at an exact write, before the run receives the reply. The objects
after a write are a state that a killed run may leave. The lock of a killed run is deleted, because its holder is known
to be dead; `tests/pipeline/test_bucket.py` tests its lifetime.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from click.testing import CliRunner

from pipeline.cli.commands import pipeline
from pipeline.lake import LOCK_FILE
from pipeline.output.buckets import BucketPath
from tests.pipeline.s3_server import S3Server
from tests.soak.pipeline_restores import RUN_TIMEOUT_S, Ended, State
from tests.soak.pipeline_tables import start

WRITES_MAX = 60
"""The maximum number of writes until a kill; a batch needs about thirty."""


def run_until_killed(
    command: list[str], server: S3Server, writes: int, log: Path, environment: Mapping[str, str]
) -> bool:
    """Run the command and kill it after this number of writes; return False if it succeeds before that."""
    left, started = [writes], list[subprocess.Popen[bytes]]()

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.killpg(started[0].pid, signal.SIGKILL)

    # No write is served before the process is known.
    with server.lock:
        server.at_write = count
        started.append(start(command, log, environment))
    try:
        code = started[0].wait(RUN_TIMEOUT_S)
    finally:
        server.at_write = None
        if started[0].poll() is None:
            os.killpg(started[0].pid, signal.SIGKILL)
            started[0].wait(RUN_TIMEOUT_S)
    if code not in {0, -signal.SIGKILL}:
        raise RuntimeError(f"the run ended with {code}: {log.read_text(errors='replace')[-4000:]}")
    return code != 0


def delete_lock(server: S3Server, place: BucketPath) -> None:
    server.objects.pop((place / LOCK_FILE).key, None)


def state_below(server: S3Server, place: BucketPath) -> State:
    """Return the objects below a prefix, without the lock."""
    prefix = f"{place.key}/"
    found = {key.removeprefix(prefix): content for key, content in server.objects.items() if key.startswith(prefix)}
    found.pop(LOCK_FILE, None)
    return found


def replace_objects(server: S3Server, place: BucketPath, state: State) -> None:
    """Replace all objects below a prefix."""
    with server.lock:
        for path in state_below(server, place):
            del server.objects[f"{place.key}/{path}"]
        server.objects.update({f"{place.key}/{path}": content for path, content in state.items()})


def states_during(server: S3Server, place: BucketPath, write: Callable[[], None], random: Random) -> list[State]:
    """Return the states after some random writes of `write`, and the last state."""
    states, left = list[State](), [random.randint(1, WRITES_MAX)]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            states.append(state_below(server, place))
            left[0] = random.randint(1, WRITES_MAX)

    server.at_write = count
    try:
        write()
    finally:
        server.at_write = None
    return [*states, state_below(server, place)]


def ended_here(*arguments: str) -> Ended:
    """Run a command of the pipeline in this process."""
    found = CliRunner().invoke(pipeline, arguments)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        return None, repr(found.exception)
    return found.exit_code, found.output
