"""A live `pipeline run` of a real farm, by either engine: from a committed entry to its row, processor time and memory.

    submit a report under an unused Raft id ──▶ committed (t0) ──▶ … ──▶ its row is in current_routers (t1)
    the farm alone, for each window         ──▶ share of a processor, and memory of all processes of the run

Each report has a unique uptime, which identifies its row. The pause before a report is random (seeded). After a fixed
pause, each report would have the same phase of the preview, and an untypical latency. The benchmark reads the table
every 20 ms, like any reader: from another process, while the run writes it. The engines follow the same farm in turn,
each with its default trigger and with derived tables, events, watch and feedback. The nodes report every 30 s, the
default; GARLICFARM_PERIOD_S sets another period.
"""

import os
import sys
import time
from pathlib import Path
from random import Random

import msgspec
import trio

from benchmarks.child import Child, ChildError
from benchmarks.farm import SERVERS, Farm, running_farm, with_reporting_period
from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.measured_command import resident_memory
from benchmarks.processor_time import processor_times
from bridge.node.control.client import ControlClient
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.node.settings.choices import Timing
from pipeline.tables.current import read

COMMAND = [sys.executable, "-m", "bridge.cli.main", "pipeline"]
SAMPLES = 20
WARM_UP_SAMPLES = 3
PAUSE_MAX_S = 5.0
"""The longest pause before a sample: the default trigger, so samples have any phase of previews and batches."""
POLL_S = 0.02
PAUSE_SEED = 1
ROW_PATIENCE_S = 180.0
SERVER_ID = 60
PERIOD_VARIABLE = "GARLICFARM_PERIOD_S"
PERIOD_S = 30.0
WINDOW_S = 60.0
WINDOWS = 3
ENGINES = ("local", "spark")
MIB = 1024**2


async def measure(job: Job) -> list[Figure]:
    """Start a farm, and follow it with each engine."""
    period_s = float(os.environ.get(PERIOD_VARIABLE, PERIOD_S))

    def change(settings: str) -> str:
        return with_reporting_period(settings, round(1000 * period_s))

    async with running_farm(job.directory / "farm", Timing.LAN, change) as farm:
        await farm.settle()
        figures: list[Figure] = []
        for engine in ENGINES:
            try:
                figures += await _follow(farm, job.directory / engine, engine, period_s)
            except ChildError as error:
                # On a busy machine Spark may not start in time; the figures of the other engine remain.
                print(f"engine {engine}: failed: {error}", flush=True)
        return figures


async def _follow(farm: Farm, directory: Path, engine: str, period_s: float) -> list[Figure]:
    """Run the pipeline with an engine; submit reports, then leave the farm alone."""
    await trio.Path(directory).mkdir()
    output, output_path = directory / "tables", directory / "pipeline.txt"
    nodes = [part for server in farm.servers for part in ("--node", str(server.node.directory))]
    command = [*COMMAND, "run", "--json", "--output", str(output), "--engine", engine, *nodes]
    pauses_s = Random(PAUSE_SEED)
    # It also ends if this process is killed.
    async with await Child.start_foreign("the pipeline", command, output_path) as process:
        try:
            samples = [
                await _sample(farm, output, number, pauses_s.uniform(0.0, PAUSE_MAX_S))
                for number in range(WARM_UP_SAMPLES + SAMPLES)
            ]
        except trio.TooSlowError as error:
            raise ChildError(f"no row came; the pipeline printed: {output_path.read_text()[-2000:]}") from error
        shares = [await _share(process.pid) for _ in range(WINDOWS)]
        resident = resident_memory(process.pid)
    group = f"pipeline: a live run of one farm, engine {engine}"
    note = f"{SERVERS} servers, reports each {period_s:g} s, default trigger"
    measured = tuple(samples[WARM_UP_SAMPLES:])
    return [
        Figure(group, "committed to row in the current state", "s", measured, f"{note}; goal: median at most 1.0 s"),
        Figure(group, "share of a processor", "%", tuple(shares), f"windows of {WINDOW_S:.0f} s; goal 8 %"),
        Figure(group, "memory of all processes", "MiB", (resident.total_bytes / MIB,), "goal 900 MiB"),
    ]


async def _share(pid: int) -> float:
    """Return the percentage of a processor in one window."""
    spent_s, began = sum(processor_times(pid).values()), time.perf_counter()
    await trio.sleep(WINDOW_S)
    return 100 * (sum(processor_times(pid).values()) - spent_s) / (time.perf_counter() - began)


async def _sample(farm: Farm, output: Path, number: int, pause_s: float) -> float:
    """Return the seconds from the commit of a report, after a pause, to its row."""
    mark = 1_000_000 + number
    report = {
        "cluster": "farm",
        "date": time.time_ns() // 1_000_000,
        "id": SERVER_ID,
        "router": {"attached": False, "uptime": mark},
    }
    await trio.sleep(pause_s)
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
