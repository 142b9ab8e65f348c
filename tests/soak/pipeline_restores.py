"""Restores random parts of a pipeline's output to earlier states, and repairs the result: no row is lost silently.

    last state + parts of earlier states ──▶ `pipeline query`: all rows, a gap, or a refusal
      ──▶ `pipeline repair` ──▶ `pipeline run --once` ──▶ the same rows, or a refusal

A state has all files of an output, or all objects of a bucket. The states of a directory are copies during one run with
Spark. The run stops at random moments for a copy, often in the middle of a batch. The states of a bucket are its
objects after random writes. A part is a table, a checkpoint, a record of batches, one file of a checkpoint, or one
commit.
"""

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeAlias

from pipeline.gold.answers import answer_sql
from pipeline.local.checkpoint import CHECKPOINT, EVENTS_CHECKPOINT
from pipeline.output.buckets import Output
from pipeline.serve.query import QueryError, documents, query_result
from pipeline.tables.specs import BASE_SPECS, EVENTS_SPEC, RANGES_SPEC
from tests.processes import END_S
from tests.soak.pipeline_kills import END_TIMEOUT_S, POLL_S, batches
from tests.soak.pipeline_tables import differences, start, tables_of, wait_for_success

PARTS_MAX = 4
BATCHES_MAX = 6
"""The maximum number of batches from one copy to the next."""
SPAN_S = 1.5
RUN_TIMEOUT_S = 300.0
CURRENT_FARM = "current_farm"
WINDOW_MS = 60_000
State: TypeAlias = dict[str, bytes]
"""The files or objects of an output, by their paths below it."""
Ended: TypeAlias = tuple[int | None, str]
"""The exit code of a command, None after a timeout, and its output."""


@dataclass(frozen=True, slots=True)
class Place:
    """An output whose state can be replaced. `continued`: finishes the derived tables, as a run does."""

    output: Output
    replace: Callable[[State], None]
    repair: Callable[[], Ended]
    continued: Callable[[], Ended]


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of one restore: its parts, how the commands ended, and differences from the final rows."""

    parts: tuple[str, ...]
    end: str
    wrong: tuple[str, ...] = ()


def run_with_copies(command: list[str], output: Path, states: Path, log: Path, random: Random) -> None:
    """Run the command to its end; copy its output at random moments, while all its processes are stopped."""
    process = start(command, log)
    try:
        ends, number, following = time.monotonic() + END_TIMEOUT_S, 0, 1
        while process.poll() is None:
            if time.monotonic() > ends:
                raise RuntimeError(f"the run did not end within {END_TIMEOUT_S:.0f} s; see {log}")
            if batches(output / CHECKPOINT, "offsets") < following:
                time.sleep(POLL_S)
                continue
            time.sleep(random.uniform(0, SPAN_S))
            os.killpg(process.pid, signal.SIGSTOP)
            try:
                shutil.copytree(output, states / f"{number:02}")
            finally:
                os.killpg(process.pid, signal.SIGCONT)
            number += 1
            following = batches(output / CHECKPOINT, "offsets") + random.randint(1, BATCHES_MAX)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_S)
    wait_for_success(process, log, END_S)
    shutil.copytree(output, states / f"{number:02}")


def state_of(directory: Path) -> State:
    return {str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()}


def replace_directory(directory: Path, state: State) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    for path, content in state.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)


def restore_part(state: State, earlier: State, name: str, random: Random) -> str:
    kinds: tuple[Callable[[State, State, str, Random], str], ...] = (_whole, _whole, _checkpoint_file, _commit, _record)
    return random.choice(kinds)(state, earlier, name, random)


def _whole(state: State, earlier: State, name: str, random: Random) -> str:
    """Restore a table, a checkpoint or a record of batches; remove it if the earlier state does not have it."""
    part = random.choice(sorted({*_tables(state), *_records(state), CHECKPOINT, EVENTS_CHECKPOINT}))
    for path in _below(state, part):
        del state[path]
    found = _below(earlier, part)
    state.update(found)
    return f"{part} of state {name}" if found else f"{part} removed"


def _below(state: State, part: str) -> State:
    return {path: content for path, content in state.items() if path == part or path.startswith(f"{part}/")}


def _tables(state: State) -> list[str]:
    return sorted({path.partition("/")[0] for path in state if "/_delta_log/" in path and path[0] != "."})


def _records(state: State) -> list[str]:
    return sorted(each for each in state if each.startswith("batches-") and "/" not in each)


def _record(state: State, earlier: State, name: str, random: Random) -> str:
    """Restore or remove a record of batches."""
    if not (records := _records(state)):
        return "no record of batches"
    record = random.choice(records)
    if record in earlier and random.random() < 1 / 2:
        state[record] = earlier[record]
        return f"{record} of state {name}"
    del state[record]
    return f"{record} removed"


def _checkpoint_file(state: State, earlier: State, name: str, random: Random) -> str:
    """Restore, empty or remove a file among the newest of a checkpoint."""
    folder = f"{random.choice((CHECKPOINT, EVENTS_CHECKPOINT))}/{random.choice(('offsets', 'commits'))}/"
    numbers = sorted(int(each.removeprefix(folder)) for each in state if each.removeprefix(folder).isdecimal())[-3:]
    if not numbers:
        return _whole(state, earlier, name, random)
    return _damage(state, f"{folder}{random.choice(numbers)}", earlier, name, random)


def _commit(state: State, _earlier: State, name: str, random: Random) -> str:
    """Empty or remove one commit of a table."""
    log = f"{random.choice(_tables(state))}/_delta_log/"
    commits = sorted(each for each in state if each.startswith(log) and each.endswith(".json"))[-5:]
    return _damage(state, random.choice(commits), {}, name, random) if commits else f"{log} is empty"


def _damage(state: State, path: str, earlier: State, name: str, random: Random) -> str:
    if path in earlier and random.random() < 1 / 3:
        state[path] = earlier[path]
        return f"{path} of state {name}"
    if random.random() < 1 / 2:
        state[path] = b""
        return f"{path} emptied"
    del state[path]
    return f"{path} removed"


def restored(states: Sequence[State], place: Place, expected: dict[str, Counter[str]], random: Random) -> Restored:
    """Restore random parts of the last state, repair the result, and compare its tables with the expected ones."""
    state, parts = dict(states[-1]), list[str]()
    for _ in range(random.randint(1, PARTS_MAX)):
        number = random.randrange(len(states) - 1)
        parts.append(restore_part(state, states[number], str(number), random))
    place.replace(state)
    if silent := [*_silent_losses(place.output, expected)]:
        return Restored((*parts,), "a query", (*silent,))
    code, text = place.repair()
    if code == 0:
        code, text = place.continued()
    if code is None or "Traceback" in text:
        return Restored((*parts,), "failed", (text[-2000:],))
    if code != 0:
        return Restored((*parts,), f"refused: {text.strip().splitlines()[-1][:200]}")
    missing = differences(expected, compared(place.output))
    rows = documents(place.output, answer_sql("completeness"))
    missing += (f"incomplete: {row}" for row in rows if not row["complete"])
    return Restored((*parts,), "equal", tuple(missing))


def _silent_losses(output: Output, expected: dict[str, Counter[str]]) -> Iterator[str]:
    """Yield the base tables that a query reads with other rows, without a refusal and without a gap."""
    for name in BASE_SPECS:
        with suppress(QueryError), query_result(output, f"FROM {name}", with_gaps=True) as answer:
            if not answer.gaps and (found := sum(1 for _ in answer.rows)) != expected.get(name, Counter()).total():
                yield f"{name}: {found} rows"


def compared(output: Output) -> dict[str, Counter[str]]:
    """Return the tables as multisets of rows.

    `ranges` is compared by the answer about completeness. Traces that were read again are copies, which the tables over
    them remove. A repair cannot restore the name of a farm.
    """
    tables = tables_of(output, {CURRENT_FARM: frozenset({"name"})})
    tables.pop(RANGES_SPEC.name, None)
    if EVENTS_SPEC.name in tables:
        tables[EVENTS_SPEC.name] = Counter(set(tables[EVENTS_SPEC.name]))
    return tables


def ended(command: Sequence[str]) -> Ended:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, f"not within {RUN_TIMEOUT_S:.0f} s: {' '.join(command)}"
    return done.returncode, done.stdout + done.stderr
