"""What the long tests of the pipeline share: a made-up log, a run of the pipeline as a process, tables as rows."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.generate import generate
from pipeline.load_model import LoadModel

NOT_TABLES = ("checkpoint", "checkpoints")
PLACE_COLUMNS = frozenset({"batch_id"})
"""Which micro-batch a row came with: no part of the row."""


def made_up_log(directory: Path, routers: int, days: float, seed: int) -> int:
    """A generated log; how many entries it has."""
    return generate(directory, LoadModel(routers, days, seed, short_destinations=True)).entries


def pipeline_command(log: Path, output: Path, *more: str) -> list[str]:
    """One run of the pipeline over all that the log has."""
    return [
        sys.executable,
        *("-m", "bridge.cli.main", "pipeline", "run", "--once", "--json"),
        *("--directory", str(log), "--output", str(output), *more),
    ]


def start(command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """The command as a group of processes of its own, so that all of it can be killed at once; output to `log`."""
    with log.open("ab") as told:
        return subprocess.Popen(
            command,
            stdout=told,
            stderr=told,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def finished(process: subprocess.Popen[bytes], log: Path, patience_s: float) -> None:
    """Wait for a good end; RuntimeError with what the process said otherwise."""
    try:
        code = process.wait(patience_s)
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        tail = log.read_bytes()[-4000:].decode("utf-8", "replace")
        raise RuntimeError(f"the run ended with {code} (None: not in {patience_s:.0f} s):\n{tail}")


def tables_of(output: Path) -> dict[str, Counter[str]]:
    """Every Parquet table below `output` as a multiset of rows, whatever files they lie in."""
    tables: dict[str, Counter[str]] = {}
    for file in sorted(output.rglob("*.parquet")):
        place = file.relative_to(output).parts
        hidden = any(part.startswith((".", "_")) or part.endswith((".old", ".new")) for part in place)
        if place[0] in NOT_TABLES or hidden or len(place) < 2:
            continue
        rows = tables.setdefault(place[0], Counter())
        for row in pq.ParquetFile(file).read().to_pylist():
            rows[repr(sorted((name, value) for name, value in row.items() if name not in PLACE_COLUMNS))] += 1
    return tables


def differences(expected: dict[str, Counter[str]], found: dict[str, Counter[str]]) -> list[str]:
    """In words, what one has and the other has not; empty if they are equal row for row."""
    told = []
    for name in sorted(expected.keys() | found.keys()):
        missing = expected.get(name, Counter()) - found.get(name, Counter())
        surplus = found.get(name, Counter()) - expected.get(name, Counter())
        if missing or surplus:
            example = next(iter(missing or surplus))
            told.append(f"{name}: {missing.total()} rows missing, {surplus.total()} too many, such as {example[:300]}")
    return told
