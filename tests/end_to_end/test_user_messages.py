"""User events and queries: an event reaches each node of a farm, and each node replies to a query."""

import json

from tests.end_to_end.farm import START_BOUND_S, Farm, call


def test_event_reaches_all_nodes_and_query_gets_all_replies(farm: Farm) -> None:
    first, *others = farm.nodes
    # When an operator sends an event at one node
    done = call("event", "deploy", "version 2", "--node", first.directory)
    assert done.returncode == 0, done.stderr

    # Then it is in the trace of each other node, with the sender's name
    def is_in_all_traces() -> bool:
        listed = [call("events", "--kind", "user-event", "--node", node.directory).stdout for node in others]
        return all(f"deploy from {first.name}: version 2" in each for each in listed)

    farm.wait_until(is_in_all_traces, START_BOUND_S, "the event is in each trace")
    # And each node replies to a known query
    result = json.loads(call("query", "ping", "--json", "--timeout", "20", "--node", others[0].directory).stdout)
    assert [each["payload"] for each in result["answers"]] == sorted(node.name for node in farm.nodes)
    assert result["silent"] == []
