"""`garlicfarm history`: the last hours of the farm, as strips in the terminal.

    GET /v1/history ─────────────┐
    history.ring of a directory ─┴─▶ HistoryAnswer ─▶ strips and incidents (`bridge.api.observations.strips`)

With --state-dir the file itself is read: the node may be stopped, and the window ends with its last record.
"""

import time
from pathlib import Path

import click

from bridge.api.control_routes import HISTORY
from bridge.api.observations.history import (
    HOURS_DEFAULT,
    HOURS_MAX,
    HistoryAnswer,
    first_record_ms,
    history_answer,
    part_since,
)
from bridge.api.observations.strips import CELLS, Incident, Strip, incidents, name_letters, runs, strips
from bridge.api.printable import DAY_MS, HOUR_MS, MINUTE_MS, clock_text, duration, printable
from bridge.api.view import Severity
from bridge.cli.failure import failures
from bridge.cli.node_queries import node_option, query_node
from bridge.cli.options import IntegerRange, directory_path, json_option, moment_ms, watchable
from bridge.cli.printing import echo, echo_parts, end_with_json, terminal_columns
from bridge.core.history.timeline import read
from bridge.node.history.history_file import FILE_NAME, HistoryFileError, read_history
from consensus import counted

CELLS_MAX = 96
CELLS_MIN = 24
LABEL_MAX = 34
FIGURE_MAX = 16
INCIDENTS_MAX = 40
GAP = "  "
_COLORS = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.CRITICAL: "red"}
_MARKS = {Severity.OK: "  ", Severity.WARNING: "! ", Severity.CRITICAL: "!!"}


@click.command()
@click.option(
    "--hours",
    type=IntegerRange(1, HOURS_MAX),
    help=f"Length of the window.  [default: {HOURS_DEFAULT}, from the first record]",
)
@click.option("--since", metavar="WHEN", help="Start of the window: 90s, 10m, 2h, 1d ago, or a UTC time.")
@click.option(
    "--state-dir",
    type=directory_path,
    help="Read the history in this state directory instead of querying a node: the node may be stopped.",
)
@node_option
@json_option
@watchable
def history(hours: int | None, since: str | None, state_dir: Path | None, node: str | None, *, as_json: bool) -> None:
    """Show the last hours, as one node observed them: leader, publishers, nodes, leaves, alarms, round trips.

    A cell of a strip shows the worst state in its part of the window. States that are not ok, and new leaders and
    publishers, are listed below, at most 40 of them.
    """
    if node is not None and state_dir is not None:
        raise click.UsageError("--node and --state-dir exclude each other")
    if hours is not None and since is not None:
        raise click.UsageError("--hours and --since both set the window: give one of them")
    since_ms = None if since is None else moment_ms(since)
    length = hours or (HOURS_DEFAULT if since_ms is None else _hours_since(since_ms))
    if state_dir is None:
        found = query_node(node, lambda client: client.call(HISTORY, query={"hours": length}))
    else:
        with failures(HistoryFileError):
            found = _stored(state_dir, length)
    if since_ms is not None:
        found = part_since(found, since_ms)
    end_with_json(found, as_json=as_json)
    _print_strips(found, is_fitted=hours is None and since_ms is None)
    _print_incidents(found, "until now" if state_dir is None else "to the end")


def _hours_since(since_ms: int) -> int:
    hours = -(-(int(time.time() * 1000) - since_ms) // HOUR_MS)
    if not 0 <= hours <= HOURS_MAX:
        raise click.UsageError(f"--since is not within the last {HOURS_MAX // 24} days")
    return max(1, hours)


def _stored(state_dir: Path, hours: int) -> HistoryAnswer:
    try:
        stored = read_history(state_dir)
    except FileNotFoundError as error:
        raise HistoryFileError(
            f"{state_dir} does not contain {FILE_NAME}: name the state directory of a node"
        ) from error
    return history_answer(state_dir.absolute().name, read(stored.parts, None, hours))


def _print_strips(found: HistoryAnswer, *, is_fitted: bool) -> None:
    from_ms = found.from_ms
    # If states are left out, the first state of the window is not known.
    first_ms = from_ms if found.spans_left_out else first_record_ms(found)
    if is_fitted and found.rows:
        found = part_since(found, first_ms)
    length = _length_text(found.to_ms - found.from_ms)
    echo(f"The last {length}, as {found.node} observed them, until {clock_text(found.to_ms, dated=True)}", bold=True)
    if not found.rows:
        echo("Nothing is recorded in this time.")
        return
    if first_ms - from_ms > found.step_ms:
        echo(f"Nothing is recorded in the {duration(first_ms - from_ms)} before {clock_text(first_ms, dated=True)}.")
    # The width of the strips depends on the labels, which are the same for one cell.
    lines = [each for each in strips(found, 1) if each.cells]
    label_width = min(LABEL_MAX, terminal_columns() // 3, max(len(printable(each.label)) for each in lines))
    figure_width = min(FIGURE_MAX, max(len(each.figure) for each in lines))
    room = terminal_columns() - label_width - figure_width - 2 * len(GAP)
    width = max(CELLS_MIN, min(CELLS_MAX, room))
    left = label_width + len(GAP) + figure_width + len(GAP)
    echo(" " * left + _axis(found, width))
    for strip in strips(found, width):
        _print_strip(strip, label_width, figure_width)
    echo()
    _print_legend(found, width)


def _length_text(length_ms: int) -> str:
    """Return the length of a window as text; a difference from whole hours of at most a minute per hour is left out.

    The start of a window is rounded, which causes such a difference.
    """
    hours = round(length_ms / HOUR_MS)
    return f"{hours} h" if hours and abs(length_ms - hours * HOUR_MS) <= MINUTE_MS * hours else duration(length_ms)


def _print_strip(strip: Strip, label_width: int, figure_width: int) -> None:
    if not strip.cells:
        echo(strip.label, bold=True)
        return
    label, figure = (
        shown.ljust(width)
        for shown, width in (
            (_shortened(strip.label, label_width), label_width),
            (_shortened(strip.figure, figure_width), figure_width),
        )
    )
    cells = [(text, None if severity is None else _COLORS[severity]) for text, severity in runs(strip.cells)]
    echo_parts([(f"{label}{GAP}{figure}{GAP}", None), *cells])


def _axis(found: HistoryAnswer, width: int) -> str:
    """Return the times of the quarters of the window, each at its first cell; dates if it is longer than a day."""
    length_ms = found.to_ms - found.from_ms
    shown = (
        slice(len("2026-"), len("2026-11-28"))
        if length_ms > DAY_MS + HOUR_MS
        else slice(len("2026-11-28 "), -len(":00 UTC"))
    )
    places = range(0, width - len("00:00"), max(len("00:00 "), -(-width // 4)))
    text = before = ""
    for place in places:
        label = clock_text(found.from_ms + length_ms * place // width, dated=True)[shown]
        # Labels repeat in a short window: a new node may have recorded less than two minutes.
        text = text.ljust(place) + (label if label != before else "")
        before = label
    return text.ljust(width - len("now")) + "now" if len(text) < width - len("now") else text


def _print_legend(found: HistoryAnswer, width: int) -> None:
    cell_ms = (found.to_ms - found.from_ms) // width
    marks = [(f"{CELLS[each]} {each.value}   ", _COLORS[each]) for each in Severity]
    echo_parts([*marks, (f"blank: nothing observed   one cell: {duration(cell_ms)}", None)])
    letters = name_letters(found)
    if letters:
        echo("   ".join(f"{letter} {name}" for name, letter in letters.items()))


def _print_incidents(found: HistoryAnswer, to_the_end: str) -> None:
    listed = incidents(found)
    if not listed:
        return
    echo()
    shown = listed[-INCIDENTS_MAX:]
    if len(listed) > len(shown):
        echo(f"The last {len(shown)} of {len(listed)} events; --json has all of them.")
    width = min(LABEL_MAX, max(len(_shortened(each.subject, LABEL_MAX)) for each in shown))
    for each in shown:
        _print_incident(each, width, to_the_end)
    if found.spans_left_out or found.rows_left_out:
        echo(f"Left out: {counted(found.spans_left_out, 'older state')}, {counted(found.rows_left_out, 'row')}.")


def _print_incident(each: Incident, width: int, to_the_end: str) -> None:
    span = each.span
    length = to_the_end if each.is_last else f"for {duration(span.end_ms - span.start_ms)}"
    when = clock_text(span.start_ms, dated=True).removesuffix(" UTC")
    subject = _shortened(each.subject, width).ljust(width)
    color = None if span.severity is Severity.OK else _COLORS[span.severity]
    echo_parts(
        [(f"{when}  {length:<10}  ", None), (_MARKS[span.severity], color), (f" {subject}{GAP}{each.text}", None)]
    )


def _shortened(text: str, width: int) -> str:
    shown = printable(text)
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"
