"""An operator's user event reaches every node of a farm, and a query is answered by all of them."""

import json

from tests.end_to_end.farm import START_BOUND_S, Farm, call


def test_an_event_reaches_all_nodes_and_a_query_is_answered_by_all(farm: Farm) -> None:
    first, *others = farm.nodes
    # When an operator sends an event at one node
    done = call("event", "deploy", "version 2", "--node", first.directory)
    assert done.returncode == 0, done.stderr

    # Then it stands in the trace of each, under the sender's name
    def told() -> bool:
        listed = [call("events", "--kind", "user-event", "--node", node.directory).stdout for node in others]
        return all(f"deploy from {first.name}: version 2" in each for each in listed)

    farm.wait_until(told, START_BOUND_S, "the event is in each trace")
    # And every node answers a query that all know
    answer = json.loads(call("query", "ping", "--json", "--timeout", "20", "--node", others[0].directory).stdout)
    assert [each["payload"] for each in answer["answers"]] == sorted(node.name for node in farm.nodes)
    assert answer["silent"] == []
