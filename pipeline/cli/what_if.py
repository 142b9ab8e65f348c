"""`garlicfarm pipeline what-if`: repeats the weighing of the recorded past, with the present and with another setting.

    what-if --gain 4 ─▶ `replayed` (pipeline/serve/history.py) ─▶ each farm: present | other, then its servers

The command only reads tables; it does not contact a farm.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from pipeline.cli.options import IntegerRange, NumberRange, StatusLine, reported_errors, tables_option
from pipeline.cli.queries import reported_query_errors
from pipeline.feedback.replay import Course, Past, ServerCourse
from pipeline.feedback.weighing import HIGHEST, PRESENT, SERVERS_MAX, Setting
from pipeline.output.buckets import Output
from pipeline.serve.gaps import lines
from pipeline.serve.printing import echo, print_json, print_table, span

DAY_MS = 86_400_000
SERVERS_SHOWN = 20
LEFT_AT = 1.2
SETTINGS = ("present", "other")
SHARES_OFF = 1e-6
"""The tolerance of a sum of shares, for rounded texts of numbers."""


@click.command("what-if")
@click.option("--gain", type=NumberRange(0.0, 1000.0), help=f"The gain, instead of {PRESENT.gain:g}.")
@click.option(
    "--shares",
    nargs=3,
    type=NumberRange(0.0, 1.0),
    metavar="LAG ABSENCE ILLNESS",
    help="The shares of the strain, together 1, instead of"
    f" {PRESENT.lag_share:g} {PRESENT.absence_share:g} {PRESENT.illness_share:g}.",
)
@click.option(
    "--report-weight",
    type=NumberRange(0.0, 1.0, min_open=True),
    help=f"Weight of a new report in lag and illness, instead of {PRESENT.report_weight:g}.",
)
@click.option(
    "--period-weight",
    type=NumberRange(0.0, 1.0, min_open=True),
    help=f"Weight of a new period in absence, instead of {PRESENT.period_weight:g}.",
)
@click.option(
    "--change-min",
    type=NumberRange(0.0, 1.0),
    help=f"The smallest change of a factor that causes an entry, instead of {PRESENT.change_min:g}.",
)
@click.option(
    "--pause-periods",
    type=IntegerRange(0, 1000),
    help=f"Reporting periods between two entries, instead of {PRESENT.pause_periods}; at most five minutes.",
)
@click.option(
    "--left-at",
    default=LEFT_AT,
    show_default=True,
    type=NumberRange(1.0, HIGHEST, min_open=True),
    help="A bad server with this factor or more counts as left by its clients.",
)
@click.option(
    "--days",
    default=7.0,
    show_default=True,
    type=NumberRange(0.01, 3650),
    help="Length of the past to replay, in log time before the end of each farm's tables.",
)
@tables_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each farm.")
def what_if(*, left_at: float, days: float, output: Output, as_json: bool, **parameters: Any) -> None:
    """Compute the factors of the recorded past with another setting, and compare them with the present ones."""
    setting = _setting(**parameters)
    line = StatusLine()
    with reported_query_errors(), reported_errors(line):
        from pipeline.serve.history import replayed  # noqa: PLC0415 - DuckDB is large
        from pipeline.serve.query import stored_gaps  # noqa: PLC0415

        settings = (PRESENT, setting)
        pasts = replayed(output, settings, left_at, int(days * DAY_MS), lambda day: line.show(f"{day}"))
        gaps = stored_gaps(output)
    if not any(past.windows for past in pasts.values()):
        raise click.ClickException(
            f"{output} does not contain a report with a window in router_health. Read a log with `garlicfarm pipeline"
            " run`, or `backfill` without --no-derived"
        )
    for text in lines(gaps, output):
        echo(text, err=True)
    for farm, past in sorted(pasts.items()):
        if len(past.health) > SERVERS_MAX:
            echo(
                f"Farm {farm} has {len(past.health):,} servers in these days. A farm has at most {SERVERS_MAX} at a"
                f" time, and the calculation uses the {SERVERS_MAX} servers with the last reports: ignore the figures"
                " of the others. Choose fewer --days, or `generate` a log with fewer --routers",
                err=True,
            )
        if as_json:
            print_json(json.dumps(_document(farm, past)))
        else:
            _print(farm, past)


def _setting(*, shares: tuple[float, float, float] | None, **others: float | None) -> Setting:
    changes: dict[str, Any] = {name: value for name, value in others.items() if value is not None}
    if shares is not None:
        if abs(sum(shares) - 1) > SHARES_OFF:
            raise click.BadParameter(
                f"the shares must add up to 1, not {' + '.join(f'{each:g}' for each in shares)}", param_hint="--shares"
            )
        changes |= zip(("lag_share", "absence_share", "illness_share"), shares, strict=True)
    if not changes:
        raise click.UsageError("name a parameter to change, such as --gain 4")
    return replace(PRESENT, **changes)


def _print(farm: str, past: Past) -> None:
    echo(
        f"Farm {farm}: {span(past.length_ms())} of log time in {past.windows:,} windows, {len(past.health):,} servers;"
        f" {past.recorded_entries:,} entries of factors were recorded",
        bold=True,
    )
    changed = [name for name, value in asdict(PRESENT).items() if value != getattr(past.courses[-1].setting, name)]
    print_table(
        ("", *SETTINGS),
        [
            *_figures(past.courses, [(name.replace("_", " "), _attribute(name)) for name in changed]),
            *_figures(
                past.courses,
                [
                    ("entries submitted", lambda course: f"{course.entries:,}"),
                    ("factors in them", lambda course: f"{course.factors_proposed:,}"),
                    ("mean factor", lambda course: _fixed(course.factor.mean)),
                    ("its deviation", lambda course: _fixed(course.factor.deviation)),
                    ("times that a bad server was left", lambda course: _times(past, course)),
                    ("median time until then", lambda course: _span(_median(course))),
                    ("weight on servers bad in the next window", lambda course: _percent(course.bad_share.mean)),
                ],
            ),
        ],
    )
    if past.bad_share.mean is not None:
        echo(f"Without any factors {_percent(past.bad_share.mean)} of the weight would have been on bad servers.")
    _print_servers(past)


def _figures(courses: Sequence[Course], figures: Sequence[tuple[str, Callable[[Course], str]]]) -> list[list[str]]:
    return [[name, *(value(course) for course in courses)] for name, value in figures]


def _attribute(name: str) -> Callable[[Course], str]:
    return lambda course: f"{getattr(course.setting, name):g}"


def _print_servers(past: Past) -> None:
    servers = _worst_first(past)
    rows = []
    for server in servers[:SERVERS_SHOWN]:
        health, courses = past.health[server], _courses(past, server)
        rows.append(
            [
                f"{server}",
                f"{health.bad_windows:,}/{health.windows:,}",
                f"{health.spells}",
                *(f"{_fixed(each.factor.mean)}±{_fixed(each.factor.deviation)}" for each in courses),
                *(_left(each, health.spells) for each in courses),
            ]
        )
    print_table(("server", "bad windows", "times", "factor", "other factor", "left", "other left"), rows)
    if len(servers) > SERVERS_SHOWN:
        echo(f"These are the worst {SERVERS_SHOWN} of {len(servers):,} servers; --json gives all", err=True)


def _document(farm: str, past: Past) -> dict[str, Any]:
    """Return all figures of a farm; times are in milliseconds."""
    document: dict[str, Any] = {
        "farm": farm,
        "days": round(past.length_ms() / DAY_MS, 6),
        "windows": past.windows,
        "recorded_entries": past.recorded_entries,
        "bad_weight_share_without": past.bad_share.mean,
    }
    for name, course in zip(SETTINGS, past.courses, strict=True):
        document[name] = {
            "setting": asdict(course.setting),
            "entries": course.entries,
            "factors": course.factors_proposed,
            "factor_mean": course.factor.mean,
            "factor_deviation": course.factor.deviation,
            "left": sum(len(each.left_ms) for each in course.servers.values()),
            "left_median_ms": _median(course),
            "bad_weight_share": course.bad_share.mean,
        }
    document["servers"] = [
        {
            "server_id": server,
            "windows": past.health[server].windows,
            "bad_windows": past.health[server].bad_windows,
            "times_bad": past.health[server].spells,
            **{
                name: {
                    "factor_mean": each.factor.mean,
                    "factor_deviation": each.factor.deviation,
                    "left": len(each.left_ms),
                    "left_median_ms": each.median_left_ms,
                }
                for name, each in zip(SETTINGS, _courses(past, server), strict=True)
            },
        }
        for server in _worst_first(past)
    ]
    return document


def _worst_first(past: Past) -> list[int]:
    return sorted(past.health, key=lambda server: (-past.health[server].bad_windows, server))


def _courses(past: Past, server: int) -> list[ServerCourse]:
    return [course.servers.get(server, ServerCourse()) for course in past.courses]


def _median(course: Course) -> int | None:
    every = ServerCourse(left_ms=[each for server in course.servers.values() for each in server.left_ms])
    return every.median_left_ms


def _times(past: Past, course: Course) -> str:
    left = sum(len(each.left_ms) for each in course.servers.values())
    return f"{left:,} of {sum(each.spells for each in past.health.values()):,}"


def _left(course: ServerCourse, spells: int) -> str:
    return "" if not spells else f"{len(course.left_ms)}: {_span(course.median_left_ms)}" if course.left_ms else "never"


def _span(milliseconds: int | None) -> str:
    return "" if milliseconds is None else span(milliseconds)


def _fixed(number: float | None) -> str:
    return "" if number is None else f"{number:.3f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.3%}"
