"""A farm under all attacks together, for ten minutes: it keeps publishing, and keeps all acknowledged entries.

    0 .. 40 %     all attacks; a router is killed and started again at intervals
    40 .. 60 %    the hostile member also acts as its Raft server. It is a voter, and Raft is not Byzantine: until it
                  stops, commitment may stop. Publishing continues.
    60 %          the hostile member is evicted
    60 .. 100 %   all attacks, including the evicted member's

`GARLICFARM_ATTACK_S` shortens the ten minutes. The test prints its actions and the greatest age of the published
structure.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.end_to_end.farm import START_BOUND_S, Farm, Node, local_farm, seeded
from tests.end_to_end.submitter import Submitter
from tests.end_to_end.test_membership import add_node
from tests.end_to_end.test_rolling_restart import AGE_BOUND_S, Watch
from tests.soak.attackers import Attackers, facts_of

pytestmark = pytest.mark.soak

DURATION_S = float(os.environ.get("GARLICFARM_ATTACK_S") or 600)
KILL_EVERY_S = 45.0
EVICTION_BOUND_S = 120.0
GROWTH_BOUND_BYTES = 64 * 1024 * 1024
PLACES_OF_FOUR = 4
"""The maximum of one of four servers in a structure of sixteen places."""


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Farm]:
    """Return a farm of three founders and one admitted node, all voters."""
    with local_farm(tmp_path / "farm", 3) as farm:
        farm.start_all()
        farm.wait_settled()
        fourth = add_node(farm, "node-4")
        farm.wait_until(lambda: len(fourth.view().raft.voters) == 4, START_BOUND_S, "the fourth node votes")
        farm.wait_settled()
        yield farm


def run_attacks(
    farm: Farm, correct: list[Node], attackers: Attackers, random: Random, until: float, *, kill: bool
) -> None:
    """Wait until `until`; with `kill`, kill and restart a router at intervals."""
    next_kill = time.monotonic() + KILL_EVERY_S / 3
    while time.monotonic() < until:
        assert attackers.alive, attackers.faults
        assert not attackers.faults, attackers.faults
        ended = [node.name for node in correct if not node.running]
        assert not ended, f"{ended} ended unexpectedly\n{farm.logs()}"
        if kill and time.monotonic() > next_kill:
            node = random.choice(correct)
            node.kill()
            time.sleep(random.uniform(0, 3))
            node.start()
            next_kill = time.monotonic() + KILL_EVERY_S
        time.sleep(0.5)


def test_farm_under_attack_keeps_publishing_without_loss(four: Farm) -> None:
    random = seeded("under attack")
    *correct, hostile = four.nodes
    leader = four.led_by_another(hostile)
    memory = {node.name: node.resident_bytes() for node in correct}
    hostile_id = hostile.view().node.node_id
    hostile.kill()
    four.nodes.remove(hostile)
    facts = facts_of(four, correct)
    attackers = Attackers(facts, random, hostile.directory)
    own = {leaf.hash for leaf in attackers.hostile_leaves}
    began = time.monotonic()
    with Watch(four) as watch, Submitter(four, correct, "attacked") as submitter, attackers:
        run_attacks(four, correct, attackers, random, began + 0.4 * DURATION_S, kill=True)
        listed = [len(own & set(each.entries)) for node in correct for each in node.published()]
        assert max(listed, default=0) <= PLACES_OF_FOUR, "a hostile member has more than its places"
        attackers.hostile_server_speaks = True
        run_attacks(four, correct, attackers, random, began + 0.6 * DURATION_S, kill=False)
        attackers.hostile_server_speaks = False
        four.wait_done("node", "evict", hostile_id, "--yes", "--force", at=lambda: four.leader() or leader)
        attackers.hostile_server_speaks = True
        submitter.wait_for(5, EVICTION_BOUND_S)
        run_attacks(four, correct, attackers, random, began + DURATION_S, kill=True)
    four.start_all()
    four.wait_settled()
    grown = {node.name: (node.resident_bytes() - memory[node.name]) / 2**20 for node in correct}
    print(
        f"{time.monotonic() - began:.0f} s, {len(submitter.acknowledged)} acknowledged,"
        f" {watch.handed_over} structures handed over, the oldest {watch.oldest_s:.1f} s old"
        f" (bound {AGE_BOUND_S:.0f}); grown by MiB: { ({name: round(mib) for name, mib in grown.items()}) };"
        f" actions: {dict(attackers.actions)}"
    )
    assert not attackers.faults
    assert not submitter.errors
    assert not watch.faults, watch.faults[:5]
    for node in correct:
        four.wait_log(node, submitter.acknowledged)
        log = node.log_file.read_text(errors="replace")
        assert "Traceback" not in log, node.name
        assert all(not own & set(each.entries) for each in node.published()), "an evicted node's leaves are listed"
    assert max(grown.values()) * 2**20 < GROWTH_BOUND_BYTES
    assert {voter.name for voter in correct[0].view().raft.voters} == {node.name for node in correct}
