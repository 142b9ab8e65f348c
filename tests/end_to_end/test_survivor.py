"""With two of three servers killed for good the third goes on publishing, says so, and becomes a farm again."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.api.alarms import ISOLATED, PUBLISHING_WITHOUT_QUORUM
from bridge.api.view import RaftRole
from tests.end_to_end.farm import PUBLISHER_BOUND_S, START_BOUND_S, Farm, Node, call, exported_key, local_farm
from tests.end_to_end.layout import Read

OWN_FILES = ("node.toml", "signing.key", "leaf.destination")


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """A farm of the test's own, which is another one afterwards."""
    with local_farm(tmp_path / "farm", 3) as made:
        made.start_all()
        yield made


def alarms(node: Node) -> dict[str, str]:
    """What stands at the node."""
    return {alarm.kind: alarm.text for alarm in node.view().alarms}


def published(node: Node) -> Read | None:
    """What its router keeps."""
    return next(iter(node.published()), None)


def set_aside(node: Node) -> None:
    """What the operator does with an old member: `mv STATE_DIR STATE_DIR.old`, and its own files back."""
    old = node.directory.with_name(f"{node.name}.old")
    node.directory.rename(old)
    node.directory.mkdir(mode=0o700)
    for name in OWN_FILES:
        shutil.copy2(old / name, node.directory / name)


def test_the_survivor_publishes_alone_and_recover_makes_a_farm_of_it(farm: Farm) -> None:
    farm.wait_settled()

    def publishes_all() -> tuple[Node, Read] | None:
        # The first structure of a farm may list those leaves only that have been reported so far.
        chosen = {each.publisher_name for node in farm.nodes for each in node.view().publishing}
        found = [(node, read) for node in farm.nodes if chosen == {node.name} and (read := published(node))]
        return next((each for each in found if len(each[1].entries) == len(farm.nodes)), None)

    publisher, last = farm.wait_until(publishes_all, START_BOUND_S, "a node publishes every leaf")
    survivor = next(node for node in farm.nodes if node is not publisher)
    lost = [node for node in farm.nodes if node is not survivor]
    before = survivor.view()

    for node in lost:
        node.kill()

    def publishes_alone() -> Read | None:
        # It may have published before, so a structure of its own is nothing new yet; and it may hear of one death
        # before it hears of the other. Once fewer than half of the leaves are well, all are listed.
        found = published(survivor)
        later = found is not None and found.published_s > last.published_s and found.entries == last.entries
        return found if later and {"no-quorum", PUBLISHING_WITHOUT_QUORUM.kind} <= alarms(survivor).keys() else None

    alone = farm.wait_until(
        publishes_alone, PUBLISHER_BOUND_S, "the survivor publishes all leaves, and that it is alone"
    )

    # Its process may end, too: started again it finds no peer that knows what is committed.
    survivor.kill()
    for path in survivor.structures():
        path.unlink()
    survivor.start()
    again = farm.wait_until(lambda: published(survivor), PUBLISHER_BOUND_S, "it publishes again after a restart")
    assert again.published_s > alone.published_s
    refused = call("recover", "--from", survivor.directory, "--yes")
    assert refused.returncode == 1
    assert "stop it" in refused.stderr
    survivor.stop()

    told = json.loads(call("recover", "--from", survivor.directory, "--yes", "--json").stdout)
    assert len(told["leftBehind"]) == len(lost)
    survivor.start()

    def leads_alone() -> bool:
        view = survivor.view()
        # It leads a moment before the entry that it begins with is durable.
        begun = view.raft.role is RaftRole.LEADER and view.raft.commit_index > before.raft.commit_index
        # Its seeds name the lost nodes, so it may be `isolated` until they return.
        return begun and bool(view.publishing) and alarms(survivor).keys() <= {ISOLATED.kind}

    farm.wait_until(leads_alone, START_BOUND_S, "the survivor leads the new cluster alone, without further alarms")
    view = survivor.view()
    assert view.farm.cluster_id == told["newClusterId"] != before.farm.cluster_id
    assert told["lastIndex"] >= before.raft.commit_index, "what the survivor knew to be committed is in the new farm"
    assert [voter.name for voter in view.raft.voters] == [survivor.name]

    def later() -> bool:
        found = published(survivor)
        return found is not None and found.published_s > again.published_s

    farm.wait_until(later, START_BOUND_S, "what the new farm publishes is later than anything before")

    old = lost[0].start()
    farm.wait_until(
        lambda: "move its state directory away" in alarms(old).get("formation", ""),
        START_BOUND_S,
        "the old member says that it is cut off, and the way back",
    )
    assert len(survivor.view().raft.voters) == 1
    old.stop()
    exported_key(survivor, farm.directory / "farm.key", "--replace")
    for node in lost:
        set_aside(node)
        node.start()
    farm.wait_settled()
    assert {node.view().farm.cluster_id for node in farm.nodes} == {told["newClusterId"]}
