"""Frequent questions of operators, each a SELECT over the tables with a name.

    NAME.sql    first line     -- its subject, shown in the help of `garlicfarm pipeline query`
                `-- empty: `   optional: the reason for an answer without rows, if all its tables have rows
                comment        the meaning and the source of each figure
                one SELECT     over the tables; `$word` is replaced by a value

Each file in this directory is a question; a separate list does not exist. The text uses only the common language of
DuckDB and Spark, like the text of the derived tables (`pipeline/gold/refreshing.py`).
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

OBJECTIVE_PERCENT = 99.5
WARNED_DAYS = 1


@dataclass(frozen=True, slots=True)
class GossipTiming:
    """The gossip options of a farm's nodes, which `detection` needs; neither log nor traces contain them."""

    probe_period_ms: int
    suspicion_multiplier: int
    suspicion_max_multiplier: int


GOSSIP_TIMINGS = {"lan": GossipTiming(1_000, 4, 6), "local": GossipTiming(250, 8, 6)}
"""The values for the node's setting `gossip.timing`, equal to the presets of `gossip`."""
LAN = GOSSIP_TIMINGS["lan"]
_PPM_OF_PERCENT = 10_000
_HERE = Path(__file__).parent
_MARK, _EMPTY = "-- ", "-- empty: "
_TEXTS = {file.stem: file.read_text(encoding="utf-8") for file in sorted(_HERE.glob("*.sql"))}
ANSWERS = {name: text.splitlines()[0].removeprefix(_MARK) for name, text in _TEXTS.items()}
"""The subject of each answer, by its name."""
FACTOR_STEPS = "factor-steps"
SUBJECTS = {**ANSWERS, FACTOR_STEPS: "inputs of each factor in the last entry of factors, step by step"}
"""The subject of each named query of the command `query`."""


def why_empty(name: str) -> str | None:
    """Return the reason that the text has for an answer without rows from tables with rows; otherwise None."""
    reasons = (line.removeprefix(_EMPTY) for line in _TEXTS[name].splitlines() if line.startswith(_EMPTY))
    return next(reasons, None)


@dataclass(frozen=True, slots=True)
class Around:
    """The time of `changes`: a moment, and the minutes before and after it."""

    moment: datetime | None = None
    """The default is the start of each farm's last outage."""
    minutes: float = 30.0


OUTAGE = Around()


def answer_sql(
    name: str,
    objective_percent: float = OBJECTIVE_PERCENT,
    timing: GossipTiming = LAN,
    warned_days: int = WARNED_DAYS,
    around: Around = OUTAGE,
) -> str:
    """Return the SELECT of one of `ANSWERS`.

    `objective_percent`: below 100, the share of good windows for `slo`. `timing`: of the gossip for `detection`.
    `warned_days`: the period of `warnings`. `around`: the time of `changes`.
    """
    moment = around.moment
    values = {
        "$objective_ppm": round(objective_percent * _PPM_OF_PERCENT),
        "$warned_days": warned_days,
        "$probe_period_ms": timing.probe_period_ms,
        "$suspicion_multiplier": timing.suspicion_multiplier,
        "$suspicion_max_multiplier": timing.suspicion_max_multiplier,
        "$moment": "NULL" if moment is None else f"timestamp_millis({round(moment.timestamp() * 1000)})",
        "$around_ms": round(around.minutes * 60_000),
    }
    sql = _TEXTS[name]
    for word, value in values.items():
        sql = sql.replace(word, str(value))
    return sql
