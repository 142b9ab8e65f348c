"""Comparison of a tracer with the walk of one gossip datagram in `docs/reference/walks.md`, call by call."""

import re
from pathlib import Path

import pytest
import trio

from gossip.node import resumption
from tests.node.gossip_farm import in_simulated_time, running_farm, until_all_see_all
from tests.node.gossip_network import MemoryNetwork
from tests.node.gossip_walk import Call, CodecWalk

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "walks.md"
CALLS_MAX = 40
ROW = re.compile(r"^\| \d+ \| \[`[\w.]+`\]\((?:\.\./)+(gossip/[\w/]+\.py)#([\w.]+)\)", re.MULTILINE)


def documented() -> list[Call]:
    """Return the module and function of each row of the walk."""
    chapter = DOCUMENT.read_text(encoding="utf-8").split("\n## One datagram of gossip\n", 1)[1].split("\n## ", 1)[0]
    return [(path.removesuffix(".py").replace("/", "."), function) for path, function in ROW.findall(chapter)]


@in_simulated_time
async def test_ping_with_update_makes_documented_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine the test takes longer than the real time between two checks for a resumed machine.
    monkeypatch.setattr(resumption, "BOOT_ID_EVERY_NS", 2**62)
    async with running_farm(MemoryNetwork()) as farm:
        # Given two idle members
        alice, boris = await farm.start_many(2)
        await until_all_see_all([alice, boris])
        await trio.sleep(30)
        # When one of them changes its metadata, and sends it in a ping
        walk = CodecWalk(alice)
        with walk.recorded():
            boris.set_metadata(b"another description")
            await trio.sleep(5)
    # Then the ping made the documented calls until its ack, within the limit
    assert walk.is_done
    assert walk.written == documented()
    assert len(walk.calls) <= CALLS_MAX, walk.calls
