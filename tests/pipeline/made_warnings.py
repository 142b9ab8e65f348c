"""Tables of made-up farms with labeled failures, and the warnings of the pipeline about them.

    made-up farm ──▶ entries ──▶ decoded, base tables, derived tables, like the tasks of a run, without Spark
         └──▶ labels ──────────────────────────────▶ judged (`warning_judgment.py`) ◀── rows of `warnings`

Farms are judged from their fourth day on: earlier there are too few days for a comparison. Each entry with an author
ends with a syntactically valid proof, because the pipeline checks only the form of proofs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline.decode.columns import Row, record_batches
from pipeline.gold.answers import answer_sql
from pipeline.gold.tables import Gold
from pipeline.lake import Lake
from pipeline.load_model import EPOCH_MS, LoadModel
from pipeline.planned_failures import DAY_MS, Kind
from pipeline.serve.query import documents
from pipeline.tables.tasks import outcome_of, work
from tests.pipeline.warning_judgment import JudgedFarm, Judgment, Warned, judge

HISTORY_DAYS = 3
WINDOW_MS = 60_000
ENTRIES_PER_BATCH = 100_000
CLUSTER = "0f" * 16
_CLOCK = b'{"clock":{"time":'
_PROOF = b',"proof":"' + b"A" * 43 + b".1." + b"A" * 86 + b'"}'


@dataclass(frozen=True, slots=True)
class MadeFarm:
    """A farm, and the directory of its tables."""

    model: LoadModel
    output: Path


@dataclass(frozen=True, slots=True)
class WarnedFarm:
    """A farm, and its warnings on all days."""

    model: LoadModel
    warnings: tuple[Warned, ...]

    def between(self, begins_ms: int, ends_ms: int) -> JudgedFarm:
        """Return the part of the farm between two times."""
        return JudgedFarm(self.model.routers, begins_ms, ends_ms, self.model.labels, self.warnings)


def made_farm(directory: Path, seed: int, routers: int, days: int, kinds: Mapping[Kind, int]) -> MadeFarm:
    """Write the tables of a farm into `directory`."""
    model = LoadModel(routers, days, seed, kinds)
    output = directory / f"farm-{seed}"
    _make_tables(model, output)
    return MadeFarm(model, output)


def query_warnings(farm: MadeFarm, sql: str | None = None) -> WarnedFarm:
    """Return the farm with its warnings of all days. `sql` replaces the built-in query."""
    text = answer_sql("warnings", warned_days=round(farm.model.days)) if sql is None else sql
    return WarnedFarm(farm.model, tuple(Warned.of(row) for row in documents(farm.output, text)))


def by_days(farms: Sequence[WarnedFarm]) -> Judgment:
    begins_ms = EPOCH_MS + HISTORY_DAYS * DAY_MS
    return judge(each.between(begins_ms, EPOCH_MS + int(each.model.days * DAY_MS)) for each in farms)


def _make_tables(model: LoadModel, output: Path) -> None:
    """Write base tables and derived tables in this process."""
    gold = Gold(output, WINDOW_MS)
    lake = Lake(output, WINDOW_MS, note=gold.note)
    number = -1
    for number, batches in enumerate(_batches(model)):
        lake.write_outcome(outcome_of(work(lake.plan, batches)), number)
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
