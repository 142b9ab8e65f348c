"""Questions that operators ask again and again, each a SELECT over the tables that is asked by its name.

    NAME.sql    first line    -- what it answers, as the help of `garlicfarm pipeline query` tells it
                `-- empty: `  what an answer without rows says, if all its tables have rows; a line that may be there
                comment       what each figure means, and where it comes from
                one SELECT    over the tables; `$word` stands for a value that is put in

A file in this directory is a question that can be asked; nothing else lists them. The text keeps to what DuckDB and
Spark both understand, as that of the derived tables does (`pipeline/gold/refreshing.py`).
"""

from dataclasses import dataclass
from pathlib import Path

OBJECTIVE_PERCENT = 99.5
WARNED_DAYS = 1


@dataclass(frozen=True, slots=True)
class GossipTiming:
    """What `detection` expects of a farm's gossip: options of its nodes, of which neither log nor traces tell."""

    probe_period_ms: int
    suspicion_multiplier: int
    suspicion_max_multiplier: int


GOSSIP_TIMINGS = {"lan": GossipTiming(1_000, 4, 6), "local": GossipTiming(250, 8, 6)}
"""By the node's setting `gossip.timing`, as the presets of `gossip` are."""
LAN = GOSSIP_TIMINGS["lan"]
_PPM_OF_PERCENT = 10_000
_HERE = Path(__file__).parent
_MARK, _EMPTY = "-- ", "-- empty: "
_TEXTS = {file.stem: file.read_text(encoding="utf-8") for file in sorted(_HERE.glob("*.sql"))}
ANSWERS = {name: text.splitlines()[0].removeprefix(_MARK) for name, text in _TEXTS.items()}
"""What each answers, by its name."""


def why_empty(name: str) -> str | None:
    """Why one of `ANSWERS` has no rows although each of its tables has some; None if that cannot be."""
    reasons = (line.removeprefix(_EMPTY) for line in _TEXTS[name].splitlines() if line.startswith(_EMPTY))
    return next(reasons, None)


def answer_sql(
    name: str, objective_percent: float = OBJECTIVE_PERCENT, timing: GossipTiming = LAN, warned_days: int = WARNED_DAYS
) -> str:
    """The SELECT of one of `ANSWERS`.

    `objective_percent`: below 100, of the good windows that `slo` judges by. `timing`: of the gossip that `detection`
    judges. `warned_days`: how far back `warnings` looks.
    """
    values = {
        "$objective_ppm": round(objective_percent * _PPM_OF_PERCENT),
        "$warned_days": warned_days,
        "$probe_period_ms": timing.probe_period_ms,
        "$suspicion_multiplier": timing.suspicion_multiplier,
        "$suspicion_max_multiplier": timing.suspicion_max_multiplier,
    }
    sql = _TEXTS[name]
    for word, value in values.items():
        sql = sql.replace(word, str(value))
    return sql
