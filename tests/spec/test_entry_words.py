"""Log entries and round-trip times as text: each type of entry has a name and a line with names instead of ids."""

from hashlib import sha256
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.api.entry_words import ENTRY_TYPES, Names, entry_words
from bridge.api.log import EntryKind, LogEntryView, log_entry
from bridge.api.verdict import loss_of_each
from bridge.api.view import VoterView
from bridge.core.log.figures import RouterStatus
from bridge.core.log.kinds import ALL_KINDS, kind_of
from bridge.core.log.records import (
    Admission,
    Approval,
    ClientKey,
    Clock,
    Correction,
    CostFactor,
    Eviction,
    Exclusion,
    Factors,
    Force,
    GroupOffset,
    IdentityRecord,
    KafkaRecord,
    KeyReplacement,
    LeafStatus,
    Level,
    OperatorCommand,
    ProducerStart,
    Publication,
    Removal,
    Report,
    Scope,
)
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.log.entries import encode
from bridge.wire.log.handover_entries import Handover, handover_entry
from bridge.wire.membership.round_trips import ANSWER_LIMIT_BYTES, read_round_trips, write_round_trips
from consensus import Configuration, Entry, NoOp, Server, encode_configuration
from consensus import EntryKind as CoreEntryKind
from consensus.core.entry_data import encode_no_op
from tests.destinations import new_demo_leaf
from tests.effort import each_case
from tests.operator_views import farm_view
from tests.spec.test_verdict import healthy

NODE, OTHER = bytes.fromhex("3f9a11c05d6e7f80"), bytes(7) + b"\x01"
HASH, BOX = "a" * 52, bytes(92)
CLIENT_KEY = bytes(range(32))
CLIENT_ID = sha256(CLIENT_KEY).digest()[:8]
LEAF, MASTER = new_demo_leaf(), new_master_key(demo=True).destination
AnyRecord = Report | Clock | Publication | IdentityRecord | OperatorCommand | KafkaRecord
RECORDS: list[tuple[AnyRecord, str]] = [
    (
        Report("demo", 1, 2, RouterStatus(attached=True), destinations=(LeafStatus(LEAF.base64, healthy=True),)),
        "node-2: 1 of 1",
    ),
    (Clock(1_000, 1), "log time 00:00:01 by node-1"),
    (
        Publication(MASTER.base64, 2, 61, "ab" * 32),
        f"node-2 may publish {MASTER.address[:12]}….b32.i2p, second 00:01:01",
    ),
    (Admission(NODE, "oslo", server_id=7), "oslo (3f9a11c05d6e7f80) is admitted as server 7"),
    (Approval(NODE, "oslo", OTHER, server_id=8), "takes the name oslo from 0000000000000001, as server 8"),
    (Eviction(NODE, 3, ((OTHER, BOX),)), "is evicted; keys of era 3 are sealed for 1 member"),
    (KeyReplacement(3, ((OTHER, BOX),)), "all keys are replaced; the keys of era 3"),
    (Level(2, "0.1.0"), "feature level 2, of version 0.1.0"),
    (Exclusion(HASH, excluded=True), "is excluded"),
    (CostFactor(HASH, 1.5), "is multiplied by 1.5"),
    (Force(MASTER.base64), "is published again"),
    (Factors(7, "v1", {HASH: 1.5}), "the pipeline weighs 1 leaf by the log up to 7 (v1)"),
    (Removal(1, removed=True), "node-1 is removed"),
    (ClientKey(CLIENT_ID, "collector", CLIENT_KEY, (Scope.WEIGHTS,), admitted=True), "may: weights"),
    (Correction(1_000), "log time goes back to 00:00:01"),
    (ProducerStart("p-1"), "a Kafka producer begins: p-1"),
    (GroupOffset("readers", 12), "the Kafka group readers has read up to 12"),
]


def application(data: bytes) -> LogEntryView:
    return LogEntryView.of(9, 1, EntryKind.APPLICATION, 0, data)


@each_case(("record", "words"), RECORDS, ids=lambda each: type(each).__name__)
def test_entry_type_has_its_text(record: AnyRecord, words: str) -> None:
    found = entry_words(application(encode(record)), Names(farm_view()))
    assert words in found.text
    assert found.type == kind_of(record).type
    assert found.by == (record.server_id if isinstance(record, Report | Clock | Publication) else None)


def test_entry_types_all_covered() -> None:
    unions = (get_args(IdentityRecord), get_args(OperatorCommand), get_args(KafkaRecord))
    assert {type(record) for record, _ in RECORDS} == {Report, Clock, Publication}.union(*unions)
    assert set(ENTRY_TYPES) == {*(each.type for each in ALL_KINDS), "handover", "configuration", "no-op"}


@pytest.mark.parametrize(("to", "name"), [(2, "node-2"), (None, "another voter")])
def test_handover_entry_has_its_type_and_text(to: int | None, name: str) -> None:
    found = entry_words(application(handover_entry(Handover(7, to))), Names(farm_view()))
    assert (found.type, found.text) == ("handover", f"the leader of term 7 hands leadership over to {name}")


@given(st.binary(max_size=200))
def test_unknown_entry_shown_unchanged(data: bytes) -> None:
    found = entry_words(application(data), Names(farm_view()))
    assert found.type in ENTRY_TYPES
    if found.type == "other":
        assert found.text == data.decode(errors="backslashreplace")


def test_configuration_text_has_names_or_raw_data() -> None:
    names = Names(farm_view())
    one, two, nine = (Server(number, f"tcp://10.0.0.{number}:7669") for number in (1, 2, 9))

    def words(entry: Entry) -> tuple[str, str]:
        found = entry_words(log_entry(9, entry, None), names)
        return found.type, found.text

    changing = encode_configuration(Configuration((one, two), (one,), (nine,)))
    assert words(Entry(3, CoreEntryKind.CONFIGURATION, changing)) == (
        "configuration",
        "voters node-1, node-2; before node-1; learners server 9",
    )
    assert words(Entry(3, CoreEntryKind.NO_OP, encode_no_op(NoOp(2)))) == ("no-op", "node-2 begins to lead")
    other = LogEntryView.of(9, 3, EntryKind.CONFIGURATION, None, b'{"quorum":3}')
    assert entry_words(other, names).text == '{"quorum":3}'


def test_server_found_by_name_or_number() -> None:
    names = Names(farm_view())
    assert (names.server_named("node-2"), names.server_named("2"), names.server_named("nowhere")) == (2, 2, None)
    assert names.server(99) == "server 99"
    view = farm_view()
    voters = tuple(VoterView(each, "tcp://x:1", "node-1", evicted=each == 8) for each in (2, 7, 8))
    restored = replace(view, members=(), raft=replace(view.raft, voters=voters))
    assert Names(restored).server_named("node-1") == 7


@given(st.dictionaries(st.binary(min_size=8, max_size=8), st.floats(0, 10**9), max_size=60))
def test_round_trips_fit_into_reply_quickest_first(measured: dict[bytes, float]) -> None:
    text = write_round_trips((node.hex(), rtt_ms) for node, rtt_ms in measured.items())
    assert len(text) <= ANSWER_LIMIT_BYTES
    found = read_round_trips(text)
    quickest = sorted(measured.items(), key=lambda pair: pair[1])[: len(found)]
    assert [node for node, _ in found] == [node.hex()[:8] for node, _ in quickest]
    assert len(found) >= min(len(measured), 30)


@given(st.text())
def test_invalid_reply_lacks_round_trips(text: str) -> None:
    assert all(len(node) == 8 and rtt_ms >= 0 for node, rtt_ms in read_round_trips(text))


def test_server_loss_allowed_with_majority_publisher_and_leaf() -> None:
    view = healthy()
    assert loss_of_each(view) == {1: "", 2: "", 3: ""}
    one = replace(
        view.publishing[0],
        standings=tuple(
            replace(each, inability=None if each.raft_id == 2 else "no key") for each in view.publishing[0].standings
        ),
    )
    assert loss_of_each(replace(view, publishing=(one,)))[2] == "a server that can publish"
    members = tuple(
        replace(each, status=type(each.status).DEAD) if each.raft_id == 3 else each for each in view.members
    )
    followers = tuple(
        replace(each, last_contact_ms=None) if each.raft_id == 3 else each for each in view.raft.followers
    )
    two = replace(view, members=members, raft=replace(view.raft, followers=followers))
    assert loss_of_each(two) == {1: "a majority", 2: "a majority", 3: "down"}
