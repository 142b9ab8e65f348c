"""The parameters of an experiment from the command line, its finished runs, and its progress bar."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.gossip_experiments.finished_runs import FinishedRuns

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The extent of an experiment."""

    seed: int = 1
    sizes: tuple[int, ...] = (50, 100, 200, 500, 1_000)
    losses: tuple[float, ...] = (0.0, 0.5)
    samples: int = 6_000
    repetitions: int = 1
    intervals: int = 1
    cells: int | None = None
    finished: FinishedRuns = field(default_factory=FinishedRuns)

    def progress(self, what: str) -> Progress:
        """Return a progress bar on one line of the standard error; without a terminal it prints nothing."""
        began = time.monotonic()

        def show(done: float) -> None:
            if sys.stderr.isatty():
                seconds = time.monotonic() - began
                left = seconds / done * (1 - done) if done > 0 else 0
                filled = "#" * round(30 * done)
                sys.stderr.write(f"\r{what:<34} [{filled:<30}] {done:4.0%}  {left:5.0f} s left ")
                sys.stderr.write("\r" + " " * 90 + "\r" if done >= 1 else "")
                sys.stderr.flush()

        return show
