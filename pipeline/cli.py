"""`garlicfarm pipeline`: runs the pipeline and prints its tables.

Exit codes are those of every command: 0 done, 1 refused or failed with the reason, 2 wrong usage.
"""

import json
import sys
from pathlib import Path
from typing import Any

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from rich import box
from rich.console import Console
from rich.table import Table

from pipeline.log_client import FarmLog, FarmLogError
from pipeline.run import RunSettings, run_forever, run_once
from pipeline.session import NoJavaError, open_session
from pipeline.transforms import DEFAULT_WINDOW

ROWS_SHOWN = 60
CONTROL_SOCKET = "control.sock"


@click.group()
def pipeline() -> None:
    """History and health of the routers, out of the farm's log, on Spark."""


@pipeline.command()
@click.option("--once", is_flag=True, help="Read what is committed now, print the table, and end.")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A node's control socket or state directory; may be given several times, the first that answers is used."
    " Default: every node below ./farm-state.",
)
@click.option(
    "--output",
    default="farm-tables",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the Parquet tables and of the checkpoint.",
)
@click.option("--window", default=DEFAULT_WINDOW, show_default=True, help="Width of a row in log time.")
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.option(
    "--trigger", "trigger_seconds", default=5, show_default=True, type=click.IntRange(1, 3600), help="Seconds."
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON lines.")
def run(
    *,
    once: bool,
    nodes: tuple[Path, ...],
    output: Path,
    window: str,
    master: str,
    trigger_seconds: int,
    as_json: bool,
) -> None:
    """Read the log and keep the tables; with --once print router health and end."""

    def show(table: DataFrame) -> None:
        _print(table, as_json=as_json)

    try:
        addresses = _addresses(nodes)
        # Before a JVM is started for it: is there a farm to read from?
        FarmLog(addresses).cluster_id()
        settings = RunSettings(addresses, output, window, trigger_seconds)
        session = open_session(master)
        try:
            if once:
                show(run_once(session, settings))
            else:
                run_forever(session, settings, show)
        finally:
            session.stop()
    except KeyboardInterrupt:
        return
    except (FarmLogError, NoJavaError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except (PySparkException, Py4JError) as error:
        raise click.ClickException(f"Spark refused: {str(error).strip().splitlines()[0]}") from error


def _addresses(nodes: tuple[Path, ...]) -> tuple[str, ...]:
    if not nodes:
        found = sorted(Path("farm-state").glob(f"*/{CONTROL_SOCKET}"))
        if not found:
            raise FarmLogError(
                "no farm found below ./farm-state; start one (`garlicfarm up --servers 3`)"
                " or name a node's control socket with --node",
            )
        return tuple(str(path.resolve()) for path in found)
    return tuple(str((node / CONTROL_SOCKET if node.is_dir() else node).resolve()) for node in nodes)


def _print(table: DataFrame, *, as_json: bool) -> None:
    rows = [row.asDict() for row in table.tail(ROWS_SHOWN)]
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps({key: _plain(value) for key, value in row.items()}) + "\n")
        sys.stdout.flush()
        return
    console = Console()
    if not rows:
        console.print("No report is in the log yet.")
        return
    shown = Table(
        title="Router health by window of log time (UTC)", box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False
    )
    shown.add_column("window", no_wrap=True)
    for heading in ("server", "avail", "uptime", "lag p50/p95", "cpu", "healthy"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    for row in rows:
        shown.add_row(
            f"{row['window_start']:%d %H:%M:%S}",
            f"{row['server_id']}",
            f"{row['availability']:.0%}",
            "unknown" if row["uptime_ms"] is None else f"{row['uptime_ms'] / 1000:.0f} s",
            f"{_number(row['job_lag_p50_ms'])}/{_number(row['job_lag_p95_ms'])} ms",
            "?" if row["cpu_percent"] is None else f"{row['cpu_percent']:.0f}%",
            "-" if row["healthy_share"] is None else f"{row['healthy_share']:.0%}",
            " ".join(word for word in ("publishing", "restarted") if row[word]),
        )
    console.print(shown)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value
