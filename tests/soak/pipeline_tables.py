"""Helpers of the long pipeline tests: a generated log, the pipeline as a process, and tables as multisets of rows."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.generate import generate
from pipeline.gold.tables import SPECS
from pipeline.load_model import LoadModel
from pipeline.output.buckets import Output
from pipeline.tables import current
from pipeline.tables.delta import stored_rows
from pipeline.tables.names import SALT_FILE
from pipeline.tables.specs import BASE_SPECS, EVENTS_SPEC, RANGES_SPEC, TRANSITIONS_SPEC
from pipeline.watch.watching import STATE_SPEC

SALT = b"the same for all\n"
PLACE_COLUMNS = frozenset({"batch_id", "stored_at"})
"""The micro-batch of a row and the time of its commit; not compared."""


def generate_log(directory: Path, routers: int, days: float, seed: int) -> int:
    return generate(directory, LoadModel(routers, days, seed)).entries


def pipeline_command(log: Path, output: Output, *more: str, once: bool = True) -> list[str]:
    """Return the command that reads the whole log once, or follows it; all runs use the same pseudonyms."""
    output.mkdir(parents=True, exist_ok=True)
    if isinstance(output, Path):
        (output / SALT_FILE).write_bytes(SALT)
    else:
        (output / SALT_FILE).write(SALT, None)
    return [
        sys.executable,
        *("-m", "bridge.cli.main", "pipeline", "run", *(("--once",) if once else ("--trigger", "1")), "--json"),
        *("--directory", str(log), "--output", str(output), *more),
    ]


def start(command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start the command as a separate process group, so that all of it can be killed together; output goes to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def wait_for_success(process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> None:
    """Wait until the process succeeds; otherwise raise RuntimeError with the end of its output."""
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        tail = log.read_bytes()[-4000:].decode("utf-8", "replace")
        raise RuntimeError(f"the run ended with {code} (None: not within {timeout_s:.0f} s):\n{tail}")


def tables_of(output: Output, without: Mapping[str, frozenset[str]] | None = None) -> dict[str, Counter[str]]:
    """Return every table below `output` as a multiset of rows: history, derived tables, current state.

    `without`: further columns of a table to leave out.
    """
    specs = (
        *BASE_SPECS.values(),
        EVENTS_SPEC,
        RANGES_SPEC,
        TRANSITIONS_SPEC,
        STATE_SPEC,
        *current.SPECS.values(),
        *SPECS.values(),
    )
    left_out = {} if without is None else without
    tables = {
        spec.name: _counted(
            stored_rows(output / spec.name, spec.schema).to_pylist(),
            PLACE_COLUMNS | left_out.get(spec.name, frozenset()),
        )
        for spec in specs
    }
    return {name: rows for name, rows in tables.items() if rows}


def _counted(rows: Iterable[dict[str, Any]], without: frozenset[str]) -> Counter[str]:
    return Counter(repr(sorted((name, value) for name, value in row.items() if name not in without)) for row in rows)


def same_pseudonyms(output: Path, other: Path) -> None:
    """Create the directory `other` with the same pseudonyms for destinations as `output`."""
    other.mkdir(parents=True)
    shutil.copy(output / SALT_FILE, other / SALT_FILE)


def differences(expected: dict[str, Counter[str]], found: dict[str, Counter[str]]) -> list[str]:
    """Return the differences as text; empty if the tables are equal row for row."""
    found_differences = []
    for name in sorted(expected.keys() | found.keys()):
        missing = expected.get(name, Counter()) - found.get(name, Counter())
        surplus = found.get(name, Counter()) - expected.get(name, Counter())
        if missing or surplus:
            example = next(iter(missing or surplus))
            found_differences.append(
                f"{name}: {missing.total()} rows missing, {surplus.total()} too many, such as {example[:300]}"
            )
    return found_differences
