"""Two of three servers are permanently lost: the third one keeps publishing, raises alarms, and becomes a new farm."""

import json
import shutil

from bridge.api.alarms import ISOLATED, PUBLISHING_WITHOUT_QUORUM
from bridge.api.view import RaftRole
from tests.end_to_end.farm import PUBLISHER_BOUND_S, START_BOUND_S, Farm, Node, call, exported_key
from tests.end_to_end.layout import Read

OWN_FILES = ("node.toml", "signing.key", "leaf.key")


def alarms(node: Node) -> dict[str, str]:
    return {alarm.kind: alarm.text for alarm in node.view().alarms}


def published(node: Node) -> Read | None:
    return next(iter(node.published()), None)


def set_aside(node: Node) -> None:
    """Replace the state directory like an operator: `mv STATE_DIR STATE_DIR.old`, then copy back its own files."""
    old = node.directory.with_name(f"{node.name}.old")
    node.directory.rename(old)
    node.directory.mkdir(mode=0o700)
    for name in OWN_FILES:
        shutil.copy2(old / name, node.directory / name)


def test_remaining_server_publishes_and_recovers_farm(farm: Farm) -> None:
    farm.wait_settled()

    def publishes_all() -> tuple[Node, Read] | None:
        # The first structure of a farm may contain only the leaves reported so far.
        chosen = {each.publisher_name for node in farm.nodes for each in node.view().publishing}
        found = [(node, read) for node in farm.nodes if chosen == {node.name} and (read := published(node))]
        return next((each for each in found if len(each[1].entries) == len(farm.nodes)), None)

    publisher, last = farm.wait_until(publishes_all, START_BOUND_S, "a node publishes every leaf")
    remaining = next(node for node in farm.nodes if node is not publisher)
    lost = [node for node in farm.nodes if node is not remaining]
    before = remaining.view()

    for node in lost:
        node.kill()

    def publishes_alone() -> Read | None:
        # The server may have published before, so its own structure alone is not sufficient. It may also mark the
        # others dead at different times. If fewer than half of the leaves are healthy, all of them are listed.
        found = published(remaining)
        later = found is not None and found.published_s > last.published_s and found.entries == last.entries
        return found if later and {"no-quorum", PUBLISHING_WITHOUT_QUORUM.kind} <= alarms(remaining).keys() else None

    alone = farm.wait_until(
        publishes_alone, PUBLISHER_BOUND_S, "the remaining server publishes all leaves, with both alarms"
    )

    # The remaining process may end, too. After a restart it does not find a peer with the committed entries.
    remaining.kill()
    for path in remaining.structures():
        path.unlink()
    remaining.start()
    again = farm.wait_until(
        lambda: published(remaining), PUBLISHER_BOUND_S, "the server publishes again after a restart"
    )
    assert again.published_s > alone.published_s
    result = call("recover", "--from", remaining.directory, "--yes")
    assert result.returncode == 1
    assert "stop it" in result.stderr
    remaining.stop()

    recovery = json.loads(call("recover", "--from", remaining.directory, "--yes", "--json").stdout)
    assert len(recovery["leftBehind"]) == len(lost)
    remaining.start()

    def leads_alone() -> bool:
        view = remaining.view()
        # The server becomes leader a moment before its first entry is durable.
        is_leading = view.raft.role is RaftRole.LEADER and view.raft.commit_index > before.raft.commit_index
        # Its seeds name the lost nodes, so the alarm `isolated` may be active until they return.
        return is_leading and bool(view.publishing) and alarms(remaining).keys() <= {ISOLATED.kind}

    farm.wait_until(leads_alone, START_BOUND_S, "the server leads the new cluster alone, without further alarms")
    view = remaining.view()
    assert view.farm.cluster_id == recovery["newClusterId"] != before.farm.cluster_id
    assert recovery["lastIndex"] >= before.raft.commit_index, "the new farm has all entries committed before"
    assert [voter.name for voter in view.raft.voters] == [remaining.name]

    def later() -> bool:
        found = published(remaining)
        return found is not None and found.published_s > again.published_s

    farm.wait_until(later, START_BOUND_S, "the new farm publishes a newer structure")

    old = lost[0].start()
    farm.wait_until(
        lambda: "move its state directory away" in alarms(old).get("formation", ""),
        START_BOUND_S,
        "the old member reports that it is excluded, with the remedy",
    )
    assert len(remaining.view().raft.voters) == 1
    old.stop()
    exported_key(remaining, farm.directory / "farm.key", "--replace")
    for node in lost:
        set_aside(node)
        node.start()
    farm.wait_settled()
    assert {node.view().farm.cluster_id for node in farm.nodes} == {recovery["newClusterId"]}
