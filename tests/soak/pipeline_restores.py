"""Restores random parts of a pipeline's output to earlier states, and repairs the result: no row is lost silently.

    last state + parts of earlier states ──▶ `pipeline repair` ──▶ `pipeline run --once` ──▶ the same rows, or a refusal

The states are copies of the output of one run with Spark. The run is stopped at random moments for a copy, often in the
middle of a batch. A part is a table, a checkpoint, a record of batches, one file of a checkpoint, or one commit.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pipeline.gold.answers import answer_sql
from pipeline.gold.tables import Gold
from pipeline.run import CHECKPOINT, EVENTS_CHECKPOINT
from pipeline.serve.query import documents
from pipeline.tables.specs import EVENTS_SPEC, RANGES_SPEC
from tests.processes import END_S
from tests.soak.pipeline_kills import END_TIMEOUT_S, POLL_S, batches
from tests.soak.pipeline_tables import differences, pipeline_command, start, tables_of, wait_for_success

PARTS_MAX = 4
BATCHES_MAX = 6
"""The maximum number of batches from one copy to the next."""
SPAN_S = 1.5
RUN_TIMEOUT_S = 300.0
CURRENT_FARM = "current_farm"
WINDOW_MS = 60_000


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


def restore_part(output: Path, earlier: Path, random: Random) -> str:
    """Return one random part of `output` to an earlier state, or damage it; return its description."""
    kinds: tuple[Callable[[Path, Path, Random], str], ...] = (_whole, _whole, _checkpoint_file, _commit)
    return random.choice(kinds)(output, earlier, random)


def _whole(output: Path, earlier: Path, random: Random) -> str:
    """Restore a table, a checkpoint or a record of batches; remove it if the earlier state does not have it."""
    tables = {each.parent.name for each in output.glob("*/_delta_log")}
    records = {each.name for each in output.glob("batches-*.json")}
    name = random.choice(sorted({*tables, *records, CHECKPOINT, EVENTS_CHECKPOINT}))
    old, new = output / name, earlier / name
    if old.is_dir():
        shutil.rmtree(old)
    else:
        old.unlink(missing_ok=True)
    if not new.exists():
        return f"{name} removed"
    (shutil.copytree if new.is_dir() else shutil.copy)(new, old)
    return f"{name} of state {earlier.name}"


def _checkpoint_file(output: Path, earlier: Path, random: Random) -> str:
    """Restore, empty or remove a file among the newest of a checkpoint."""
    directory = output / random.choice((CHECKPOINT, EVENTS_CHECKPOINT)) / random.choice(("offsets", "commits"))
    files = sorted(directory.glob("[0-9]*"), key=lambda each: int(each.name))[-3:]
    if not files:
        return _whole(output, earlier, random)
    file = random.choice(files)
    return _damage(output, file, earlier / file.relative_to(output), random)


def _commit(output: Path, earlier: Path, random: Random) -> str:
    """Empty or remove one commit of a table."""
    log = random.choice(sorted(output.glob("*/_delta_log")))
    commits = sorted(log.glob("*.json"))[-5:]
    return _damage(output, random.choice(commits), earlier / "absent", random) if commits else f"{log} is empty"


def _damage(output: Path, file: Path, earlier: Path, random: Random) -> str:
    name = file.relative_to(output)
    if earlier.exists() and random.random() < 1 / 3:
        shutil.copy(earlier, file)
        return f"{name} of state {earlier.parents[len(name.parts) - 1].name}"
    if random.random() < 1 / 2:
        file.write_bytes(b"")
        return f"{name} emptied"
    file.unlink()
    return f"{name} removed"


def restored(log: Path, states: Sequence[Path], output: Path, random: Random, more: Sequence[str] | None) -> Restored:
    """Restore random parts of the last state in a copy of it, repair the copy, and compare its tables.

    `more`: options of a run that continues after the repair; without one, only the derived tables are made again.
    """
    shutil.copytree(states[-1], output)
    parts = tuple(restore_part(output, random.choice(states[:-1]), random) for _ in range(random.randint(1, PARTS_MAX)))
    place = ("--directory", str(log), "--output", str(output))
    code, text = _ended([sys.executable, "-m", "bridge.cli.main", "pipeline", "repair", *place])
    if code == 0 and more is not None:
        code, text = _ended(pipeline_command(log, output, *more))
    if code is None or "Traceback" in text:
        return Restored(parts, "failed", (text[-2000:],))
    if code != 0:
        return Restored(parts, f"refused: {text.strip().splitlines()[-1][:200]}")
    if more is None:
        Gold(output, WINDOW_MS).refresh(0)
    missing = differences(compared(states[-1]), compared(output))
    missing += (f"incomplete: {row}" for row in documents(output, answer_sql("completeness")) if not row["complete"])
    return Restored(parts, "equal", tuple(missing))


def compared(output: Path) -> dict[str, Counter[str]]:
    """Return the tables as multisets of rows.

    `ranges` is compared by the answer about completeness. Traces that were read again are copies, which the tables over
    them remove. A repair cannot restore the name of a farm.
    """
    tables = tables_of(output, {CURRENT_FARM: frozenset({"name"})})
    tables.pop(RANGES_SPEC.name, None)
    if EVENTS_SPEC.name in tables:
        tables[EVENTS_SPEC.name] = Counter(set(tables[EVENTS_SPEC.name]))
    return tables


def _ended(command: Sequence[str]) -> tuple[int | None, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, f"not within {RUN_TIMEOUT_S:.0f} s: {' '.join(command)}"
    return done.returncode, done.stdout + done.stderr
