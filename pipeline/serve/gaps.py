"""Entries that the tables lack, by farm: every answer, report and alert message shows them.

    ranges ─▶ ranges of each batch in order ─▶ entries between them            ─▶ can be read again by a repair
                                            └▶ rows of kind `gone` of a repair ─▶ cannot be read again

Only the small table `ranges` is read. Lost rows of a base table are not found here. A query refuses a table whose files
and last commit differ in the number of rows, or that ends before the record of batches (`query.py`). The dates of
missing entries are unknown, so a gap has the days of the entries before and after it.

A topic lacks the entries that are not for its readers, inside batches and between them. So if the record of batches or
the checkpoint shows that the tables are from a topic, only the rows of kind `gone` are gaps. Spark reads a topic's
offsets without a gap, and stops if the topic has lost records. A run refuses a checkpoint that does not fit the record
of batches. Entries before the first one read are not a gap: a run may begin anywhere in the log.
"""

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from pipeline.local.checkpoint import CHECKPOINT, is_of_topic
from pipeline.output.buckets import Output
from pipeline.tables.batch_notes import noted_batches
from pipeline.tables.specs import LOG

GAPS_SQL = """
WITH batches AS (
  SELECT farm, kind, batch_id, min(day) AS first_day, max(day) AS last_day,
    min(coalesce(first_index, 0)) AS first_index, max(last_index) AS last_index
  FROM ranges WHERE name = 'log' AND kind <> 'dropped' GROUP BY farm, kind, batch_id
),
in_order AS (
  SELECT *, max(last_index) OVER earlier AS before, max(last_day) OVER earlier AS day_before,
    min(first_day) OVER later AS day_after
  FROM batches
  WINDOW
    earlier AS (
      PARTITION BY farm ORDER BY first_index, last_index ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
    later AS (PARTITION BY farm ORDER BY first_index, last_index ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
)
SELECT farm, first_index AS first, last_index AS last, true AS is_gone, day_before AS after, day_after AS until
FROM in_order WHERE kind = 'gone'
UNION ALL
SELECT farm, before + 1, first_index - 1, false, day_before, coalesce(first_day, day_after)
FROM in_order WHERE first_index > before + 1
ORDER BY 1, 2
"""
NOT_OF_THE_LOG = frozenset({"ranges", "events", "members", "convergence", "closest_floodfills", "alerting_states"})
"""Tables that gaps of the log do not affect. `ranges` shows the gaps itself."""
FARMS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries of a farm that the tables lack, including both ends."""

    farm: str
    first: int
    last: int
    is_gone: bool
    """True if a repair found that the farm does not have the entries any more."""
    after: date | None
    """The day of the entries before; None at the beginning, or if it is unknown."""
    until: date | None
    """The day of the entries after; None at the end, or if it is unknown."""

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.last - self.first + 1

    def reaches(self, day: date) -> bool:
        """Return True if the gap may contain entries of this day or later ones."""
        return self.until is None or self.until >= day

    @property
    def days(self) -> str:
        """The days between which the entries were written, as text."""
        match self.after, self.until:
            case None, None:
                return "of unknown days"
            case None, until:
                return f"until {until}"
            case after, None:
                return f"since {after}"
            case after, until:
                return f"of {after}" if after == until else f"of {after} to {until}"


def gaps_of(output: Output, run_query: Callable[[str], list[dict[str, Any]]]) -> tuple[Gap, ...]:
    """Return all gaps, by farm and index. Raise TableDamagedError."""
    found = [Gap(**row) for row in run_query(GAPS_SQL)]
    if not found:
        return ()
    record = noted_batches(output, LOG)
    # Earlier versions did not record the kind of source.
    of_topic = (record is not None and record.of_topic) or is_of_topic(output / CHECKPOINT)
    return tuple(each for each in found if each.is_gone or not of_topic)


def concerns(tables: Collection[str]) -> bool:
    """Return True if a gap of the log may change an answer from these tables."""
    return bool(tables) and not NOT_OF_THE_LOG.issuperset(tables)


def lines(gaps: Sequence[Gap], output: Output | str) -> Iterator[str]:
    """Yield a line for each farm, with the remedy for the output directory."""
    chosen = f"--output {shlex.quote(str(output))}"
    listed = f"`garlicfarm pipeline query completeness {chosen}` lists the days"
    repaired = f"`garlicfarm pipeline repair {chosen}` reads them again"
    farms = list(dict.fromkeys(each.farm for each in gaps))
    for farm in farms[:FARMS_SHOWN]:
        found = [each for each in gaps if each.farm == farm]
        remedy = listed if all(each.is_gone for each in found) else f"{listed}, {repaired}"
        yield f"farm {farm} has a gap: {sentence(found)}; {remedy}"
    if len(farms) > FARMS_SHOWN:
        yield f"{len(farms) - FARMS_SHOWN:,} more farms have gaps; {listed}"


def sentence(gaps: Sequence[Gap]) -> str:
    """Return the number, the indexes and the days of the missing entries of one farm."""
    first, last = gaps[0], gaps[-1]
    span = Gap(first.farm, first.first, last.last, is_gone=False, after=first.after, until=last.until)
    missing, gone = sum(each.entries for each in gaps), sum(each.entries for each in gaps if each.is_gone)
    where = f"between {first.first} and {last.last}" if len(gaps) > 1 else f"{first.first} to {last.last}"
    lost = (
        "" if not gone else ", which the farm does not have any more" if gone == missing else f", {gone:,} of them gone"
    )
    noun, verb = ("entry", "is") if missing == 1 else ("entries", "are")
    return f"{missing:,} {noun} {span.days} {verb} missing ({where}){lost}"
