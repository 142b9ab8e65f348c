"""`garlicfarm pipeline what-if-alerts`: the alerts of the recorded past, with the present and another setting.

    what-if-alerts --keep-firing 30 ─▶ `alert_history` (pipeline/serve) ─▶ outages: in both, only present, only other

The command only reads tables; it does not contact a farm. Two outages of a server under the two settings are the same
alert if they overlap.
"""

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import click

from pipeline.cli.alerts import KEEP_FIRING_MINUTES
from pipeline.cli.options import IntegerRange, NumberRange, tables_option
from pipeline.cli.queries import reported_query_errors
from pipeline.output.buckets import Output
from pipeline.serve.gaps import lines
from pipeline.serve.printing import echo, print_json, print_table, span
from pipeline.watch.machine import PRESENT_RULES, SILENT_AFTER_PERIODS

SHOWN = 100


@click.command("what-if-alerts")
@click.option(
    "--keep-firing",
    "keep_minutes",
    type=NumberRange(0.0, 1_440.0),
    help=f"Minutes that a server must stay healthy before its alert ends, instead of {KEEP_FIRING_MINUTES:g}.",
)
@click.option(
    "--silent-periods",
    type=IntegerRange(1, 1_000),
    help=f"Missed reporting periods before the state `silent`, instead of {SILENT_AFTER_PERIODS}.",
)
@click.option(
    "--worse-after",
    type=IntegerRange(1, 1_000),
    help=f"Bad reports in a row that make a server unhealthy, instead of {PRESENT_RULES.worse_after}.",
)
@click.option(
    "--better-after",
    type=IntegerRange(1, 1_000),
    help=f"Good reports in a row that make a server healthy, instead of {PRESENT_RULES.better_after}.",
)
@click.option(
    "--lag-bad-ms",
    type=NumberRange(1.0, 1e9),
    help=f"Limit of job lag, instead of {PRESENT_RULES.lag_bad_ms:g}: above it a report is bad, below half of it good.",
)
@click.option(
    "--healthy-share",
    type=NumberRange(0.0, 1.0),
    help=f"Least share of healthy destinations of a good report, instead of {PRESENT_RULES.healthy_share:g}.",
)
@click.option(
    "--days", default=7.0, show_default=True, type=NumberRange(0.01, 3650), help="Length of the past to replay."
)
@tables_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each alert.")
def what_if_alerts(
    *, keep_minutes: float | None, silent_periods: int | None, days: float, output: Output, as_json: bool, **rules: Any
) -> None:
    """Compute the alerts of the recorded past with another setting, and compare them with the present ones.

    The setting `present` is the defaults of `run`, even if the run had another --alert-keep-firing. An alert of `both`
    settings is shown as the other setting causes it.
    """
    changes = {name: value for name, value in rules.items() if value is not None}
    if not changes and keep_minutes is None and silent_periods is None:
        raise click.UsageError("name a setting to change, such as --keep-firing 30")
    if "lag_bad_ms" in changes:
        changes["lag_good_ms"] = changes["lag_bad_ms"] / 2
    with reported_query_errors():
        from pipeline.serve.alert_history import AlertSetting, alert_history  # noqa: PLC0415 - DuckDB is large
        from pipeline.serve.query import stored_gaps  # noqa: PLC0415

        present = AlertSetting(round(KEEP_FIRING_MINUTES * 60_000))
        tried = AlertSetting(
            present.keep_firing_ms if keep_minutes is None else round(keep_minutes * 60_000),
            replace(PRESENT_RULES, **changes),
            silent_periods or SILENT_AFTER_PERIODS,
        )
        before, after = alert_history(output, (present, tried), days)
        gaps = stored_gaps(output)
    for text in lines(gaps, output):
        echo(text, err=True)
    both = [("both" if any(each.overlaps(other) for other in before) else "other", each) for each in after]
    only = [("present", each) for each in before if not any(each.overlaps(other) for other in after)]
    found = sorted([*both, *only], key=lambda each: (each[1].began_ms, each[1].farm, each[1].server_id))
    if as_json:
        for setting, each in found:
            print_json(json.dumps({"setting": setting, **asdict(each)}))
        return
    echo(f"Alerts with the present setting: {len(before):,}; with the other setting: {len(after):,}", bold=True)
    echo("The present setting is the defaults of `run`. A row `both` shows the alert of the other setting.")
    print_table(
        ("setting", "farm", "server", "began", "lasted", "failures", "reason"),
        [
            (
                setting,
                each.farm,
                f"{each.server_id}",
                f"{datetime.fromtimestamp(each.began_ms / 1000, UTC):%F %T}Z",
                "" if each.ended_ms is None else span(each.ended_ms - each.began_ms),
                f"{each.failures}",
                each.reason,
            )
            for setting, each in found[-SHOWN:]
        ],
    )
    if len(found) > SHOWN:
        echo(f"These are the last {SHOWN} of {len(found):,} alerts; --json gives all", err=True)
