"""The client of a farm through a loopback SAM bridge: opening, failing leaves, and the state of the client."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.connect import LeafSilentError
from tests.node.connect_stage import connect_stage, request, until

BOTH_KINDS = pytest.mark.parametrize("java_like", [False, True], ids=["i2pd", "java"])


@pytest.fixture
def simulated_clock() -> MockClock:
    return MockClock(autojump_threshold=0.02)


@BOTH_KINDS
async def test_connect_request_gets_reply_of_leaf(
    simulated_clock: MockClock, tmp_path: Path, *, java_like: bool
) -> None:
    async with connect_stage(tmp_path, java_like=java_like) as stage, stage.client() as farm:
        assert (await request(farm)).startswith("leaf-")
        await farm.wait_ready()
        status = farm.status()
    assert (status.ready, status.problem, status.demo) == (True, None, False)
    assert sum(leaf.successes for leaf in status.leaves) == 1
    del simulated_clock


@BOTH_KINDS
async def test_connect_dead_leaf_fails_and_is_last(
    simulated_clock: MockClock, tmp_path: Path, *, java_like: bool
) -> None:
    async with connect_stage(tmp_path, java_like=java_like) as stage, stage.client() as farm:
        stage.publish(10, 100, 100)
        await request(farm)
        stage.network.dead.add(stage.leaves[0].hash)
        began_s = trio.current_time()
        replies: list[str] = []
        failures: list[str] = []
        while len(replies) < 20:
            try:
                replies.append(await request(farm))
            except LeafSilentError as error:
                failures.append(str(error))
        assert all("did not reply within 5.0 s" in failure for failure in failures)
        assert len(failures) == (0 if java_like else 1)
        assert trio.current_time() - began_s < 8
        assert "leaf-0" not in replies
        assert len([line for leaf in stage.leaves for line in leaf.requests]) == 21
        await until(lambda: farm.status().leaves[0].state == "failed")
    del simulated_clock
