"""Alerts on the command line: the options of `run` for receivers, and `silence`, which holds back a server's alerts."""

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click

from pipeline.alerts.delivery import Channel, Command, Webhook, webhook_of
from pipeline.alerts.silences import REASON_MAX, Silence, Silences, SilencesError
from pipeline.cli.options import IntegerRange, NumberRange, tables_option
from pipeline.output.buckets import Output
from pipeline.serve.printing import echo, print_json

KEEP_FIRING_MINUTES = 10.0
URL_MAX_BYTES = 8_192
LONGEST_SECONDS = 366 * 86_400
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_KNOWN = """
SELECT 'server' AS kind, CAST(server_id AS VARCHAR) AS text FROM current_routers
UNION SELECT 'server', CASE WHEN json_valid(detail) THEN detail ->> '$.name' END FROM operator_actions
  WHERE action IN ('admission', 'approval')
UNION SELECT 'server', CASE WHEN json_valid(data) THEN data ->> '$.name' END FROM events WHERE kind = 'server-admitted'
UNION SELECT 'farm', unnest([farm, name]) FROM current_farm
"""
"""The ids and names that an alert can have, as in `pipeline/alerts/servers.sql`."""
_LASTING = re.compile(r"(?:\d{1,6}[dhms])+")


@dataclass(frozen=True, slots=True)
class AlertPlace:
    """The receivers of alerts, and the time that a server must be healthy before its alert ends."""

    channels: tuple[Channel, ...]
    keep_firing_ms: int


class Lasting(click.ParamType[int]):
    """A duration in seconds: 90m, 2h, 1d12h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds."""
        if isinstance(value, int):
            return value
        text = str(value).strip().lower()
        parts = re.findall(r"(\d+)([dhms])", text) if _LASTING.fullmatch(text) else []
        seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
        if not 0 < seconds <= LONGEST_SECONDS:
            self.fail(f"{text!r} is not a duration up to a year, such as 90m, 2h or 1d12h.", param, ctx)
        return seconds


def alert_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for receivers of alerts; the command gets them as `alerts`; None without a receiver."""

    @click.option(
        "--alert-webhook",
        "webhook",
        metavar="URL",
        callback=_a_webhook,
        help="POST each alert to this URL, in the form of Alertmanager's webhook: a server is unhealthy or does not"
        " report, or is healthy again. The run then watches each server, as with --watch. Other users of this"
        " machine can read a command line: put a URL with a secret into --alert-webhook-file.",
    )
    @click.option(
        "--alert-webhook-file",
        "webhook_file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        callback=_a_webhook_in_a_file,
        help="Read the URL from this file instead, so that its secrets do not appear in lists of processes.",
    )
    @click.option(
        "--alert-command",
        "program",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        callback=_a_program,
        help="Run this program for each alert, without a shell or arguments, with the same JSON on its standard input.",
    )
    @click.option(
        "--alert-keep-firing",
        "keep_firing_minutes",
        default=KEEP_FIRING_MINUTES,
        show_default=True,
        type=NumberRange(0.0, 1_440.0),
        help="Minutes that a server must stay healthy before its alert ends. A server that flaps causes one alert.",
    )
    @wraps(command)
    def taking(
        *,
        webhook: Webhook | None,
        webhook_file: Webhook | None,
        program: Command | None,
        keep_firing_minutes: float,
        **others: Any,
    ) -> None:
        if webhook is not None and webhook_file is not None:
            raise click.UsageError("--alert-webhook and --alert-webhook-file both set the URL: choose one")
        channels = tuple(each for each in (webhook, webhook_file, program) if each is not None)
        place = AlertPlace(channels, round(keep_firing_minutes * 60_000)) if channels else None
        command(alerts=place, **others)

    return taking


@click.command()
@click.option(
    "--server", "servers", multiple=True, metavar="NAME", help="Its Raft id or name; may be given several times."
)
@click.option("--for", "seconds", type=Lasting(), help="Duration, such as 90m, 2h or 1d12h.")
@click.option("--reason", default="", help="The reason, shown in the list.")
@click.option(
    "--farm", default="", metavar="FARM", help="Only in the farm with this name or cluster id. Default: in all."
)
@click.option("--end", "ended", multiple=True, type=IntegerRange(min=1), metavar="N", help="End silence number N.")
@tables_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def silence(
    *,
    servers: tuple[str, ...],
    seconds: int | None,
    reason: str,
    farm: str,
    ended: tuple[int, ...],
    output: Output,
    as_json: bool,
) -> None:
    """Suppress the alerts of a server for a time, such as during maintenance; without options, list all silences.

    The run that writes the tables applies the change at its next check. After the given time, the run sends the alert
    if the server is still down.
    """
    if bool(servers) != (seconds is not None):
        raise click.UsageError("--server and --for belong together: give both")
    if (reason or farm) and not servers:
        raise click.UsageError("--reason and --farm belong to a new silence: add --server and --for")
    if len(reason) > REASON_MAX:
        raise click.BadParameter(f"at most {REASON_MAX} characters", param_hint="--reason")
    now_ms = time.time_ns() // 1_000_000
    silences = Silences(output)
    try:
        if ended:
            silences.end(ended, now_ms)
        if seconds is not None:
            silences.add(servers, now_ms + seconds * 1_000, reason, farm, now_ms)
        active = silences.active(now_ms)
    except SilencesError as error:
        raise click.ClickException(str(error)) from error
    _print(active, now_ms, as_json=as_json)
    known = _known(output) if servers else ()
    given = [("server", each) for each in servers] + [("farm", farm)] * (farm != "")
    for kind, text in given if known else ():
        if (kind, text) not in known:
            echo(f"The tables do not contain a {kind} {text}: check the name, or end it with --end N.", err=True)


def _known(output: Output) -> Collection[tuple[str, str]]:
    """Return the servers and farms in the tables; empty without readable tables."""
    with suppress(ImportError, OSError):
        from pipeline.serve.query import QueryError, documents  # noqa: PLC0415 - DuckDB is large

        with suppress(QueryError):
            return {(row["kind"], row["text"]) for row in documents(output, _KNOWN)}
    return ()


def _print(active: list[Silence], now_ms: int, *, as_json: bool) -> None:
    if as_json:
        for each in active:
            document = {name: getattr(each, name) for name in each.__struct_fields__}
            print_json(json.dumps({**document, "until": _moment(each.until_ms)}))
        return
    if not active:
        echo("No server is silenced.")
    for each in active:
        farm = f" of farm {each.farm}" if each.farm else ""
        echo(
            f"{each.number}  server {each.server}{farm} until {_moment(each.until_ms)}"
            f" ({_lasting((each.until_ms - now_ms) // 1_000)} left)" + (f": {each.reason}" if each.reason else "")
        )


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _lasting(seconds: int) -> str:
    """Return a duration in its two largest units."""
    parts = []
    for unit, size in _SECONDS.items():
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def _a_webhook(_: click.Context, __: click.Parameter, value: str | None) -> Webhook | None:
    try:
        return None if value is None else webhook_of(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


def _a_webhook_in_a_file(_: click.Context, __: click.Parameter, value: Path | None) -> Webhook | None:
    if value is None:
        return None
    try:
        with value.open("rb") as file:
            return webhook_of(file.read(URL_MAX_BYTES).decode("utf-8", "replace").strip())
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise click.BadParameter(f"{value}: {reason}.") from error


def _a_program(_: click.Context, __: click.Parameter, value: Path | None) -> Command | None:
    if value is None:
        return None
    if not os.access(value, os.X_OK):
        raise click.BadParameter(
            f"{value} cannot be executed: `chmod +x {shlex.quote(str(value))}`, and name its interpreter in its first"
            " line."
        )
    return Command(value.absolute())
