"""`garlicfarm simulate gossip`: a large group of production gossip cores in virtual time, measured.

An operator can plan a group of thousands before there is a single machine. The figures are the costs of a member and
the detection time of a crash, with the network's loss and the group's churn.
"""

import gc
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import click
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bridge.cli.failure import fail, failures
from bridge.cli.options import IntegerRange, NumberRange, SummaryGroup, file_path, write_user_file
from bridge.cli.printing import echo, print_facts
from gossip import SwimOptions
from gossip.simulation import Play, Scenario, figures, load_ratio, picture

_KIB = 1024 if sys.platform != "darwin" else 1
_SHARE = NumberRange(0, 1, max_open=True)


@click.group(cls=SummaryGroup)
def simulate() -> None:
    """Run the production decisions in virtual time."""


@simulate.command()
@click.option("--members", type=IntegerRange(2), default=100, show_default=True, help="Number of members.")
@click.option("--capacity", type=IntegerRange(1), help="Maximum number of peers of a member.  [default: all others]")
@click.option("--periods", type=IntegerRange(20), default=100, show_default=True, help="Length, in probe periods.")
@click.option("--churn", type=_SHARE, default=0.0, help="Share of members that crash; the same number joins.")
@click.option("--loss", type=_SHARE, default=0.0, help="Share of lost datagrams.")
@click.option("--slow", type=_SHARE, default=0.0, help="Share of members that pause for 3 periods, repeatedly.")
@click.option("--partition", type=_SHARE, default=0.0, help="Share of members cut off for a fifth of the time.")
@click.option(
    "--tuning",
    type=click.Choice(["auto", "lan", "overlay"]),
    default="auto",
    show_default=True,
    help="`overlay` is for groups with more members than a node's directory of members holds (1,024); `auto` selects it"
    " for those.",
)
@click.option(
    "--compare", type=IntegerRange(2), metavar="MEMBERS", help="Run also with this number of members; print ratios."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed: the same one repeats the same run.")
@click.option("--plot", type=file_path, help="Draw the figures into this SVG file.")
def gossip(
    members: int,
    capacity: int | None,
    periods: int,
    churn: float,
    loss: float,
    slow: float,
    partition: float,
    tuning: str,
    compare: int | None,
    seed: int,
    plot: Path | None,
) -> None:
    """Simulate a group of gossip members: detection, dissemination, load.

    The group forms, settles, has churn (with --churn), and is undisturbed at the end. For example:

    \b
    garlicfarm simulate gossip --members 1000 --capacity 30 --churn 0.2
    """  # noqa: D301 - the backspace is click's mark of lines that stay as they are
    chosen = _tuning(tuning, max(members, compare or 0))
    try:
        story = Scenario(
            members=members,
            capacity=capacity or max(members, compare or 0),
            periods=periods,
            churn=churn,
            loss=loss,
            slow=slow,
            partition=partition,
            random_seed=seed,
            options=chosen,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if plot is not None and plot.suffix.lower() != ".svg" and (plot.is_file() or not plot.exists()):
        raise click.UsageError(f"--plot draws SVG: name a file that ends in .svg, not {plot.name!r}")
    if plot is not None and not plot.absolute().parent.is_dir():
        fail(f"the directory {plot.absolute().parent} for the chart does not exist: create it, or name another path")
    if plot is not None:
        _require_writable(plot)
    played = _play(story)
    if compare is not None:
        other = _play(replace(story, members=compare))
        stretches = (("all periods", 0), ("from churn on", story.settled_by))
        print_facts([_compared(f"{name}, against {compare:,}", played, other, first) for name, first in stretches])
    if plot is not None:
        with failures(OSError):
            write_user_file(plot, picture(played))
        echo(f"chart: {plot}")


def _require_writable(plot: Path) -> None:
    """Check that the chart can be written, before a run that may take hours; do not change an existing file."""
    target = Path(os.path.realpath(plot))  # `resolve` raises RuntimeError for a link to itself.
    is_new = not plot.exists()
    try:
        with plot.open("ab"):
            pass
        if is_new:
            target.unlink()
        elif plot.is_file():  # The chart is written next to it, and replaces it.
            tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        fail(f"the chart cannot be written to {plot} ({error.strerror or error}): name another place")


def _compared(name: str, play: Play, other: Play, first_period: int) -> tuple[str, str]:
    messages, octets = load_ratio(play, other, first_period)
    return f"load {name}", f"{messages:.3f} x messages, {octets:.3f} x bytes per member"


def _tuning(name: str, members: int) -> SwimOptions:
    lan = SwimOptions.lan()
    if name == "overlay" or (name == "auto" and members > lan.directory_limit):
        return SwimOptions.for_overlay()
    return lan


def _play(story: Scenario) -> Play:
    play = Play(story)
    began = time.process_time()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(f"{story.members:,} members, period", total=story.periods)
        gc.disable()  # Millions of live objects and no cycles: a search for cycles takes longer than the simulation.
        try:
            play.run(lambda done: bar.update(task, completed=done))
        finally:
            gc.enable()
    spent = time.process_time() - began
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB / 1e6
    kind = "overlay" if story.options.overlay else "lan"
    print_facts(
        [
            ("story", f"{story.members:,} members x {story.capacity} peers, {story.periods} periods, tuning {kind}"),
            *figures(play),
            ("simulated with", f"{spent:.1f} s of processor time, at most {megabytes:,.0f} MB of memory"),
        ]
    )
    return play
