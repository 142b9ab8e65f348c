"""The control endpoint's bodies as JSON: exact bytes of entries, events, and one error for invalid bodies."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.api.control import ClusterAnswer, SubmitAnswer, SubmitOutcome
from bridge.api.events import event_text
from bridge.api.json import DocumentError, decode, encode
from bridge.api.log import EntryKind, LogEntryView, LogPage, log_entry
from bridge.api.trace import EventPage, Scalar, TraceEvent
from bridge.api.view import VoterView
from consensus.core.entry_data import configuration_entry
from consensus.core.model import Configuration, Entry, Server
from tests.effort import each_case

numbers = st.integers(0, 2**53)


@given(
    st.lists(st.builds(LogEntryView.of, numbers, numbers, st.sampled_from(EntryKind), st.none() | numbers, st.binary()))
)
def test_log_page_keeps_exact_bytes_of_entries(entries: list[LogEntryView]) -> None:
    page = LogPage(1, 10, 9, 10, tuple(entries))
    assert decode(encode(page), LogPage) == page


def test_entry_is_json_text_or_base64() -> None:
    text = LogEntryView.of(7, 2, EntryKind.APPLICATION, 5, b'{"id": 1}')
    other = LogEntryView.of(8, 2, EntryKind.APPLICATION, None, b"\xff\x00")
    entries = json.loads(encode(LogPage(1, 8, 8, 9, (text, other))))["entries"]
    assert entries[0] == {"index": 7, "term": 2, "kind": "application", "logTimeMs": 5, "value": '{"id": 1}'}
    assert entries[1] == {"index": 8, "term": 2, "kind": "application", "logTimeMs": None, "base64": "/wA="}


def test_configuration_entry_is_json_text() -> None:
    entry = configuration_entry(3, Configuration((Server(1, "tcp://127.0.0.1:7669"),)))
    shown = log_entry(4, entry, None)
    assert shown.kind is EntryKind.CONFIGURATION
    assert json.loads(shown.data) == {"voters": [{"id": 1, "endpoint": "tcp://127.0.0.1:7669"}]}


def test_joint_configuration_lists_old_voters_and_learners() -> None:
    one, two, three = (Server(number, f"tcp://{number}") for number in (1, 2, 3))
    value = json.loads(log_entry(4, configuration_entry(3, Configuration((two,), (one,), (three,))), None).data)
    assert {name: [server["id"] for server in servers] for name, servers in value.items()} == {
        "voters": [2],
        "oldVoters": [1],
        "learners": [3],
    }


def test_command_entry_keeps_its_bytes() -> None:
    assert log_entry(4, Entry.command(3, b"x"), 9) == LogEntryView.of(4, 3, EntryKind.APPLICATION, 9, b"x")


def test_event_page_round_trips() -> None:
    data: dict[str, Scalar] = {"leader": "node-1", "term": 3, "rtt": 0.25, "early": False, "previous": None}
    page = EventPage(18, 2, (TraceEvent(17, 1000, None, "leader-elected", "node-2", data),))
    assert decode(encode(page), EventPage) == page


def test_event_text_is_one_sentence() -> None:
    event = TraceEvent(
        1, 0, None, "leader-elected", "node-2", {"term": 3, "early": True, "previous": None, "rtt": 0.25}
    )
    assert event_text(event) == "leader-elected: node-2 leads in term 3"
    assert event_text(replace(event, kind="new-kind")) == "new-kind: term=3 early=yes previous=- rtt=0.25"


def test_event_facts_omit_ids_of_named_servers() -> None:
    data: dict[str, Scalar] = {"server": 2, "name": "node-2", "previous": 3, "previousName": "node-3", "leader": 1}
    assert event_text(TraceEvent(1, 0, None, "new", "node-2", data)) == "new: name=node-2 previousName=node-3 leader=1"


def test_cluster_answer_round_trips() -> None:
    answer = ClusterAnswer(
        "demo", "c0ffee", 2, 3, 217, 1, "node-1", "tcp://127.0.0.1:7701", (VoterView(1, "tcp://a:1"),)
    )
    found = json.loads(encode(answer))
    assert found["leaderEndpoint"] == "tcp://127.0.0.1:7701"
    assert decode(encode(answer), ClusterAnswer) == answer


@each_case("outcome", SubmitOutcome)
def test_submit_is_accepted_only_if_committed(outcome: SubmitOutcome) -> None:
    answer = SubmitAnswer(outcome=outcome, index=5, term=2, reason="because", leader_id=1, leader_endpoint="tcp://a:1")
    found = json.loads(encode(answer))
    assert found["accepted"] is (outcome is SubmitOutcome.COMMITTED)
    assert decode(encode(answer), SubmitAnswer) == answer


@each_case(
    "found",
    [
        {},
        {"schema": 1},
        {"schema": 1, "firstIndex": 1, "lastIndex": 1, "commitIndex": 1, "nextIndex": 2, "entries": [1]},
        {"schema": 1, "firstIndex": 1, "lastIndex": 1, "commitIndex": 1, "nextIndex": 2, "entries": {}},
        {
            "schema": 1,
            "firstIndex": 1,
            "lastIndex": 1,
            "commitIndex": 1,
            "nextIndex": 2,
            "entries": [{"index": 1, "term": 1, "kind": "application", "logTimeMs": None, "base64": "*"}],
        },
    ],
)
def test_invalid_log_page_raises_document_error(found: dict[str, object]) -> None:
    with pytest.raises(DocumentError):
        decode(json.dumps(found).encode(), LogPage)


@pytest.mark.parametrize(
    "data",
    [{"nested": {}}, {"list": []}, {"infinite": float("inf")}, {str(number): 1 for number in range(40)}],
)
def test_event_with_non_scalar_data_is_refused(data: dict[str, object]) -> None:
    event = {"cursor": 1, "timeMs": 1, "logTimeMs": None, "kind": "x", "node": "n", "data": data}
    with pytest.raises(DocumentError):
        decode(json.dumps({"schema": 1, "next": 2, "lost": 0, "events": [event]}).encode(), EventPage)
