"""`garlicfarm pipeline`: runs the pipeline and prints its tables.

Exit codes of every command: 0 done, 1 refused or failed with the reason, 2 wrong usage, 130 interrupted by Ctrl-C or
SIGTERM. These end a command that follows the log with 0, since that is its normal end.
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pipeline.alerts.alerting import Alerting, note_run_without_alerts
from pipeline.cli.alerts import AlertPlace, alert_options, silence
from pipeline.cli.doctor import doctor
from pipeline.cli.floodfills import floodfills
from pipeline.cli.options import (
    Engine,
    IntegerRange,
    NumberRange,
    ProgressLine,
    Start,
    StatusLine,
    SummaryGroup,
    a_window,
    an_address,
    engine_options,
    file_path,
    output_option,
    reported_errors,
    serving_metrics,
    write_file,
)
from pipeline.cli.places import Directory, Farms, LogPlace, Nodes, Topic, place_options, traces_of
from pipeline.cli.queries import query, report, views
from pipeline.cli.repair import repair
from pipeline.cli.what_if import what_if
from pipeline.cli.what_if_alerts import what_if_alerts
from pipeline.feedback.farms import FarmsFeedback
from pipeline.feedback.weighing import SERVERS_MAX
from pipeline.generate import generate
from pipeline.gold.tables import DEFAULT_WINDOW, last_rows
from pipeline.lake import alone_in
from pipeline.load_model import LoadModel
from pipeline.output.buckets import Output
from pipeline.planned_failures import KINDS
from pipeline.run import RANGE_FILE, RunSettings, claim_range, prepare, run_forever, run_once
from pipeline.serve.printing import echo, print_json, print_table, span
from pipeline.source.farm import DEFAULT_ENTRIES_PER_BATCH
from pipeline.source.farms import OLDEST, SNAPSHOT

ROWS_SHOWN = 60
TRIGGER_SECONDS, BUCKET_TRIGGER_SECONDS = 5, 30
DAY_MS = 86_400_000
window_option = click.option(
    "--window",
    default=DEFAULT_WINDOW,
    show_default=True,
    callback=a_window,
    metavar="DURATION",
    help="The span of log time that each row covers, such as '30 seconds' or '1 hour'.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `run` on the command line."""

    place: LogPlace
    engine: Engine
    alerts: AlertPlace | None
    once: bool
    output: Output
    start: str
    window: str
    trigger_seconds: int | None
    entries_per_batch: int
    submit: bool | None
    client_key: Path | None
    with_events: bool
    trace_files: str | None
    keep_days: float | None
    watch: bool | None
    metrics_at: tuple[str, int] | None
    as_json: bool

    @property
    def watches(self) -> bool:
        """Return True if the run watches the servers: their sessions, their health and their missing reports."""
        return (not self.once or self.alerts is not None) if self.watch is None else self.watch

    @property
    def submits(self) -> bool:
        """Return True if factors are submitted: by default to the one farm that a run follows."""
        return (not self.once and isinstance(self.place, Nodes)) if self.submit is None else self.submit

    def refuse_contradictions(self) -> None:
        """Raise click.UsageError for options that contradict each other."""
        self.engine.is_local(self.place)
        if self.alerts is not None and not self.watches:
            raise click.UsageError("alerts need watched servers: leave out --no-watch")
        if self.trace_files is not None and not self.with_events:
            raise click.UsageError("--trace-files reads events, and --no-events omits them: choose one")
        match self.place:
            case Directory():
                return
            case Farms(file=file) if self.start != OLDEST:
                text = f"set `start` of each farm in {file}"
            case Topic() if self.start != OLDEST:
                text = (
                    "set the start of a topic with `--kafka-option startingOffsets=…`, an option of Spark's connector"
                )
            case _ if self.start == SNAPSHOT:
                text = "'snapshot' needs --directory: a running node gives entries only"
            case _:
                return
        raise click.BadParameter(text, param_hint="--start")


@click.group(cls=SummaryGroup)
def pipeline() -> None:
    """History and health of the routers, from the farm's log."""


pipeline.add_command(query)
pipeline.add_command(report)
pipeline.add_command(views)
pipeline.add_command(doctor)
pipeline.add_command(floodfills)
pipeline.add_command(repair)
pipeline.add_command(silence)
pipeline.add_command(what_if)
pipeline.add_command(what_if_alerts)


@pipeline.command()
@click.option("--once", is_flag=True, help="Read the committed entries, print the table, and end.")
@place_options
@output_option("Place of the tables and of the checkpoint.")
@click.option(
    "--start",
    type=Start(),
    default="oldest",
    show_default=True,
    help="The first entry of a new output directory: oldest, snapshot (with --directory), or an index.",
)
@window_option
@engine_options
@click.option(
    "--trigger",
    "trigger_seconds",
    type=IntegerRange(1, 3600),
    help=f"Seconds between batches. Default: {TRIGGER_SECONDS}; {BUCKET_TRIGGER_SECONDS} with a bucket, which charges"
    " for each request. In a directory, the local engine also updates the current state each second.",
)
@click.option(
    "--entries-per-batch",
    default=DEFAULT_ENTRIES_PER_BATCH,
    show_default=True,
    type=IntegerRange(1, 10_000_000),
    help="Maximum number of entries in one micro-batch.",
)
@click.option(
    "--submit/--no-submit",
    default=None,
    help="Submit factors on the costs of leaves to the farms. Default: yes with --node, except with --once.",
)
@click.option(
    "--client-key",
    type=file_path,
    help="Sign the factors with this client key (scope weights); without it the receiving node signs them. With"
    " --farms, set `client_key` of each farm in the file instead.",
)
@click.option(
    "--events/--no-events",
    "with_events",
    default=True,
    show_default=True,
    help="Also read the traces of the nodes. This needs --node or --trace-files.",
)
@click.option(
    "--trace-files",
    metavar="PATTERN",
    help="Read events from these files, one on each line in the form of /v1/events, instead of from the nodes.",
)
@click.option("--keep-days", type=NumberRange(0.01, 36_500), help="Drop history older than this. Default: keep all.")
@click.option(
    "--watch/--no-watch",
    default=None,
    help="Watch each server: keep its sessions, health and missing reports (table transitions). Default: yes; with"
    " --once only if alerts are on.",
)
@click.option(
    "--metrics",
    "metrics_at",
    metavar="[HOST:]PORT",
    callback=an_address,
    help="Serve the metrics of the run for Prometheus at this address; a port alone is on loopback. Default: off.",
)
@alert_options
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON lines.")
def run(*, place: LogPlace, engine: Engine, alerts: AlertPlace | None, **options_given: Any) -> None:
    """Read the log and update the tables; with --once print router health and end."""
    options = RunOptions(place=place, engine=engine, alerts=alerts, **options_given)
    options.refuse_contradictions()
    engine = engine.writing(options.output, place)
    trigger_seconds = TRIGGER_SECONDS if isinstance(options.output, Path) else BUCKET_TRIGGER_SECONDS
    line = ProgressLine()

    def show() -> None:
        line.clear()
        _print(last_rows(options.output, ROWS_SHOWN), as_json=options.as_json)

    with reported_errors(line, endless=not options.once), ExitStack() as held:
        source = {"start": options.start, **place.options(), "maxEntriesPerBatch": str(options.entries_per_batch)}
        for package in engine.fetched(place):
            line.print_line(
                f"Spark loads {package} from its cache, or fetches it from Maven's repository the first time"
            )
        reaches = place.reaches(options.client_key, line.print_line) if options.submits else None
        held.enter_context(alone_in(options.output, line.print_line))
        prepare(options.output)
        metrics = None
        if options.metrics_at is not None:
            metrics = held.enter_context(serving_metrics(*options.metrics_at, line.print_line))
        alerting = None
        if alerts is not None:
            made = Alerting(options.output, alerts.channels, alerts.keep_firing_ms, line.print_line, metrics)
            alerting = held.enter_context(made.running())
        else:
            note_run_without_alerts(options.output)
        session = held.enter_context(engine.opened(place))
        feedback = None if reaches is None else FarmsFeedback(reaches, line.print_line)
        settings = RunSettings(
            options.output,
            source,
            options.window,
            options.trigger_seconds or trigger_seconds,
            line,
            None if feedback is None else feedback.after_batch,
            traces_of(source, options.trace_files) if options.with_events else None,
            options.watches,
            None if options.keep_days is None else int(options.keep_days * DAY_MS),
            line.print_line,
            metrics,
            alerting=alerting,
        )
        if not options.once:
            run_forever(session, settings, show)
            return
        run_once(session, settings)
        if feedback is not None:
            feedback.finish()
        if alerting is not None:
            alerting.finish()
        show()


@pipeline.command()
@place_options
@click.option("--from", "first", required=True, type=IntegerRange(min=1), help="The first index.")
@click.option("--to", "last", required=True, type=IntegerRange(min=1), help="The last index.")
@output_option("A separate directory. After an interruption the same command continues in it.", is_required=True)
@window_option
@engine_options
@click.option(
    "--entries-per-batch",
    default=500_000,
    show_default=True,
    type=IntegerRange(1_000, 10_000_000),
    help="Larger values are faster and need more memory.",
)
@click.option(
    "--derived/--no-derived",
    "with_derived",
    default=True,
    show_default=True,
    help="Also make derived tables, such as router_health. The same command can make them later.",
)
def backfill(
    *,
    place: LogPlace,
    first: int,
    last: int,
    output: Output,
    window: str,
    engine: Engine,
    entries_per_batch: int,
    with_derived: bool,
) -> None:
    """Write the tables of a range of the log, including both ends, into a separate directory."""
    if last < first:
        raise click.UsageError(f"--to {last} is before --from {first}")
    engine, line = engine.writing(output, place), ProgressLine()
    with reported_errors(line), ExitStack() as held:
        source = {
            **place.options(),
            "start": str(first),
            "end": str(last),
            "maxEntriesPerBatch": str(entries_per_batch),
        }
        if not (output / RANGE_FILE).is_file():
            # A repetition skips this check: it passed when the range was recorded, and `claim_range` refuses another
            # range.
            place.refuse_outside(first, last)
        held.enter_context(alone_in(output, line.print_line))
        claim_range(output, first, last)
        prepare(output, part=True)
        session = held.enter_context(engine.opened(place, last - first + 1))
        run_once(
            session, RunSettings(output, source, window, progress=line, notify=line.print_line, derived=with_derived)
        )
    echo(f"Entries {first} to {last} are in {output}.")


@pipeline.command("generate")
@click.option("--routers", default=20, show_default=True, type=IntegerRange(1, 100_000), help="Number of routers.")
@click.option("--days", default=1.0, show_default=True, type=NumberRange(0.001, 3650), help="Length of the log.")
@click.option("--seed", default=1, show_default=True, type=int, help="The same seed produces the same bytes.")
@click.option(
    "--output",
    default="generated-farm",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory to write; it must not exist yet.",
)
@click.option(
    "--labels",
    type=file_path,
    help=(
        "Plan failures, with and without early signs, and write the plan to this file, one JSON line for each failure."
    ),
)
def generate_log(*, routers: int, days: float, seed: int, output: Path, labels: Path | None) -> None:
    """Write the log of a fictional farm, for load tests and demonstrations: read it with `run --directory`."""
    line = StatusLine()
    if routers > SERVERS_MAX:
        echo(
            f"A farm holds {SERVERS_MAX} servers, so {routers} routers make a log that no farm can have. It is for load"
            f" tests of the tables; `what-if` and the weighing use only the {SERVERS_MAX} servers with the most recent"
            " reports.",
            err=True,
        )
    with reported_errors(line):
        model = LoadModel(routers, days, seed, None if labels is None else KINDS)
        done = generate(output, model, lambda entries: line.show(f"{entries} entries"))
        if labels is not None:
            write_file(labels, "".join(f"{label.line()}\n" for label in model.labels))
    echo(
        f"{output}, days: {days:g}, entries: {done.entries}, reports: {done.reports}, routers: {routers},"
        f" changes of the leader: {done.leader_changes}, hostile entries: {done.hostile}."
    )
    if labels is not None:
        failures = sum(label.is_failure for label in model.labels)
        echo(f"{len(model.labels)} labels in {labels}, {failures} of them failures.")


def _print(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(json.dumps({key: _plain(value) for key, value in row.items()}))
        return
    if not rows:
        echo("No report is in the log yet.")
        return
    echo("Router health by window of log time (UTC)", bold=True)
    print_table(
        ("window", "id", "avail", "uptime", "lag p50/p95", "cpu", "healthy", ""),
        [
            (
                f"{row['window_start']:%m-%d %H:%M:%S}",
                f"{row['server_id']}",
                f"{row['availability']:.0%}",
                "unknown" if row["uptime_ms"] is None else span(row["uptime_ms"]),
                f"{_number(row['job_lag_p50_ms'])}/{_number(row['job_lag_p95_ms'])} ms",
                "?" if row["cpu_percent"] is None else f"{row['cpu_percent']:.0f}%",
                "-" if row["healthy_share"] is None else f"{row['healthy_share']:.0%}",
                " ".join(word for word in ("publishing", "restarted") if row[word]),
            )
            for row in rows
        ],
    )


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value
