"""Questions that operators ask again and again, each a SELECT over the tables that is asked by its name.

`garlicfarm pipeline query slo` asks the one, and `reliability` the other. What a figure means stands at the top of each
file.
"""

from pathlib import Path

ANSWERS = ("slo", "reliability")
OBJECTIVE_PERCENT = 99.5
_PPM_OF_PERCENT = 10_000
_HERE = Path(__file__).parent


def answer_sql(name: str, objective_percent: float = OBJECTIVE_PERCENT) -> str:
    """The SELECT of one of `ANSWERS`. `objective_percent`: below 100, of the good windows that `slo` judges by."""
    text = (_HERE / f"{name}.sql").read_text(encoding="utf-8")
    return text.replace("$objective_ppm", str(round(objective_percent * _PPM_OF_PERCENT)))
