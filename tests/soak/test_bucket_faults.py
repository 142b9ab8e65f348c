"""30 SIGKILLs of runs into a bucket, and 30 restores of random earlier states of a bucket (each about 5 minutes).

The tables equal the tables of an undisturbed run, row for row, or a command refuses them with the gap.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from pipeline.output.buckets import BucketPath
from pipeline.repair.damage import examine
from tests.pipeline.s3_server import BUCKET, S3Server, serving_s3
from tests.soak.bucket_faults import (
    WRITES_MAX,
    delete_lock,
    ended_here,
    replace_objects,
    run_until_killed,
    state_below,
    states_during,
)
from tests.soak.pipeline_kills import generate_events
from tests.soak.pipeline_restores import Place, Restored, compared, restored
from tests.soak.pipeline_tables import differences, generate_log, pipeline_command, tables_of

pytestmark = pytest.mark.soak
KILLS, RESTORES, SEED = 30, 30, 7
ROUTERS, DAYS, BATCH, EVENTS = 3, 0.1, 100, 500


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Return a server; the environment has its address."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving_s3() as served:
        for name, value in served.environment().items():
            monkeypatch.setenv(name, value)
        yield served


def prepared(tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    """Generate a log and a trace; return the log and the options of a run."""
    log, traces = tmp_path / "log", tmp_path / "trace.jsonl"
    print(f"{generate_log(log, ROUTERS, DAYS, SEED)} entries in batches of {BATCH}", flush=True)
    traces.write_text("".join(generate_events(SEED)[:EVENTS]), encoding="utf-8")
    options = ("--engine", "local", "--entries-per-batch", str(BATCH), "--watch", "--trace-files", str(traces))
    return log, options


def test_killed_runs_into_bucket_have_rows_of_undisturbed_run(server: S3Server, tmp_path: Path) -> None:
    log, options = prepared(tmp_path)
    random, environment = Random(SEED), {**server.environment(), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    local, number, kills = tmp_path / "tables", 0, 0
    assert ended_here(*pipeline_command(log, local, *options)[4:])[0] == 0
    expected = tables_of(local)
    while kills < KILLS:
        number += 1
        place = BucketPath(BUCKET, f"killed/{number}")
        command = pipeline_command(log, place, *options)
        while run_until_killed(command, server, random.randint(1, WRITES_MAX), tmp_path / "runs.txt", environment):
            kills += 1
            print(f"kill {kills} in run {number}", flush=True)
            delete_lock(server, place)
        assert differences(expected, tables_of(place)) == []
        assert not examine(place)


def test_restored_states_of_bucket_lose_no_rows_silently(server: S3Server, tmp_path: Path) -> None:
    log, options = prepared(tmp_path)
    place, random = BucketPath(BUCKET, "restored"), Random(SEED)
    arguments = pipeline_command(log, place, *options)[4:]

    def run() -> None:
        assert ended_here(*arguments)[0] == 0

    states = states_during(server, place, run, random)
    expected, results = compared(place), list[Restored]()
    changed = Place(
        place,
        partial(replace_objects, server, place),
        partial(ended_here, "repair", "--directory", str(log), "--output", str(place)),
        partial(ended_here, *arguments),
    )
    for each in range(RESTORES):
        results.append(restored(states, changed, expected, Random(f"{SEED}-{each}")))
        print(f"restore {each} of {len(states)} states: {results[-1]}", flush=True)
    assert not [each for each in results if each.wrong]
    assert sum(each.end == "equal" for each in results) > RESTORES // 2
    assert state_below(server, place)
