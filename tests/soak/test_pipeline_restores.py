"""30 SIGKILLs of the pipeline with Spark, and 30 restores of random earlier states (each about 20 minutes)."""

import sys
from functools import partial
from pathlib import Path
from random import Random

import pytest

from pipeline.gold.tables import Gold
from tests.soak import pipeline_kills
from tests.soak.pipeline_restores import (
    WINDOW_MS,
    Ended,
    Place,
    Restored,
    compared,
    ended,
    replace_directory,
    restored,
    run_with_copies,
    state_of,
)
from tests.soak.pipeline_tables import generate_log, pipeline_command

pytestmark = pytest.mark.soak
KILLS, RESTORES, SEED = 30, 30, 7
EACH_CONTINUED = 6
"""A run with Spark follows one restore of this number; after the others only the derived tables are computed."""
ROUTERS, DAYS, BATCH = 6, 0.6, 100


def test_killed_pipeline_has_rows_of_undisturbed_run(tmp_path: Path) -> None:
    assert not pipeline_kills.run(KILLS, SEED, tmp_path, routers=ROUTERS, days=DAYS, batch=BATCH, engine="spark")


def test_restored_states_lose_no_rows_silently(tmp_path: Path) -> None:
    log, output, states, traces = (tmp_path / name for name in ("log", "output", "states", "trace.jsonl"))
    generate_log(log, ROUTERS, DAYS, SEED)
    traces.write_text("".join(pipeline_kills.generate_events(SEED)), encoding="utf-8")
    more = ("--master", "local[2]", "--entries-per-batch", str(BATCH), "--watch", "--trace-files", str(traces))
    command = pipeline_command(log, output, *more)
    run_with_copies(command, output, states, tmp_path / "run.txt", Random(SEED))
    copy, found = tmp_path / "restored", [state_of(each) for each in sorted(states.iterdir())]
    replace_directory(copy, found[-1])
    expected, results = compared(copy), list[Restored]()

    def derived() -> Ended:
        Gold(copy, WINDOW_MS).refresh(0)
        return 0, ""

    def followed() -> Ended:
        return ended(pipeline_command(log, copy, *more))

    def repaired() -> Ended:
        place = ("--directory", str(log), "--output", str(copy))
        return ended([sys.executable, "-m", "bridge.cli.main", "pipeline", "repair", *place])

    for number in range(RESTORES):
        place = Place(
            copy, partial(replace_directory, copy), repaired, derived if number % EACH_CONTINUED else followed
        )
        results.append(restored(found, place, expected, Random(f"{SEED}-{number}")))
        print(f"restore {number}: {results[-1]}", flush=True)
    assert not [each for each in results if each.wrong]
    assert sum(each.end == "equal" for each in results) > RESTORES // 2
