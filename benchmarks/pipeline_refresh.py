"""The cost to update the derived tables with a minute of reports, late on a day of a large farm.

    a day of 1,000 routers, except its last minutes ──▶ base tables, derived tables
    each of these minutes ──▶ base tables ──▶ [ derived tables ]      the part in brackets is measured

A partition of the tables is a day. A refresh that read all of it would cost most at its end, so the measurement is
there. Everything runs in this process, and in its tasks and its JVM.
"""

from pyspark.sql import SparkSession

from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.pipeline import MASTER, running_session
from benchmarks.processor_time import measured
from pipeline.generate import generate
from pipeline.gold.tables import Gold
from pipeline.load_model import LoadModel
from pipeline.run import RunSettings, await_end, gold_of, prepare, start_query
from pipeline.tables.specs import LOG

ROUTERS = 1_000
DAYS = 1.0
ENTRIES_A_MINUTE = 2 * ROUTERS
MINUTES = 6


def measure(job: Job) -> list[Figure]:
    """Return the processor time and the elapsed time of each refresh, after a warm-up."""
    log = job.directory / "log"
    entries = generate(log, LoadModel(ROUTERS, DAYS)).entries
    processor_s: list[float] = []
    seconds: list[float] = []
    with running_session() as session:
        for minute in range(MINUTES + 1):
            last = entries - (MINUTES - minute) * ENTRIES_A_MINUTE
            gold = _written(session, RunSettings(job.directory / "tables", {"directory": str(log), "end": str(last)}))
            with measured() as took:
                gold.refresh(gold.noted_through(LOG), session)
            processor_s.append(took.processor_s)
            seconds.append(took.seconds)
    group = f"pipeline: derived tables updated with a minute, at the end of a day of {ROUTERS} routers"
    note = f"{entries} entries, {MASTER}; all of the day before it took {processor_s[0]:.0f} s; goal 10"
    return [
        Figure(group, "processor time", "s", tuple(processor_s[1:]), note),
        Figure(group, "elapsed time", "s", tuple(seconds[1:]), "of the same runs"),
    ]


def _written(session: SparkSession, settings: RunSettings) -> Gold:
    """Write the base tables; return the derived tables, which lack these rows."""
    prepare(settings.output, part=True)
    gold = gold_of(settings)
    await_end(session, settings, lambda: start_query(session, settings, available_now=True, gold=gold))
    return gold
