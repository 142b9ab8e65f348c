"""Early warning: whether the pipeline's question `warnings` foretells the labelled failures of made-up farms.

    made-up farm ──▶ entries ──▶ decoded, base tables, derived tables, as the tasks of a run do it, without Spark
         └──▶ labels ──────────────────────────────▶ judged (`warning_judgement.py`) ◀── rows of `warnings`

Farms with failures are judged from their fourth day on, by the days before, and in their first three, by the hours
before; another farm, without failures and with spikes, tells how often nothing is warned of. Entries have the look of a
proof at their end, which is all that the pipeline asks for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.figures import Figure
from benchmarks.warning_judgement import JudgedFarm, Judgement, Warned, judge
from pipeline.decode.columns import Row, record_batches
from pipeline.gold.answers import answer_sql
from pipeline.gold.tables import Gold
from pipeline.load_model import EPOCH_MS, LoadModel
from pipeline.planned_failures import DAY_MS, HOUR_MS, KINDS, Kind, Signal
from pipeline.serve.query import documents
from pipeline.tables.lake import Lake
from pipeline.tables.tasks import outcome_of, work

ROUTERS = 20
DAYS = 10
SEEDS = (11, 12, 13, 14)
HEALTHY_SEEDS = (21, 22)
HISTORY_DAYS = 3
"""Before that there are not enough days to compare with."""
HISTORY_HOURS = 6
WINDOW_MS = 60_000
ENTRIES_PER_BATCH = 100_000
CLUSTER = "0f" * 16
_CLOCK = b'{"clock":{"time":'
_PROOF = b',"proof":"' + b"A" * 43 + b".1." + b"A" * 86 + b'"}'


def measure(directory: Path, *, routers: int = ROUTERS, days: int = DAYS) -> list[Figure]:
    """Makes the farms one after the other, and judges."""
    failing = [asked(made_farm(directory, seed, routers, days, KINDS)) for seed in SEEDS]
    healthy = [asked(made_farm(directory, seed, routers, days, {Kind.SPIKE: 1})) for seed in HEALTHY_SEEDS]
    group = f"early warning: farms of {routers} routers, {days} days,"
    return [
        *_figures(f"{group} {len(SEEDS)} with failures, by days", by_days(failing)),
        *_figures(f"{group} the same in their first {HISTORY_DAYS} days, by hours", by_hours(failing)),
        _false(f"{group} {len(HEALTHY_SEEDS)} without failures, by days", by_days(healthy)),
        _false(f"{group} the same in their first {HISTORY_DAYS} days, by hours", by_hours(healthy)),
    ]


@dataclass(frozen=True, slots=True)
class MadeFarm:
    """A farm, and the directory of its tables."""

    model: LoadModel
    output: Path


@dataclass(frozen=True, slots=True)
class AskedFarm:
    """A farm, and what was warned of on all its days."""

    model: LoadModel
    warnings: tuple[Warned, ...]

    def between(self, begins_ms: int, ends_ms: int) -> JudgedFarm:
        """The farm in a part of its time."""
        return JudgedFarm(self.model.routers, begins_ms, ends_ms, self.model.labels, self.warnings)


def made_farm(directory: Path, seed: int, routers: int, days: int, kinds: Mapping[Kind, int]) -> MadeFarm:
    """Makes the tables of a farm below the directory."""
    model = LoadModel(routers, days, seed, kinds)
    output = directory / f"farm-{seed}"
    make_tables(model, output)
    return MadeFarm(model, output)


def asked(farm: MadeFarm, sql: str | None = None) -> AskedFarm:
    """Asks for the warnings of all days; `sql`: by another text."""
    text = answer_sql("warnings", warned_days=round(farm.model.days)) if sql is None else sql
    return AskedFarm(farm.model, tuple(Warned.of(row) for row in documents(farm.output, text)))


def by_days(farms: Sequence[AskedFarm]) -> Judgement:
    """Where there are enough days to compare with."""
    begins_ms = EPOCH_MS + HISTORY_DAYS * DAY_MS
    return judge(each.between(begins_ms, EPOCH_MS + int(each.model.days * DAY_MS)) for each in farms)


def by_hours(farms: Sequence[AskedFarm]) -> Judgement:
    """Where there are only hours."""
    begins_ms = EPOCH_MS + HISTORY_HOURS * HOUR_MS
    return judge(each.between(begins_ms, EPOCH_MS + HISTORY_DAYS * DAY_MS) for each in farms)


def make_tables(model: LoadModel, output: Path) -> None:
    """Base tables and derived ones, by this process."""
    gold = Gold(output, WINDOW_MS)
    lake = Lake(output, WINDOW_MS, note=gold.note)
    number = -1
    for number, batches in enumerate(_batches(model)):
        lake.write_outcome(outcome_of(pa.Table.from_batches(work(lake.plan, batches))), number)
    gold.refresh(number)


def _batches(model: LoadModel) -> Iterator[list[pa.RecordBatch]]:
    held: list[pa.RecordBatch] = []
    for batch in record_batches(_rows(model), CLUSTER):
        held.append(batch)
        if sum(each.num_rows for each in held) >= ENTRIES_PER_BATCH:
            yield held
            held = []
    if held:
        yield held


def _rows(model: LoadModel) -> Iterator[Row]:
    log_time_ms: int | None = None
    for index, entry in enumerate(model.entries(), start=1):
        if entry.value is None:
            yield index, entry.term, "configuration", log_time_ms, b'{"voters":[{"id":1}]}'
            continue
        if entry.value.startswith(_CLOCK) and entry.author is not None:
            log_time_ms = int(entry.value[len(_CLOCK) :].split(b",", 1)[0])
        signed = entry.value if entry.author is None else entry.value[:-1] + _PROOF
        yield index, entry.term, "application", log_time_ms, signed


def _figures(group: str, judged: Judgement) -> list[Figure]:
    leads = tuple(each / 60_000 for each in judged.leads_ms)
    left = tuple(100 * lead / span for lead, span in zip(judged.leads_ms, judged.spans_ms, strict=True))
    rest = f"{judged.of_relief} before a relief, {judged.other} other"
    failures = sum(judged.degradations.values())
    return [
        Figure(group, "precision", "%", (100 * judged.precision,), f"{judged.warnings} warnings; {rest}"),
        Figure(group, "recall of failures with signs", "%", (100 * judged.recall,), f"{failures} failures"),
        *(
            Figure(
                group,
                f"  of those in {signal}",
                "%",
                (100 * judged.recall_of(signal),),
                f"{judged.degradations.get(signal, 0)} failures",
            )
            for signal in Signal
        ),
        Figure(group, "recall of all", "%", (100 * judged.recall_of_all,), f"{judged.sudden} more, without a sign"),
        Figure(group, "lead, from the warning to the failure", "min", leads or (0.0,), "signs begin 45 to 180 before"),
        Figure(group, "lead, of the time that the signs show", "%", left or (0.0,)),
        _false(group, judged),
    ]


def _false(group: str, judged: Judgement) -> Figure:
    note = f"{judged.of_relief + judged.other} in {judged.router_days:,.0f} router-days"
    return Figure(group, "false warnings", "/router-day", (judged.false_per_router_day,), note)
