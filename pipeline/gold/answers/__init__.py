"""Questions that operators ask again and again, each a SELECT over the tables that is asked by its name.

    NAME.sql    first line    -- what it answers, as the help of `garlicfarm pipeline query` tells it
                comment       what each figure means, and where it comes from
                one SELECT    over the tables; `$word` stands for a value that is put in

A file in this directory is a question that can be asked; nothing else lists them. The text keeps to what DuckDB and
Spark both understand, as that of the derived tables does (`pipeline/gold/refreshing.py`).
"""

from pathlib import Path

OBJECTIVE_PERCENT = 99.5
_PPM_OF_PERCENT = 10_000
_HERE = Path(__file__).parent
_MARK = "-- "


def _help(text: str) -> str:
    return text.splitlines()[0].removeprefix(_MARK)


ANSWERS = {file.stem: _help(file.read_text(encoding="utf-8")) for file in sorted(_HERE.glob("*.sql"))}
"""What each answers, by its name."""


def answer_sql(name: str, objective_percent: float = OBJECTIVE_PERCENT) -> str:
    """The SELECT of one of `ANSWERS`. `objective_percent`: below 100, of the good windows that `slo` judges by."""
    text = (_HERE / f"{name}.sql").read_text(encoding="utf-8")
    return text.replace("$objective_ppm", str(round(objective_percent * _PPM_OF_PERCENT)))
