"""From a committed entry to its row in the pipeline's current state: a real farm, a real `pipeline run`, trigger 1 s.

    submit a report under an unused Raft id ──▶ committed (t0) ──▶ … ──▶ its row is in current_routers (t1)

Each report has a unique uptime, which identifies its row. The benchmark reads the table every 20 ms, like any reader:
from another process, while the run writes it.
"""

import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import trio

from benchmarks.child import ChildError
from benchmarks.farm import SERVERS, Farm, running_farm
from benchmarks.figures import Figure
from bridge.node.control.client import ControlClient
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.node.settings.choices import Timing
from pipeline.tables.current import read

COMMAND = [sys.executable, "-m", "bridge.cli.main", "pipeline"]
SAMPLES = 30
WARM_UP_SAMPLES = 3
PAUSE_S = 0.7
POLL_S = 0.02
ROW_PATIENCE_S = 180.0
STOP_PATIENCE_S = 30.0
SERVER_ID = 60


async def measure(directory: Path) -> list[Figure]:
    """Start farm and pipeline, submit reports, and end both."""
    async with running_farm(directory / "farm", Timing.LAN) as farm:
        await farm.settle()
        output, output_path = directory / "tables", directory / "pipeline.txt"
        nodes = [part for server in farm.servers for part in ("--node", str(server.node.directory))]
        command = [*COMMAND, "run", "--trigger", "1", "--json", "--output", str(output), "--master", "local[2]", *nodes]
        with output_path.open("wb") as output_file:
            process = await trio.lowlevel.open_process(
                command, stdout=output_file, stderr=output_file, start_new_session=True
            )
            try:
                samples = [await _sample(farm, output, number) for number in range(WARM_UP_SAMPLES + SAMPLES)]
            except trio.TooSlowError as error:
                raise ChildError(f"no row came; the pipeline printed: {output_path.read_text()[-2000:]}") from error
            finally:
                os.killpg(process.pid, signal.SIGINT)
                with trio.move_on_after(STOP_PATIENCE_S):
                    await process.wait()
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
    measured = tuple(samples[WARM_UP_SAMPLES:])
    note = f"{SERVERS} servers, trigger 1 s, after {WARM_UP_SAMPLES} warm-ups; goal: median at most 1.5 s"
    return [
        Figure("pipeline: committed entry to its row in the current state", "committed to row", "s", measured, note)
    ]


async def _sample(farm: Farm, output: Path, number: int) -> float:
    """Return the seconds of one report."""
    mark = 1_000_000 + number
    report = {
        "cluster": "farm",
        "date": time.time_ns() // 1_000_000,
        "id": SERVER_ID,
        "router": {"attached": False, "uptime": mark},
    }
    await trio.sleep(PAUSE_S)
    with trio.fail_after(ROW_PATIENCE_S):
        async with ControlClient(farm.servers[0].node.directory / SOCKET_NAME) as client:
            answer = await client.submit(msgspec.json.encode(report))
        if answer.index is None:
            raise ChildError(f"the farm did not commit a report: {answer.reason or answer.outcome.value}")
        committed = time.perf_counter()
        while not _arrived(output, mark):  # noqa: ASYNC110 - the row is written by another process
            await trio.sleep(POLL_S)
        return time.perf_counter() - committed


def _arrived(output: Path, mark: int) -> bool:
    try:
        rows = read(output, "routers")
    except OSError:
        return False  # a file that was just replaced
    return any(row["server_id"] == SERVER_ID and row["uptime_ms"] == mark for row in rows)
