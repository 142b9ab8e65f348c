"""`/v1/history` and `/v1/views` of real nodes: names on a new farm, a killed node, and a restarted node."""

import json
from pathlib import Path

from bridge.api.control_routes import HISTORY, VIEWS
from bridge.api.observations.history import HistoryAnswer
from bridge.api.observations.perspectives import PerspectivesAnswer, disagreements
from bridge.core.history.records import RowKind
from tests.end_to_end.farm import Node, call, local_farm

BOUND_S = 60.0


def views(node: Node) -> PerspectivesAnswer:
    return node.ask(lambda client: client.call(VIEWS))


def history(node: Node) -> HistoryAnswer:
    return node.ask(lambda client: client.call(HISTORY, query={"hours": 1}))


def states(found: HistoryAnswer, kind: RowKind, name: str | None = None) -> list[str]:
    """Return the states of a row, oldest first."""
    return [span.text for row in found.rows if (row.kind, row.name) == (kind, name) for span in row.spans]


def test_views_and_history_show_killed_node_by_name(tmp_path: Path) -> None:
    with local_farm(tmp_path, 3) as farm:
        # Given a farm that was just created: its log contains the names only some seconds later.
        farm.start_all()
        leader = farm.wait_settled()
        names = {each.name for each in farm.nodes}
        seen = [each for node in farm.nodes for each in views(node).nodes]
        shown = {name for each in seen for name in (*each.members, each.leader) if name is not None}
        assert shown <= names, "no node is named `server 1`"
        farm.wait_until(lambda: all(agrees(node, names) for node in farm.nodes), BOUND_S, "all nodes see the same")
        first = history(leader)
        assert first.node == leader.name
        assert states(first, RowKind.LEADER)[-1] == leader.name
        # When a follower is killed.
        lost, other = (each for each in farm.nodes if each is not leader)
        lost.kill()
        farm.wait_until(
            lambda: states(history(leader), RowKind.NODE, lost.name)[-1:] == ["dead"], BOUND_S, "its end is recorded"
        )
        # Then its own view is old, and the other nodes agree that it is dead.
        farm.wait_until(lambda: is_lost(leader, lost), BOUND_S, "its view is marked as old")
        # And its stored history ends before its death, and is readable without the node.
        done = call("history", "--state-dir", lost.directory, "--hours", "1", "--json")
        assert done.returncode == 0, done.stderr
        stored = json.loads(done.stdout)
        [seen] = [row for row in stored["rows"] if (row["kind"], row["name"]) == ("node", lost.name)]
        assert [span["text"] for span in seen["spans"]] == ["alive"]
        # When a node restarts, its history contains the states before and after the restart, as separate spans.
        before = history(other)
        other.stop()
        other.start()
        farm.wait_until(lambda: len(states(history(other), RowKind.NODE, other.name)) == 2, BOUND_S, "it records again")
        after = history(other)
        spans = {
            (row.kind, row.name, row.owner): [(span.start_ms, span.text) for span in row.spans] for row in after.rows
        }
        for row in before.rows:
            known = [(span.start_ms, span.text) for span in row.spans]
            assert spans[row.kind, row.name, row.owner][: len(known)] == known


def agrees(node: Node, names: set[str]) -> bool:
    """Return True if all nodes have replied, and have the same view of all nodes."""
    found = views(node)
    complete = all(each.answered and set(each.members) == names for each in found.nodes)
    return complete and {each.name for each in found.nodes} == names and not list(disagreements(found))


def is_lost(node: Node, lost: Node) -> bool:
    """Return True if the view of a lost node is shown with its age, and all other nodes mark the node dead."""
    found = {each.name: each for each in views(node).nodes}
    own = found.pop(lost.name)
    return (
        not own.answered
        and own.age_ms is not None
        and all(each.members[lost.name].value == "dead" for each in found.values())
    )
