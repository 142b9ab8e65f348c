"""The commands that read the tables and need no JVM: `query` and `report`."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

ROWS_SHOWN = 200
NO_DUCKDB = "DuckDB is not installed; install it with: make pipeline (in the checkout of garlicfarm)"

if TYPE_CHECKING:
    from pipeline.query import Answer


@dataclass(frozen=True, slots=True)
class _Parts:
    query: Callable[[Path, str], "Answer"]
    make_report: Callable[..., str]


@click.command()
@click.argument("sql")
@click.option(
    "--output",
    default="farm-tables",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the tables.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated, with a line of names.")
def query(*, sql: str, output: Path, as_json: bool, as_csv: bool) -> None:
    """Answer one SELECT over the tables, such as "SELECT * FROM current_routers".

    SHOW TABLES names the tables, DESCRIBE TABLE their columns; docs/pipeline.md says what they mean.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two formats: choose one")
    with _loaded() as parts:
        answer = parts.query(output, sql)
    if as_json:
        for row in answer.documents():
            click.echo(json.dumps(row, default=_plain))
    elif as_csv:
        click.echo(_as_csv(answer), nl=False)
    else:
        _print(answer)


@click.command()
@click.option("--html", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The page to write.")
@click.option(
    "--output",
    default="farm-tables",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the tables.",
)
@click.option("--show-destinations", is_flag=True, help="Tell destinations by their addresses, not by pseudonyms.")
def report(*, html: Path, output: Path, show_destinations: bool) -> None:
    """Write one page with plots: availability, detection, who published and led, lag."""
    with _loaded() as parts:
        page = parts.make_report(output, datetime.now(UTC), show_destinations=show_destinations)
        html.write_text(page, encoding="utf-8")
    click.echo(f"The report is in {html}: one file, nothing in it is loaded from elsewhere.")


@contextmanager
def _loaded() -> Iterator[_Parts]:
    """What asks the tables, loaded when it is used: DuckDB is as large as all else. Errors end the command plainly."""
    try:
        from pipeline.query import QueryError, query  # noqa: PLC0415 - see above
        from pipeline.report import make_report  # noqa: PLC0415 - see above
    except ImportError as error:
        if error.name != "duckdb":
            raise
        raise click.ClickException(NO_DUCKDB) from error
    try:
        yield _Parts(query, make_report)
    except (QueryError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _print(answer: "Answer") -> None:
    console = Console()
    if not answer.columns:
        return
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in answer.columns:
        shown.add_column(column)
    for row in answer.rows[:ROWS_SHOWN]:
        shown.add_row(*("" if value is None else str(_plain(value)) for value in row))
    console.print(shown)
    if len(answer.rows) > ROWS_SHOWN:
        sys.stderr.write(f"{len(answer.rows) - ROWS_SHOWN} more rows; --json and --csv give all, LIMIT fewer\n")


def _as_csv(answer: "Answer") -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows([_plain(value) for value in row] for row in answer.rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case str() | int() | float() | list() | None:
            return value
        case _:
            return str(value)
