"""Both engines write the same tables, and continue each other's directories."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.repair.damage import examine
from pipeline.run import RunSettings, run_once
from tests.pipeline.farm_log_server import MadeUpLog, serve_log, three_servers
from tests.soak.pipeline_tables import differences, same_pseudonyms, tables_of
from tests.spark import JVM_SOCKETS

pytestmark = JVM_SOCKETS


def run_in_turns(log: MadeUpLog, output: Path, address: str, engines: list[SparkSession | None]) -> None:
    """Run each engine after the other in one directory; each finds new entries and events."""
    settings = RunSettings(output, {"node": address}, watch=True, events={"node": address})
    entries, events = log.entries, log.events
    for number, engine in enumerate(engines, 1):
        log.entries = entries[: len(entries) * number // len(engines)]
        log.events = events[: len(events) * number // len(engines)]
        run_once(engine, settings)


@pytest.mark.soak
def test_engines_in_turns_write_tables_of_one_engine(session: SparkSession, tmp_path: Path) -> None:
    log = three_servers(minutes=2)
    for number in range(9):
        log.add_event("member-suspect", member=f"node-{number % 3}")
    with serve_log(log, tmp_path / "control.sock") as address:
        run_in_turns(log, tmp_path / "local", address, [None, None, None])
        same_pseudonyms(tmp_path / "local", tmp_path / "turns")
        run_in_turns(log, tmp_path / "turns", address, [None, session, None])
    assert differences(tables_of(tmp_path / "local"), tables_of(tmp_path / "turns")) == []
    assert not examine(tmp_path / "turns")
