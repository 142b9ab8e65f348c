"""The time of the farm without a leader, and the time until a killed publisher is replaced.

    leader:     SIGKILL ─▶ another server is leader (its own trace) ─▶ a client's next submission is acknowledged
    publisher:  SIGKILL ─▶ a valid structure of another server, newer than the kill, is on disk

Before the next repetition, the killed process restarts and catches up, so each repetition begins with a complete farm.
In the leader's case, a client continuously submits one entry at a time. Like any client, it detects the death by its
connection. The figure includes the client's timeout for each server.
"""

import time
from pathlib import Path

import trio

from benchmarks.child import BenchmarkError
from benchmarks.client import connect, entry
from benchmarks.farm import Farm, Server, running_farm
from benchmarks.figures import Figure
from benchmarks.job import Job
from bridge.api.json import DocumentError
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.local.farm_files import REPORTING_PERIOD_MS
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.node.settings.choices import Timing
from bridge.wire.i2p.meta_lease_set import STRUCTURE_LIMIT_BYTES, LeaseSetError, decode, verify
from consensus import Outcome

LEADER_GOAL_S = 0.5
PUBLISHER_GOAL_PERIODS = 3
TIMEOUT_S = 30.0
POLL_S = 0.01
ENTRY_BYTES = 256
EVENTS_PAGE = 1000


async def leader(farm: Farm, repetitions: int) -> list[Figure]:
    """Measure SIGKILL of the leader."""
    elected, written = [], []
    for _ in range(repetitions):
        await farm.settle()
        seconds_to_leader, seconds_to_write = await _kill_leader(farm)
        elected.append(seconds_to_leader)
        written.append(seconds_to_write)
    await farm.settle()
    group = f'SIGKILL of the leader, timing "{farm.timing.value}"'
    within = sum(each <= LEADER_GOAL_S for each in elected)
    return [
        Figure(
            group,
            "until another server leads",
            "s",
            tuple(elected),
            f"goal {LEADER_GOAL_S:g} s: {within} of {repetitions} within",
        ),
        Figure(group, "until a client's write is acknowledged", "s", tuple(written)),
    ]


async def local_leader(job: Job) -> list[Figure]:
    """Measure SIGKILL of the leader in a farm with the timing of `garlicfarm up`."""
    async with running_farm(job.directory, Timing.LOCAL) as farm:
        return await leader(farm, job.runs)


async def _kill_leader(farm: Farm) -> tuple[float, float]:
    victim = await farm.leader()
    survivors = [server for server in farm.servers if server is not victim]
    client = connect(farm.target())
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        if (await client.submit((entry(0, ENTRY_BYTES),))).outcome is not Outcome.COMMITTED:
            raise BenchmarkError("a farm with all its servers did not take an entry")
        killed_ms = time.time_ns() // 1_000_000
        killed = time.perf_counter()
        await victim.kill()
        with trio.fail_after(TIMEOUT_S):
            while (await client.submit((entry(1, ENTRY_BYTES),))).outcome is not Outcome.COMMITTED:
                pass
        written_s = time.perf_counter() - killed
        nursery.cancel_scope.cancel()
    elected_ms = [moment for moment in await elections(survivors) if moment >= killed_ms]
    if not elected_ms:
        raise BenchmarkError("a write was acknowledged, but no survivor's trace contains an election")
    return (max(elected_ms) - killed_ms) / 1000, written_s


async def elections(servers: list[Server]) -> list[int]:
    """Return the times when these servers became leader, milliseconds since the epoch."""
    moments = []
    for server in servers:
        cursor = 1
        async with ControlClient(server.node.directory / SOCKET_NAME) as client:
            try:
                while (page := await client.events(cursor, EVENTS_PAGE)).events:
                    moments += [event.time_ms for event in page.events if event.kind == "leader-elected"]
                    cursor = page.next_cursor
            except (ControlError, DocumentError) as error:
                raise BenchmarkError(f"{server.node.name} does not return its trace: {error}") from error
    return moments


async def publisher(farm: Farm, repetitions: int) -> list[Figure]:
    """Measure SIGKILL of the publisher."""
    times_s = []
    led = 0
    for _ in range(repetitions):
        await farm.settle()
        victim = await farm.publisher()
        led += victim is await farm.leader()
        times_s.append(await _kill_publisher(farm, victim))
    await farm.settle()
    period_s = REPORTING_PERIOD_MS / 1000
    goal_s = PUBLISHER_GOAL_PERIODS * period_s
    within = sum(each <= goal_s for each in times_s)
    note = f"goal {goal_s:g} s ({PUBLISHER_GOAL_PERIODS} periods of {period_s:g} s): {within} of {repetitions} within"
    group = f'SIGKILL of the publisher, timing "{farm.timing.value}" ({led} of {repetitions} times it led as well)'
    return [Figure(group, "until another server's structure is on disk", "s", tuple(times_s), note)]


async def _kill_publisher(farm: Farm, victim: Server) -> float:
    survivors = [server for server in farm.servers if server is not victim]
    killed_ns = time.time_ns()
    killed = time.perf_counter()
    await victim.kill()
    with trio.fail_after(TIMEOUT_S):
        while not _has_published(survivors, killed_ns):  # noqa: ASYNC110 - another process's file wakes no task
            await trio.sleep(POLL_S)
    return time.perf_counter() - killed


def _has_published(servers: list[Server], after_ns: int) -> bool:
    return any(_is_newer(path, after_ns) for server in servers for path in server.structures())


def _is_newer(path: Path, moment_ns: int) -> bool:
    """Return True if the structure is valid and was written after `moment_ns`."""
    try:
        if path.stat().st_mtime_ns <= moment_ns:
            return False
        with path.open("rb") as file:
            return verify(decode(file.read(STRUCTURE_LIMIT_BYTES + 1))).holds
    except (OSError, LeaseSetError):
        return False
