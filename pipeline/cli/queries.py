"""The commands that read the tables without a JVM: `query`, `report` and `views`."""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline import INSTALL
from pipeline.cli.options import NumberRange, file_path, tables_option, write_file
from pipeline.gold.answers import (
    ANSWERS,
    FACTOR_STEPS,
    GOSSIP_TIMINGS,
    LAN,
    OBJECTIVE_PERCENT,
    OUTAGE,
    SUBJECTS,
    Around,
    answer_sql,
    why_empty,
)
from pipeline.output.buckets import Output
from pipeline.serve.gaps import lines
from pipeline.serve.printing import echo, echo_whole, is_terminal, print_csv, print_json, print_table

ROWS_SHOWN = 200
_NAME = re.compile(r"[\w-]+")
PACKAGES = {"duckdb": "DuckDB", "vl_convert": "vl-convert-python"}
"""Packages loaded at first use, by the names of their modules."""
_WATCHED = (
    "`run` and `run --once --watch` watch the servers; `run --once` and `backfill` do not. To watch entries of the"
    " past, read the log again into another --output"
)
_TRACED = (
    "`run` reads the traces of one farm's running nodes, or of files with --trace-files; with --directory, --farms"
    " and --kafka the pipeline does not read traces"
)
_ALERTED = (
    "`run` with --alert-webhook, --alert-webhook-file or --alert-command fills it when a server is unhealthy or does"
    " not report; earlier outages are in `transitions`"
)
_FILLED_BY = {
    "alerts": _ALERTED,
    "alerting_states": "`run` with a receiver of alerts, such as --alert-webhook, fills it",
    "transitions": _WATCHED,
    "current_watched": _WATCHED,
    "events": _TRACED,
    "detections": f"it has rows of suspected nodes; {_TRACED}",
    "convergence": _TRACED,
    "members": _TRACED,
    "closest_floodfills": "`garlicfarm pipeline floodfills` makes it",
}
"""For each table that only some runs fill: the run or command that fills it."""

if TYPE_CHECKING:
    from pipeline.serve.query import Answer


def a_moment(value: str) -> datetime:
    """Return the time in UTC of a text in the form of ISO 8601. A text without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is not a time: write it as 2026-11-28T23:10Z", param_hint="--at") from None


_LISTED = "\n".join(f"{name.ljust(max(map(len, SUBJECTS)))}  {subject}" for name, subject in sorted(SUBJECTS.items()))
_QUERY_HELP = f"""Run one SELECT over the tables, or a named query.

A SELECT is for example "SELECT * FROM current_routers". The named queries are:

\b
{_LISTED}

SHOW TABLES lists the tables, DESCRIBE TABLE their columns; `garlicfarm help pipeline-tables` explains them.
"""  # noqa: S608 - no SQL but an example


@click.command(help=_QUERY_HELP)
@click.argument("sql")
@tables_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each row.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, with a header line.")
@click.option(
    "--objective",
    type=NumberRange(0.0, 99.9999),
    help=f"For `slo`: the objective, in percent of time. Default: {OBJECTIVE_PERCENT}.",
)
@click.option(
    "--gossip-timing",
    type=click.Choice([*GOSSIP_TIMINGS]),
    help="For `detection`: the setting `gossip.timing` of the farm's nodes. Default: lan.",
)
@click.option(
    "--at",
    "moment",
    callback=lambda _, __, value: None if value is None else a_moment(value),
    metavar="TIME",
    help="For `changes`: a log time, such as 2026-11-28T23:10Z. Default: the start of each farm's last outage."
    " For `factor-steps`: explain the last entry up to TIME.",
)
@click.option(
    "--minutes",
    type=NumberRange(0.1, 1_000_000.0),
    help=f"For `changes`: the minutes before and after the time of --at. Default: {OUTAGE.minutes:g}.",
)
def query(
    *,
    sql: str,
    output: Output,
    as_json: bool,
    as_csv: bool,
    objective: float | None,
    gossip_timing: str | None,
    moment: datetime | None,
    minutes: float | None,
) -> None:
    """Answer a SELECT, or one of `SUBJECTS`."""
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two formats: choose one")
    for option, value, owners in (
        ("--objective", objective, ("slo",)),
        ("--gossip-timing", gossip_timing, ("detection",)),
        ("--at", moment, ("changes", FACTOR_STEPS)),
        ("--minutes", minutes, ("changes",)),
    ):
        if value is not None and sql not in owners:
            raise click.UsageError(f"{option} belongs to `{'` and `'.join(owners)}`, and this is another query")
    name = sql if sql in ANSWERS else None
    if name is not None:
        timing = LAN if gossip_timing is None else GOSSIP_TIMINGS[gossip_timing]
        around = Around(moment, OUTAGE.minutes if minutes is None else minutes)
        sql = answer_sql(name, OBJECTIVE_PERCENT if objective is None else objective, timing, around=around)
    elif _NAME.fullmatch(sql) and sql != FACTOR_STEPS:
        raise click.UsageError(f"unknown query {sql!r}: use one of {', '.join(sorted(SUBJECTS))}, or a SELECT")
    with reported_query_errors():
        if sql == FACTOR_STEPS:
            from pipeline.serve.factor_steps import factor_steps  # noqa: PLC0415 - DuckDB is large

            answer = factor_steps(output, moment)
            _print_answer(answer, output, as_json=as_json, as_csv=as_csv)
            if not (answer.has_rows or answer.empty):
                echo(f"No rows: the tables contain no entry of factors up to {_plain(moment)}", err=True)
            return
        from pipeline.serve.query import query_result  # noqa: PLC0415 - DuckDB is large

        with query_result(output, sql, with_gaps=True) as answer:
            _print_answer(answer, output, as_json=as_json, as_csv=as_csv)
            if not (answer.has_rows or answer.empty or name is None) and (why := why_empty(name)):
                echo(f"No rows: {why}", err=True)


def _print_answer(answer: "Answer", output: Output, *, as_json: bool, as_csv: bool) -> None:
    for name in answer.empty:
        echo(f"{name} is empty: {_FILLED_BY.get(name, 'the read entries do not produce any')}", err=True)
    for line in lines(answer.gaps, output):
        echo(line, err=True)
    if as_json:
        for row in answer.documents():
            print_json(_json(row))
    elif as_csv:
        print_csv(chain([answer.columns], ([_plain(value) for value in row] for row in answer.rows)))
    else:
        _print(answer)


@click.command()
@click.option("--html", required=True, type=file_path, help="The page to write.")
@tables_option
@click.option("--show-destinations", is_flag=True, help="Show the addresses of destinations, not pseudonyms.")
@click.option(
    "--objective",
    type=NumberRange(0.0, 99.9999),
    default=OBJECTIVE_PERCENT,
    show_default=True,
    help="The objective of error budgets, in percent of time.",
)
def report(*, html: Path, output: Output, show_destinations: bool, objective: float) -> None:
    """Write one page: the health of the servers, the worst first, and charts of their history."""
    with reported_query_errors():
        from pipeline.serve.report import make_report  # noqa: PLC0415 - it loads DuckDB and Vega

        page = make_report(output, datetime.now(UTC), show_destinations=show_destinations, objective_percent=objective)
        write_file(html, page)
    echo(f"The report is in {html}: one file, without external content.")


@click.command()
@tables_option
def views(*, output: Output) -> None:
    """Print SQL that opens the tables in DuckDB for other programs.

    It makes a view of each table, and of each named query except `factor-steps`.
    """
    with reported_query_errors():
        from pipeline.serve.views import view_statements  # noqa: PLC0415 - DuckDB is large

        for statement in view_statements(output):
            for line in statement.splitlines():
                echo_whole(line)


@contextmanager
def reported_query_errors() -> Iterator[None]:
    """End a command with a plain error when a package is missing, or the tables cannot be read."""
    try:
        from pipeline.serve.query import QueryError  # noqa: PLC0415 - DuckDB is large

        try:
            yield
        except BrokenPipeError:
            raise
        except (QueryError, OSError) as error:
            raise click.ClickException(str(error)) from error
    except ImportError as error:
        if error.name not in PACKAGES:
            raise
        raise click.ClickException(f"{PACKAGES[error.name]} is not installed; install it with: {INSTALL}") from error


def _print(answer: "Answer") -> None:
    columns = answer.columns
    rows = [[_shown(value) for value in row] for row in islice(answer.rows, ROWS_SHOWN)]
    farms = {row[0] for row in rows} if columns[0] == "farm" and len(columns) > 1 else ()
    if is_terminal() and len(farms) == 1:
        # The id of a farm takes much of the width.
        echo(f"farm {rows[0][0]}", bold=True)
        columns, rows = columns[1:], [row[1:] for row in rows]
    print_table(columns, rows)
    if next(answer.rows, None) is not None:
        echo(
            f"These are the first {ROWS_SHOWN} rows. Use --json or --csv for all, or LIMIT in the query for fewer",
            err=True,
        )


def _shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.10g}"
        case _:
            return str(_plain(value))


def _json(value: Any) -> str:
    return json.dumps(_finite(value), default=_plain)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON cannot hold, and convert keys to texts."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [_finite(each) for each in value]
        case dict():
            return {str(_plain(key)): _finite(each) for key, each in value.items()}
        case _:
            return value


def _plain(value: Any) -> Any:
    match value:
        case list() | dict():
            return _json(value)
        case datetime() if value.tzinfo is None:
            # A query removed the zone of this timestamp: it is printed unchanged, not as this machine's time.
            return value.isoformat(timespec="milliseconds")
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case str() | int() | float() | None:
            return value
        case _:
            return str(value)
