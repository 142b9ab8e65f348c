"""A Garlic Farm quorum compared with a quorum of Apache Kafka's controllers: latency of a commit, failover.

    kraft-latency    consecutive writes, linger 0 and 25 ms (the default of both); the quorums take turns
    kraft-failover   SIGKILL of the leader until a record of the next one is committed, by DescribeQuorum.
                     At the same time, consecutive writes to Garlic Farm: the longest time without an acknowledgment

`kraft_quorum` defines a write of each side, and the common settings. Both quorums run at the same time, and one of them
receives writes. `make interop-kafka` installs Kafka's jars; without them or a Java development kit, the parts are left
out.
"""

import statistics
from typing import Final

import trio

from benchmarks.figures import Figure, latencies, ratios
from benchmarks.job import Job, leave_out_if
from benchmarks.kraft_quorum import MeasuredQuorum, led, running_quorums
from tests.interop.kafka.tool_jvm import missing

LINGERS_MS: Final = (0, 25)
LINGER: Final = "controller.quorum.append.linger.ms"
WARM_UP: Final = 1_000
"""The number of writes before the measurement: during them the JVM compiles its frequent code."""
WRITES: Final = {0: 500, 25: 100}
GOAL_LATENCY: Final = 0.6
FAILOVER_S: Final = 10.0
BEFORE_KILL_S: Final = 2.0
GOAL_FAILOVER_S: Final = 3.2


async def latency(job: Job) -> list[Figure]:
    """Measure consecutive writes to both quorums."""
    leave_out_if(missing())
    figures: list[Figure] = []
    for linger_ms in LINGERS_MS:
        async with running_quorums(job.directory / str(linger_ms), {LINGER: linger_ms}) as quorums:
            found: dict[str, list[list[int]]] = {quorum.name: [] for quorum in quorums}
            for quorum in quorums:
                await quorum.write(count=WARM_UP if linger_ms == 0 else WRITES[linger_ms])
            for _ in range(job.runs):
                for quorum in quorums:
                    written = await quorum.write(count=WRITES[linger_ms])
                    found[quorum.name].append(written["microseconds"])
        figures += _latencies(f"KRaft, consecutive writes, three voters, linger {linger_ms} ms", found)
    return figures


def _latencies(where: str, found: dict[str, list[list[int]]]) -> list[Figure]:
    own, kafka = (latencies(where, name, turns) for name, turns in found.items())
    compared = ratios(own[0].values, kafka[0].values)
    goal = f"goal at most {GOAL_LATENCY:g}"
    return [*own, *kafka, Figure(where, "latency p50, garlicfarm / Kafka", "x", compared, goal)]


async def failover(job: Job) -> list[Figure]:
    """Measure SIGKILL of the leader of both quorums."""
    leave_out_if(missing())

    async def kill_leader(quorum: MeasuredQuorum) -> float:
        """Return the seconds until the next leader has committed a record; then restart the old leader."""
        before = await led(quorum)
        await quorum.kill(before.leader)
        began_s = trio.current_time()
        await led(quorum, beyond=before)
        return trio.current_time() - began_s

    async def write(quorum: MeasuredQuorum, gaps_s: list[float]) -> None:
        gaps_s.append((await quorum.write(seconds=FAILOVER_S))["longest_us"] / 1e6)

    async with running_quorums(job.directory / "quorums", {}) as (own_quorum, kafka_quorum):
        await own_quorum.write(count=WARM_UP // 10)
        found: dict[str, list[float]] = {own_quorum.name: [], kafka_quorum.name: []}
        gaps_s: list[float] = []
        for _ in range(job.runs):
            for quorum in (own_quorum, kafka_quorum):
                leader = (await led(quorum)).leader
                async with trio.open_nursery() as nursery:
                    if quorum is own_quorum:
                        nursery.start_soon(write, own_quorum, gaps_s)
                        await trio.sleep(BEFORE_KILL_S)
                    found[quorum.name].append(await kill_leader(quorum))
                await quorum.start(leader)
                await trio.sleep(BEFORE_KILL_S)
    where = "KRaft, SIGKILL of the leader, Kafka's default timeouts"
    one, other = (statistics.median(seconds) for seconds in found.values())
    note = f"= {one / other:.2f} of Kafka's time; goal at most 1, and {GOAL_FAILOVER_S:g} s"
    return [
        Figure(where, f"{own_quorum.name}: until a record is committed", "s", tuple(found[own_quorum.name]), note),
        Figure(where, f"{kafka_quorum.name}: until a record is committed", "s", tuple(found[kafka_quorum.name])),
        Figure(where, f"{own_quorum.name}: KafkaProducer without an acknowledgment", "s", tuple(gaps_s)),
    ]
