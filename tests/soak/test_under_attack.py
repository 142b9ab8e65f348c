"""A farm under all attacks together, for ten minutes: it keeps publishing, and loses nothing that it acknowledged.

    0 .. 40 %     all attack; a router is killed and started again now and then
    40 .. 60 %    the hostile member also speaks as its Raft server. It is a voter, and Raft is not Byzantine: while it
                  speaks, commitment may stop. Publishing goes on.
    60 %          the hostile member is evicted
    60 .. 100 %   all attack, the evicted one too

`GARLICFARM_ATTACK_S` shortens the ten minutes. It prints what was done, and how old the published structure became.
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
from tests.soak.attackers import Attackers, prey_of

pytestmark = pytest.mark.soak

DURATION_S = float(os.environ.get("GARLICFARM_ATTACK_S") or 600)
KILL_EVERY_S = 45.0
EVICTION_BOUND_S = 120.0
GROWTH_BOUND_BYTES = 64 * 1024 * 1024
PLACES_OF_FOUR = 4
"""What a server of four has at most in a structure of sixteen."""


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Farm]:
    """Three founders and a router that came later, which all vote."""
    with local_farm(tmp_path / "farm", 3) as farm:
        farm.start_all()
        farm.wait_settled()
        fourth = add_node(farm, "node-4")
        farm.wait_until(lambda: len(fourth.view().raft.voters) == 4, START_BOUND_S, "the fourth node votes")
        farm.wait_settled()
        yield farm


def go_on(farm: Farm, honest: list[Node], attackers: Attackers, random: Random, until: float, *, kill: bool) -> None:
    """Let time pass, and kill and start a router now and then."""
    next_kill = time.monotonic() + KILL_EVERY_S / 3
    while time.monotonic() < until:
        assert attackers.alive, attackers.faults
        assert not attackers.faults, attackers.faults
        ended = [node.name for node in honest if not node.running]
        assert not ended, f"{ended} ended by themselves\n{farm.logs()}"
        if kill and time.monotonic() > next_kill:
            node = random.choice(honest)
            node.kill()
            time.sleep(random.uniform(0, 3))
            node.start()
            next_kill = time.monotonic() + KILL_EVERY_S
        time.sleep(0.5)


def test_a_farm_under_all_attacks_keeps_publishing_and_loses_nothing(four: Farm) -> None:
    random = seeded("under attack")
    *honest, hostile = four.nodes
    leader = four.led_by_another(hostile)
    memory = {node.name: node.resident_bytes() for node in honest}
    hostile_id = hostile.view().node.node_id
    hostile.kill()
    four.nodes.remove(hostile)
    prey = prey_of(four, honest)
    attackers = Attackers(prey, random, hostile.directory)
    own = {leaf.hash for leaf in attackers.hostile_leaves}
    began = time.monotonic()
    with Watch(four) as watch, Submitter(four, honest, "attacked") as submitter, attackers:
        go_on(four, honest, attackers, random, began + 0.4 * DURATION_S, kill=True)
        listed = [len(own & set(each.entries)) for node in honest for each in node.published()]
        assert max(listed, default=0) <= PLACES_OF_FOUR, "a hostile member has more than its places"
        attackers.hostile_server_speaks = True
        go_on(four, honest, attackers, random, began + 0.6 * DURATION_S, kill=False)
        attackers.hostile_server_speaks = False
        four.wait_done("node", "evict", hostile_id, "--yes", "--force", at=lambda: four.leader() or leader)
        attackers.hostile_server_speaks = True
        submitter.wait_for(5, EVICTION_BOUND_S)
        go_on(four, honest, attackers, random, began + DURATION_S, kill=True)
    four.start_all()
    four.wait_settled()
    grown = {node.name: (node.resident_bytes() - memory[node.name]) / 2**20 for node in honest}
    print(
        f"{time.monotonic() - began:.0f} s, {len(submitter.acknowledged)} acknowledged,"
        f" {watch.handed_over} structures handed over, the oldest {watch.oldest_s:.1f} s old"
        f" (bound {AGE_BOUND_S:.0f}); grown by MiB: { ({name: round(mib) for name, mib in grown.items()}) };"
        f" deeds: {dict(attackers.deeds)}"
    )
    assert not attackers.faults
    assert not submitter.errors
    assert not watch.faults, watch.faults[:5]
    for node in honest:
        four.wait_log(node, submitter.acknowledged)
        log = node.log_file.read_text(errors="replace")
        assert "Traceback" not in log, node.name
        assert all(not own & set(each.entries) for each in node.published()), "an evicted node's leaves are listed"
    assert max(grown.values()) * 2**20 < GROWTH_BOUND_BYTES
    assert {voter.name for voter in honest[0].view().raft.voters} == {node.name for node in honest}
