"""Batches on a small file system, as a process in its own mount namespace: `unshare --mount python -m … DIRECTORY`.

The process mounts a tmpfs on the directory. Each try fills it up to another number of free pages, so that the batch
fails at another write. The try then frees the space and repeats the batch. The process prints the failures as JSON, and
exits with 1 if rows differ from a run with enough space.
"""

import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

from pipeline.gold.answers import answer_sql
from pipeline.gold.tables import Gold
from pipeline.serve.query import documents
from pipeline.spark.failures import reason_of
from pipeline.tables.delta import stored_rows
from pipeline.tables.files import TableDamagedError
from pipeline.tables.names import SALT_FILE
from pipeline.tables.specs import BASE_SPECS
from tests.pipeline.farm_log_server import MadeUpLog, three_servers
from tests.pipeline.made_tables import gold_rows, tables_of

PAGE = 4096
FREE_PAGES = (0, 3, 20)
DERIVED = "router_health"


def write(output: Path, batch: int) -> None:
    """Write half of a log as a batch, with the watch and the derived tables."""
    log = three_servers(2)
    half = len(log.entries) // 2
    output.mkdir(exist_ok=True)
    (output / SALT_FILE).write_text("the same for all\n", encoding="ascii")
    gold = Gold(output, 60_000)
    part = log.entries[:half] if batch == 0 else log.entries[half:]
    tables_of(MadeUpLog(entries=part), output, batch, gold=gold, watch=True)
    gold.refresh(batch)


def rows_in(output: Path) -> dict[str, list[str]]:
    tables = {spec.name: stored_rows(output / spec.name, spec.schema).to_pylist() for spec in BASE_SPECS.values()}
    return {name: sorted(map(repr, rows)) for name, rows in (tables | {DERIVED: gold_rows(output, DERIVED)}).items()}


def fill(directory: Path, free_pages: int) -> Path:
    """Fill the file system up to some free pages; return the file."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PAGE))
        except OSError:
            size = file.seek(0, 1)
        file.truncate(size // PAGE * PAGE - free_pages * PAGE)
    return filler


def main(directory: Path) -> None:
    """Try each amount of free space."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", directory], check=True)  # noqa: S607 - found on the path
    failures = []
    with TemporaryDirectory() as place:
        undisturbed = Path(place) / "tables"
        write(undisturbed, 0)
        for free_pages in FREE_PAGES:
            copytree(undisturbed, directory / str(free_pages))
        write(undisturbed, 1)
        expected = rows_in(undisturbed)
    for free_pages in FREE_PAGES:
        output = directory / str(free_pages)
        filler = fill(directory, free_pages)
        try:
            write(output, 1)
        except (OSError, TableDamagedError) as error:
            failures.append(reason_of(error))
        filler.unlink()
        write(output, 1)
        found = rows_in(output)
        if not all(row["complete"] for row in documents(output, answer_sql("completeness"))):
            raise SystemExit(f"incomplete after {free_pages} free pages: {failures[-1:]}")
        if different := [name for name, rows in expected.items() if found[name] != rows]:
            raise SystemExit(f"rows of {different} differ after {free_pages} free pages: {failures[-1:]}")
    sys.stdout.write(json.dumps(failures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
