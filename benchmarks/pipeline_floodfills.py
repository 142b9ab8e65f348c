"""The pipeline's heavy join: the closest floodfills of 2,000 destinations among 20,000 routers, on three days.

The time covers the whole query on a running session: hashes from two DataFrames, the join, and all its rows written as
Parquet. A sample of destinations is compared with an exhaustive search. The time of that search for all destinations is
estimated from the sample.
"""

import time
from datetime import date
from pathlib import Path
from random import Random

import pyarrow.parquet as pq

from benchmarks.child import BenchmarkError
from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.pipeline import MASTER, running_session
from pipeline.floodfills import closest_floodfills, routing_key

DESTINATIONS = 2_000
ROUTERS = 20_000
CLOSEST = 4
SAMPLE = 20
SEED = 1
TODAY = date(2026, 1, 2)


def measure(job: Job) -> list[Figure]:
    """Run the join; raise BenchmarkError if a row of the sample is wrong."""
    random = Random(SEED)
    destinations = [random.randbytes(32).hex() for _ in range(DESTINATIONS)]
    routers = [random.randbytes(32).hex() for _ in range(ROUTERS)]
    taken_s = []
    with running_session() as session:
        left = session.createDataFrame([(each,) for each in destinations], "destination STRING")
        right = session.createDataFrame([(each,) for each in routers], "router STRING")
        for run in range(job.runs):
            target = job.directory / f"floodfills-{run}"
            began = time.perf_counter()
            closest_floodfills(left, right, TODAY, CLOSEST).write.parquet(str(target))
            taken_s.append(time.perf_counter() - began)
    every_pair_s = _check(job.directory / "floodfills-0", random.sample(destinations, SAMPLE), routers)
    group = f"closest floodfills: {DESTINATIONS:,} destinations, {ROUTERS:,} routers, 3 days, {MASTER}"
    whole_s = every_pair_s / SAMPLE * DESTINATIONS
    return [
        Figure(group, "the join, to Parquet", "s", tuple(taken_s), f"exact for {SAMPLE} sampled; goal below 120 s"),
        Figure(group, "every pair in plain Python", "s", (whole_s,), f"estimated from {SAMPLE} destinations"),
    ]


def _check(table: Path, sample: list[str], routers: list[str]) -> float:
    """Return the seconds of the exhaustive search for the sample."""
    rows = pq.read_table(table).to_pylist()
    if len(rows) != DESTINATIONS * 3 * CLOSEST:
        raise BenchmarkError(f"the join gave {len(rows)} rows and not {DESTINATIONS * 3 * CLOSEST}")
    found = {(row["destination"], row["day"], row["rank"]): row["router"] for row in rows}
    numbers = [(int(router, 16), router) for router in routers]
    days = sorted({row["day"] for row in rows})
    began = time.perf_counter()
    for destination in sample:
        for day in days:
            key = int.from_bytes(routing_key(bytes.fromhex(destination), day))
            nearest = sorted((key ^ number, router) for number, router in numbers)[:CLOSEST]
            for rank, (_, router) in enumerate(nearest, 1):
                if found[destination, day, rank] != router:
                    raise BenchmarkError(f"the join is wrong about {destination} on {day}")
    return time.perf_counter() - began
