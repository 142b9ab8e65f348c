"""Guarantees for clients when processes end: one application per request, linearizable reads, and handovers."""

import json
import threading
from collections import Counter

from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.api.trace import TraceEvent
from bridge.node.control.client import ControlClient
from tests.end_to_end.farm import LEADER_BOUND_S, START_BOUND_S, Farm, Node, call

STREAM = 30


def requests(node: Node) -> Counter[str]:
    """Count the copies of each named request in the node's log."""
    values = [json.loads(entry.data) for entry in node.entries().values() if entry.data[:1] == b"{"]
    return Counter(value["request"] for value in values if "request" in value)


def events(node: Node, first: int = 1) -> list[TraceEvent]:
    """Return the trace from cursor `first` on."""

    async def read(client: ControlClient) -> list[TraceEvent]:
        found: list[TraceEvent] = []
        while page := (await client.events(found[-1].cursor + 1 if found else first, 1000)).events:
            found += page
        return found

    return node.ask(read)


def submit(node: Node, request: str) -> SubmitAnswer:
    """Submit one entry with this request id."""
    entry = json.dumps({"mark": request}).encode()
    return node.ask(lambda client: client.submit(entry, request), 60.0)


def test_requests_repeated_after_leader_kill_are_applied_once(farm: Farm) -> None:
    leader = farm.wait_settled()
    one, other = (node for node in farm.nodes if node is not leader)
    first_index = leader.view().raft.commit_index
    names = [f"end-to-end-{first_index}-{number}" for number in range(1, STREAM + 1)]
    answers: dict[str, SubmitAnswer] = {}

    def stream() -> None:
        for name in names:
            answers[name] = submit(one, name)

    streaming = threading.Thread(target=stream)
    streaming.start()
    farm.wait_until(lambda: len(answers) >= STREAM // 3, START_BOUND_S, "a third of the entries is acknowledged")
    leader.kill()
    streaming.join(2 * START_BOUND_S)
    assert set(answers) == set(names)
    assert {answer.outcome for answer in answers.values()} <= {SubmitOutcome.COMMITTED, SubmitOutcome.UNKNOWN}
    # The farm stores the indexes of the last sixteen requests of a client. Earlier requests are expired.
    stored = names[-16:]
    again = {name: submit(other, name) for name in stored}
    assert {answer.outcome for answer in again.values()} == {SubmitOutcome.COMMITTED}
    for name in stored:
        if answers[name].outcome is SubmitOutcome.COMMITTED:
            assert again[name].index == answers[name].index
    assert len({answer.index for answer in again.values()}) == len(stored)
    assert submit(other, names[0]).outcome is SubmitOutcome.EXPIRED
    copies = requests(other)
    assert all(copies[name] >= 2 for name in stored), "a repetition is a log entry without effect"


def test_submit_command_prints_id_for_repetition(farm: Farm) -> None:
    leader = farm.wait_settled()
    first = json.loads(call("submit", "--json", "--node", leader.directory, '{"mark": "by hand"}').stdout)
    assert first["outcome"] == "committed"
    follower = next(node for node in farm.nodes if node is not leader)
    repeated = ("submit", "--request-id", first["request"], '{"mark": "by hand"}', "--node")
    leader.kill()
    unanswered = call(*repeated, leader.directory)
    assert unanswered.returncode == 1
    assert f"--request-id {first['request']}" in unanswered.stderr
    again = call(*repeated, follower.directory)
    assert again.stdout == f"Committed at index {first['index']}, term {first['term']}.\n"


def test_linearizable_read_includes_acknowledged_entry(farm: Farm) -> None:
    farm.wait_settled()
    for number in range(10):
        writer, reader = farm.nodes[number % 3], farm.nodes[(number + 1) % 3]
        answer = writer.submit({"mark": f"read-{number}"})
        assert answer.outcome is SubmitOutcome.COMMITTED
        assert answer.index is not None
        index = answer.index
        page = reader.ask(lambda client, index=index: client.log(index, 1, linearizable=True))  # type: ignore[misc] # bound
        assert [entry.index for entry in page.entries] == [index]


def test_stopped_leader_hands_over_without_election_timeout(farm: Farm) -> None:
    leader = farm.wait_settled()
    before = leader.view().raft
    last_cursors = {node.name: events(node)[-1].cursor for node in farm.nodes}
    assert leader.stop() == 0

    def successor() -> Node | None:
        found = farm.leader()
        return found if found is not None and found.view().raft.term > before.term else None

    new_leader = farm.wait_until(successor, LEADER_BOUND_S, "another server leads")
    after = new_leader.view()
    handed_over = [line for line in leader.log_file.read_text().splitlines() if "leadership-handed-over" in line]
    assert f"to {new_leader.name}, in term {before.term + 1}" in handed_over[-1]
    assert after.raft.term == before.term + 1, "only the handover caused an election"
    for node in farm.running:
        new = events(node, last_cursors[node.name] + 1)
        campaigns = [event.data["term"] for event in new if event.kind == "election-started"]
        assert campaigns == ([after.raft.term] if node is new_leader else []), (
            f"{node.name} campaigned without a request"
        )
    leader.start()
    farm.wait_until(farm.settled, START_BOUND_S, "the restarted node has joined the farm again")
