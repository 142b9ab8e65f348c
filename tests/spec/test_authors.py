"""Authors and their permitted entries: an entry affects the farm only if its author may write it, and only once."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.farm.state_machine import Change, Farm, RequestRefused
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.kinds import ALL_KINDS, kind_of
from bridge.core.log.records import (
    Admission,
    Approval,
    Author,
    ClientKey,
    Clock,
    Correction,
    CostFactor,
    Eviction,
    Exclusion,
    Factors,
    Force,
    Foreign,
    Level,
    ProvenRecord,
    Publication,
    Record,
    Removal,
    Scope,
)
from bridge.core.log.weights import CommandRefused
from bridge.core.membership.authors import NUMBERS_WINDOW, AuthorNumbers, EntryWithoutEffect, NoEffect
from bridge.core.membership.client_keys import CLIENTS_MAX, Client, ClientChanged, change_client
from bridge.core.state.farm_state import AUTHOR_SESSIONS_MAX, SESSION_LIMITS
from tests.effort import each_case
from tests.spec.farm_stories import BASE_MS, MASTER, TUNING, report

A, B, C, UNKNOWN = (bytes([number]) * 8 for number in (1, 2, 3, 9))
PIPELINE, SCRIPT, DISMISSED = (bytes([number]) * 8 for number in (11, 12, 13))
LEAF = "a" * 52


class Story:
    """A farm of A, B and C (evicted), with a client key of each scope and a removed client key."""

    def __init__(self) -> None:
        self.farm = Farm(BASE_MS, TUNING, founders=(A, B, C))
        self.farm.state = replace(self.farm.state, level=SUPPORTED_LEVEL)
        self.number = 0
        self.index = 0
        self.append(A, Eviction(C, 1, ()))
        self.append(A, client("pipeline", PIPELINE, Scope.WEIGHTS))
        self.append(A, client("script", SCRIPT, Scope.OPERATOR))
        self.append(A, client("old", DISMISSED, Scope.WEIGHTS, Scope.OPERATOR))
        self.append(A, replace(client("old", DISMISSED, Scope.WEIGHTS), admitted=False))

    def append(self, author: bytes | None, record: Record, number: int | None = None) -> tuple[Change, ...]:
        """Append one entry to the log. Numbers rise unless the test sets one."""
        self.number = number if number is not None else self.number + 1
        return self.apply(ProvenRecord(record, None if author is None else Author(author, self.number)))

    def apply(self, entry: ProvenRecord) -> tuple[Change, ...]:
        """Apply an entry in the form that the wire decoder returns."""
        self.index += 1
        return self.farm.apply(self.index, 1, entry)

    def reason(self, author: bytes | None, record: Record) -> NoEffect | None:
        """Return the reason why the entry is ignored; None if it takes effect."""
        before = self.farm.state
        changes = self.append(author, record)
        refused = [each for each in changes if isinstance(each, EntryWithoutEffect)]
        if not refused:
            return None
        assert refused == [EntryWithoutEffect(kind_of(record).name, author, refused[0].reason)]
        assert replace(self.farm.state, applied_index=before.applied_index, applied_term=before.applied_term) == before
        return refused[0].reason


def client(name: str, node_id: bytes, *scopes: Scope) -> ClientKey:
    return ClientKey(node_id, name, node_id * 4, scopes, admitted=True)


OWN = (report(1), Clock(BASE_MS, 1), Publication(MASTER, 1, BASE_MS // 1000, "content"))
"""Entries of server 1 about itself."""
SERVERS: tuple[Record, ...] = (
    Admission(UNKNOWN, "new", server_id=4),
    Approval(UNKNOWN, "b", B, server_id=4),
    Eviction(B, 2, ()),
    Level(2, "0.1.0"),
    client("new", UNKNOWN, Scope.WEIGHTS),
)
OPERATORS = (
    Exclusion(LEAF, excluded=True),
    CostFactor(LEAF, 2.0),
    Force(MASTER),
    Removal(2, removed=True),
    Correction(BASE_MS),
)
WEIGHTS = (Factors(1, "formula", {LEAF: 1.1}),)


def test_entry_kinds_have_distinct_names() -> None:
    """A kind without a name would stop every server that applies such an entry, even one without effect."""
    assert {each.record for each in ALL_KINDS} == set(get_args(Record))
    assert len({each.name for each in ALL_KINDS}) == len(get_args(Record))


def ids(records: tuple[Record, ...]) -> list[str]:
    return [kind_of(record).name for record in records]


@pytest.mark.parametrize("record", OWN, ids=ids(OWN))
def test_servers_write_only_about_themselves(record: Record) -> None:
    story = Story()
    assert story.reason(A, record) is None
    assert story.reason(B, record) is NoEffect.WRONG_AUTHOR
    assert story.reason(C, replace(record, server_id=3)) is NoEffect.EXPELLED  # type: ignore[arg-type]  # the records of OWN
    assert story.reason(A, replace(record, server_id=77)) is NoEffect.WRONG_AUTHOR  # type: ignore[arg-type]  # as above


@each_case("record", OWN + SERVERS + OPERATORS + WEIGHTS, ids=ids(OWN + SERVERS + OPERATORS + WEIGHTS))
def test_entries_of_unproven_or_expelled_authors_ignored(record: Record) -> None:
    story = Story()
    assert story.reason(None, record) is NoEffect.UNSIGNED
    assert story.reason(UNKNOWN, record) is NoEffect.UNKNOWN_AUTHOR
    assert story.reason(C, record) in {NoEffect.EXPELLED, NoEffect.WRONG_AUTHOR}
    assert story.reason(DISMISSED, record) is NoEffect.EXPELLED
    [forged] = story.apply(ProvenRecord(record, forged=True))
    assert forged == EntryWithoutEffect(kind_of(record).name, None, NoEffect.FORGED)


@each_case("record", SERVERS, ids=ids(SERVERS))
def test_membership_entries_need_server_as_author(record: Record) -> None:
    assert Story().reason(B, record) is None
    assert Story().reason(SCRIPT, record) is NoEffect.OUT_OF_SCOPE
    assert Story().reason(PIPELINE, record) is NoEffect.OUT_OF_SCOPE


@each_case("record", OPERATORS, ids=ids(OPERATORS))
def test_operator_entries_need_server_or_operator_scope(record: Record) -> None:
    assert Story().reason(B, record) is None
    assert Story().reason(SCRIPT, record) is None
    assert Story().reason(PIPELINE, record) is NoEffect.OUT_OF_SCOPE


def test_weights_need_server_or_weights_scope() -> None:
    [record] = WEIGHTS
    assert Story().reason(B, record) is None
    assert Story().reason(PIPELINE, record) is None
    assert Story().reason(SCRIPT, record) is NoEffect.OUT_OF_SCOPE


def test_foreign_objects_applied_without_author() -> None:
    assert Story().reason(None, Foreign("a JSON object of an unknown kind")) is None


def test_copied_entry_counts_once() -> None:
    story = Story()
    assert story.reason(SCRIPT, Exclusion(LEAF, excluded=True)) is None
    copied = story.number
    assert story.reason(A, Exclusion(LEAF, excluded=False)) is None
    [refused] = story.append(SCRIPT, Exclusion(LEAF, excluded=True), copied)
    assert refused == EntryWithoutEffect("exclusion", SCRIPT, NoEffect.REPEATED)
    assert story.farm.state.weights.excluded == ()


def test_older_report_does_not_replace_newer() -> None:
    story = Story()
    story.append(A, report(1, BASE_MS + 2), 1_000)
    [refused] = story.append(A, report(1, BASE_MS + 1), 999)
    assert refused == EntryWithoutEffect("report", A, NoEffect.OUTDATED)
    assert story.farm.state.servers[1].report.date_ms == BASE_MS + 2
    assert not any(isinstance(each, EntryWithoutEffect) for each in story.append(A, CostFactor(LEAF, 2.0), 998))


def test_request_id_scoped_to_its_author() -> None:
    story = Story()
    story.append(None, Foreign("nothing", request="node-1-0-1"))
    story.append(UNKNOWN, report(1, request="node-1-0-1"))
    story.append(B, CostFactor(LEAF, 2.0, request="node-1-0-1"))
    story.append(A, report(1, BASE_MS + 7, request="node-1-0-1"))
    assert story.farm.state.servers[1].report.date_ms == BASE_MS + 7
    own = story.farm.session_of(ProvenRecord(report(1, request="node-1-0-1"), Author(A, 1)))
    assert own is not None
    posed = ProvenRecord(Foreign("nothing", request=str(own)))
    assert story.farm.session_of(posed) is None, (
        "no client names a request as the table of sessions names those of authors"
    )


def test_flood_of_unknown_authors_expires_no_farm_session() -> None:
    """Sessions of unknown authors must not fill the table: correct reports would then count as expired."""
    story = Story()
    for number in range(1, 4):
        for flood in range(SESSION_LIMITS.sessions_max if number > 1 else 0):
            story.apply(ProvenRecord(Foreign("nothing", request=f"flood-{number}-{flood}-{story.index}-1")))
            author = Author(flood.to_bytes(8), 1)
            story.apply(ProvenRecord(Foreign("nothing", request=f"flood-{story.index}-1"), author))
        changes = story.append(A, report(1, BASE_MS + number, request=f"node-1-0-{number}"))
        assert not [each for each in changes if isinstance(each, RequestRefused | EntryWithoutEffect)]
        assert story.farm.state.servers[1].report.date_ms == BASE_MS + number
    assert len(story.farm.sessions) == SESSION_LIMITS.sessions_max


def test_author_with_many_client_names_expires_no_other() -> None:
    """A client key with many names must not fill the table: correct reports would then count as expired."""
    story = Story()
    story.append(A, report(1, BASE_MS + 1, request="node-1-0-1"))
    for flood in range(SESSION_LIMITS.sessions_max + 100):
        factors = Factors(flood, "formula", {LEAF: 1.1}, request=f"name-{flood}-{story.index}-1")
        story.append((PIPELINE, DISMISSED, C)[flood % 3], factors)
    changes = story.append(A, report(1, BASE_MS + 2, request="node-1-0-2"))
    assert not [each for each in changes if isinstance(each, RequestRefused | EntryWithoutEffect)]
    assert story.farm.state.servers[1].report.date_ms == BASE_MS + 2
    counted = [story.farm.sessions.count(f"~{author.hex()}-") for author in (A, PIPELINE, DISMISSED, C)]
    assert counted == [1, AUTHOR_SESSIONS_MAX, 0, 0]


def test_request_beyond_session_limit_applied_once() -> None:
    story = Story()
    for number in range(AUTHOR_SESSIONS_MAX):
        story.append(A, CostFactor(LEAF, 2.0, request=f"name-{number}-0-1"))
    late = CostFactor(LEAF, 3.0, request="one-more-0-1")
    story.append(A, late)
    beyond = story.farm.session_of(ProvenRecord(late, Author(A, 1)))
    assert beyond is not None
    assert beyond.client.startswith("?")
    assert story.farm.position_of(beyond) is not None
    for log_time_ms in (BASE_MS + SESSION_LIMITS.expiry_ms // 2, BASE_MS + SESSION_LIMITS.expiry_ms + 1):
        # Only this session does not expire, also on a server restored from a snapshot.
        restored = Farm(BASE_MS, TUNING, founders=(A, B, C))
        state = replace(story.farm.state, log_time_ms=log_time_ms)
        restored.restore(state, TUNING.period_ms, story.farm.sessions.dump())
        story.farm = restored
        story.append(None, Foreign("nothing", request="user-0-1"))
        assert story.append(A, late) == (EntryWithoutEffect("cost", A, NoEffect.REPEATED),)
    assert story.farm.sessions.count(f"~{A.hex()}-") == 0


def test_resubmitted_request_reported_as_repeated() -> None:
    story = Story()
    entry = ProvenRecord(CostFactor(LEAF, 2.0, request="script-0-1"), Author(SCRIPT, 50))
    assert not any(isinstance(each, EntryWithoutEffect) for each in story.apply(entry))
    assert story.apply(entry) == (EntryWithoutEffect("cost", SCRIPT, NoEffect.REPEATED),)


@given(st.lists(st.integers(1, 300), max_size=200))
def test_author_numbers_count_once_within_window(numbers: list[int]) -> None:
    known, counted = AuthorNumbers(), set[int]()
    for number in numbers:
        highest = max(counted, default=0)
        expected = number in counted or number < highest - NUMBERS_WINDOW or number <= 0
        assert known.has_seen(number) == expected, (numbers, number)
        if not expected:
            known = known.after(number)
            counted.add(number)
    assert known.highest == max(counted, default=0)
    assert known.seen < 2**NUMBERS_WINDOW


def test_author_number_size_is_constant() -> None:
    highest = AuthorNumbers().after(2**53 - 1)
    assert AuthorNumbers().after(1).after(2**53 - 1) == highest
    assert highest.seen == 0
    assert highest.has_seen(1)


def test_readmitted_client_key_keeps_its_numbers() -> None:
    story = Story()
    story.append(SCRIPT, CostFactor(LEAF, 2.0), 5_000)
    story.append(A, replace(client("script", SCRIPT, Scope.OPERATOR), admitted=False), 6_000)
    [changed] = story.append(A, client("script", SCRIPT, Scope.OPERATOR), 6_001)
    assert changed == ClientChanged(SCRIPT, "script", ("operator",), admitted=True)
    [refused] = story.append(SCRIPT, CostFactor(LEAF, 3.0), 5_000)
    assert refused == EntryWithoutEffect("cost", SCRIPT, NoEffect.REPEATED)


@each_case(
    ("entry", "reason"),
    [
        (client("script", UNKNOWN, Scope.OPERATOR), "belongs to the client key 0c0c0c0c"),
        (client("new", UNKNOWN), "needs a scope"),
        (client("new", A, Scope.OPERATOR), "the identity of a server"),
        (replace(client("new", UNKNOWN), admitted=False), "no client key 0909090909090909 is admitted"),
        (replace(client("old", DISMISSED), admitted=False), "no client key 0d0d0d0d0d0d0d0d is admitted"),
    ],
)
def test_invalid_client_key_entry_refused_with_reason(entry: ClientKey, reason: str) -> None:
    [refused] = Story().append(A, entry)
    assert isinstance(refused, CommandRefused)
    assert reason in refused.reason


def test_client_table_full_refuses_only_new_keys() -> None:
    full = {number.to_bytes(8): Client(f"c{number}", bytes(32), (Scope.WEIGHTS,)) for number in range(CLIENTS_MAX)}
    assert isinstance(change_client(full, {}, client("one-more", UNKNOWN, Scope.WEIGHTS))[1], CommandRefused)
    known = (7).to_bytes(8)
    assert isinstance(change_client(full, {}, client("renamed", known, Scope.OPERATOR))[1], ClientChanged)


def test_admission_with_wrong_raft_id_refused() -> None:
    story = Story()
    story.append(A, Admission(UNKNOWN, "new", server_id=9))
    assert 9 not in story.farm.state.admitted
    signed = ProvenRecord(Admission(UNKNOWN, "new", server_id=4), Author(A, 10_000), data=b"the signed entry")
    story.apply(signed)
    assert story.farm.state.admitted[4].entry == b"the signed entry"
    story.apply(replace(signed, record=replace(signed.record, name="renamed"), author=Author(B, 1), data=b"later"))  # type: ignore[arg-type]  # an admission
    assert (story.farm.state.admitted[4].name, story.farm.state.admitted[4].entry) == ("renamed", b"the signed entry")
