"""`garlicfarm pipeline run` with a running farm."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.farm import Farm, call
from tests.spark import COMMAND_BOUND_S, QUICK_JVM


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.soak)])
def test_pipeline_shows_router_health_of_each_server(
    engine: str, farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JVM)
    nodes = [argument for node in farm.nodes for argument in ("--node", str(node.directory))]
    ended = call(
        *("pipeline", "run", "--once", "--json", "--output", str(tmp_path / "tables"), "--engine", engine, *nodes),
        timeout_s=COMMAND_BOUND_S,
        anew=True,
    )
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {row["server_id"] for row in rows} == {1, 2, 3}
    assert all(0 < row["availability"] <= 1 for row in rows)
    assert list((tmp_path / "tables").rglob("*.parquet"))
