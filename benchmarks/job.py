"""A part of the benchmarks to measure: its directory, its number of runs, and the limits of the machine.

    Job ─▶ a part's function ─▶ figures

A part without its programs raises `LeftOut`; the other parts continue.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.machine import Machine


class LeftOut(Exception):  # noqa: N818 - the part is left out, without a fault
    """A part cannot run here; the text is the reason."""


def leave_out_if(missing: str | None) -> None:
    """Raise LeftOut with the text about a missing program, if there is one."""
    if missing is not None:
        raise LeftOut(missing)


@dataclass(frozen=True, slots=True)
class Job:
    """One part to measure."""

    name: str
    home: Path
    """The directory of all parts."""
    runs: int
    seconds: float
    """Length of one run of a load."""
    machine: Machine
    base: str | None = None
    """An earlier checkout or commit, for comparison."""

    @property
    def directory(self) -> Path:
        """The directory of this part."""
        return self.home / self.name


Measure = Callable[[Job], Awaitable[list[Figure]]]


async def repeated(part: Measure, job: Job) -> list[Figure]:
    """Run a part `job.runs` times, each time in a new directory, and return its figures with the values of all runs."""
    found: dict[str, dict[str, Figure]] = {}
    for run in range(job.runs):
        for figure in await part(replace(job, name=f"{job.name}/{run}")):
            rows = found.setdefault(figure.group, {})
            earlier = rows.get(figure.name)
            rows[figure.name] = figure if earlier is None else replace(earlier, values=earlier.values + figure.values)
    return [figure for rows in found.values() for figure in rows.values()]
