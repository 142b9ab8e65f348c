"""Shares of the tables in the state: each author has a share, and cannot displace rows of other authors.

The walk over the fields of the state detects undeclared tables. The scenarios below show for each declared table that
its module enforces the declaration (`bridge.core.state.tables`).
"""

import types
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import replace

from bridge.core.farm.state_machine import Change, Farm
from bridge.core.log.feature_level import BOUNDS_LEVEL
from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import (
    Admission,
    Author,
    ClientKey,
    Clock,
    CostFactor,
    Exclusion,
    Factors,
    Foreign,
    GroupOffset,
    MetaStatus,
    ProducerStart,
    ProvenRecord,
    PublishConfig,
    Record,
    Report,
    Scope,
)
from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.log.weights import CommandRefused
from bridge.core.membership.admission import AdmissionRefused, next_raft_id
from bridge.core.membership.authors import NUMBERED_MAX, AuthorNumbers
from bridge.core.state.farm_state import SERVERS_MAX, FarmState
from bridge.core.state.kafka_clients import GROUP_EXPIRY_MS, PRODUCER_EXPIRY_MS, SKIPPED_MAX, Produced, principal_hash
from bridge.core.state.numbers import declared
from bridge.core.state.reqids import OLDEST_S, request_text
from bridge.core.state.tables import TABLES, Release, Table, UndeclaredTableError, declared_table, tables_in
from bridge.node.raft.farm_content import objection_to_state
from tests.effort import each_case
from tests.spec.filled_state import filled_instance

BASE_MS = 1_700_000_000_000
PERIOD_MS = 30_000
FOUNDERS = tuple(number.to_bytes(8) for number in range(1, 101))
X, Y, Z = FOUNDERS[:3]
CLUSTER_ID = bytes(16)
LIMITS = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"


# -- declarations ------------------------------------------------------------------------------------------------------


def tables_of(cls: type[Struct], found: dict[str, None] | None = None) -> Collection[str]:
    """Return the places of all tables in a class, and in the classes of its fields."""
    found = {} if found is None else found
    hints = get_type_hints(cls)
    for name in cls.__struct_fields__:
        _note_tables(hints[name], f"{cls.__name__}.{name}", found)
    return found


def _note_tables(hint: Any, place: str, found: dict[str, None]) -> None:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        for each in arguments:
            _note_tables(each, place, found)
    elif origin is not None and issubclass(origin, Mapping):
        found[place] = None
        _note_tables(arguments[1], f"{place}.value", found)
    elif origin is not None and issubclass(origin, Collection):
        found[place] = None
        _note_tables(arguments[0], f"{place}.item", found)
    elif isinstance(hint, type) and issubclass(hint, Struct):
        tables_of(hint, found)


def tables_outside_state(farm: Farm) -> list[str]:
    return [f"Farm.{name}" for name, value in vars(farm).items() if not isinstance(value, Struct)]


def undeclared_tables(cls: type = FarmState, farm: Farm | None = None) -> list[str]:
    places = [*tables_of(cls), *tables_outside_state(farm or Farm(BASE_MS))]
    return [place for place in places if place not in TABLES]


def test_state_tables_all_declared() -> None:
    assert undeclared_tables() == [], "declare these in bridge/core/state/tables.py, and add a scenario here"


def test_declarations_all_name_state_tables() -> None:
    assert set(TABLES) - {*tables_of(FarmState), *tables_outside_state(Farm(BASE_MS))} == set()


class _NextState(FarmState, frozen=True):
    notes: Mapping[str, tuple[str, ...]] | None = None


class _NextFarm(Farm):
    """A state machine of a later version."""

    def __init__(self) -> None:
        super().__init__(BASE_MS)
        self.votes: dict[int, int] = {}


def test_undeclared_table_is_detected() -> None:
    assert {"_NextState.notes", "_NextState.notes.value"} <= set(undeclared_tables(_NextState))
    with pytest.raises(
        UndeclaredTableError, match=r"_NextState\.notes is a table of the state without a declared share"
    ):
        declared_table("_NextState.notes")
    assert undeclared_tables(farm=_NextFarm()) == ["Farm.votes"]


@each_case("place", TABLES)
def test_tables_have_share_and_release(place: str) -> None:
    table = TABLES[place]
    assert 0 < table.share <= table.most
    assert table.releases
    assert table.how
    if table.share == table.most:
        assert Release.WITH_ROW in table.releases or Release.REPLACED in table.releases, "one author can fill it"


@each_case("place", [place for place, table in TABLES.items() if table.share < table.most])
def test_shares_documented_for_operators(place: str) -> None:
    table = TABLES[place]
    row = f"| `{place}` | {table.author} | {table.share:,} | {table.most:,} | {table.how} |"
    assert row in LIMITS.read_text(), f"add to docs/reference/limits.md:\n{row}"


@pytest.mark.parametrize("place", [place for place in TABLES if place.partition(".")[0] != "Farm"])
def test_table_beyond_limit_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state: FarmState = filled_instance(FarmState, lambda at: declared(at).least)
    assert (place, 1) in set(tables_in(state))
    monkeypatch.setitem(TABLES, place, replace(TABLES[place], most=0))
    assert TABLES[place].words in (objection_to_state(state, PERIOD_MS) or "")


def test_shared_tables_all_have_scenario() -> None:
    tested = {story.place for story in STORIES} | NUMBERED_AND_CLOCKS
    assert {place for place, table in TABLES.items() if table.share < table.most} == tested


NUMBERED_AND_CLOCKS = {"FarmState.numbers", "VoterClocks.readings"}
"""Tables that have one row per author by their type. The functions with `one_row` in their names test them."""


# -- the scenarios -----------------------------------------------------------------------------------------------------


class Story(ABC):
    """A farm, and one kind of entry that adds rows to one table."""

    place: ClassVar[str]
    floods: ClassVar[int] = 0
    """Number of submitted entries beyond the rows of the share."""

    def __init__(self) -> None:
        """Create a farm at the feature level that enforces shares."""
        self.farm = Farm(BASE_MS, founders=FOUNDERS)
        self.farm.state = replace(self.farm.state, level=BOUNDS_LEVEL, clocks=VoterClocks())
        self.index = 100

    @property
    def state(self) -> FarmState:
        return self.farm.state

    @property
    def table(self) -> Table:
        return declared_table(self.place)

    def apply(self, record: Record, author: bytes | None) -> tuple[Change, ...]:
        """Apply one more entry."""
        self.index += 1
        proof = None if author is None else Author(author, self.index)
        return self.farm.apply(self.index, 1, ProvenRecord(record, proof))

    def pass_time(self, duration_ms: int) -> None:
        """Append clock entries, one per period: a longer step would count as time without a leader."""
        end_ms = self.state.log_time_ms + duration_ms
        step_ms = PERIOD_MS if duration_ms <= 4 * 3600 * 1000 else duration_ms // 64
        while self.state.log_time_ms < end_ms:
            self.apply(Clock(min(end_ms, self.state.log_time_ms + step_ms), 100), FOUNDERS[99])

    @abstractmethod
    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """Submit an entry that adds the row `number` of this author."""

    @abstractmethod
    def rows(self, author: bytes) -> int:
        """Return the number of the author's rows."""

    @abstractmethod
    def release(self, author: bytes) -> None:
        """Release a row of the author by the declared rule."""

    def first(self, author: bytes) -> None:
        """Submit one row of another author, before the flood."""
        self.submit(author, 0)


class Servers(Story):
    """One row per server."""

    place = "FarmState.servers"
    floods = 3

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        server_id = FOUNDERS.index(author) + 1
        return self.apply(
            Report("farm", self.state.log_time_ms + number, server_id, RouterStatus(attached=False)), author
        )

    def rows(self, author: bytes) -> int:
        return (FOUNDERS.index(author) + 1) in self.state.servers

    def release(self, author: bytes) -> None:
        del author
        self.pass_time(self.farm.tuning.forget_after_ms + 2 * PERIOD_MS)


class Masters(Story):
    """Masters reported by one server."""

    place = "FarmState.masters"
    floods = 8

    def __init__(self) -> None:
        super().__init__()
        self.reported: dict[bytes, list[str]] = {}

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        self.reported.setdefault(author, []).append(f"{author.hex()} {number}")
        return self._report(author)

    def _report(self, author: bytes) -> tuple[Change, ...]:
        masters = tuple(
            MetaStatus(name, PublishConfig.AUTO, publishing=False, last_published_time_ms=0)
            for name in self.reported[author][:8]
        )
        server_id = FOUNDERS.index(author) + 1
        router = RouterStatus(attached=True)
        return self.apply(Report("farm", self.state.log_time_ms, server_id, router, masters), author)

    def rows(self, author: bytes) -> int:
        return sum(name.startswith(author.hex()) for name in self.state.masters)

    def release(self, author: bytes) -> None:
        self.reported[author] = self.reported[author][:1]
        self._report(author)


class Admitted(Story):
    """Identities admitted by one leader."""

    place = "FarmState.admitted"
    floods = 40

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        node_id = author[-2:] + number.to_bytes(6)
        given = next_raft_id(self.state.admitted, node_id)
        return self.apply(Admission(node_id, f"r{author[-1]}-{number}", bytes(32), given), author)

    def rows(self, author: bytes) -> int:
        return sum(by == author and self.state.admitted[at].is_member for at, by in self.state.admitted_by.items())

    def release(self, author: bytes) -> None:
        del author
        self.pass_time(31 * 60_000)


class Clients(Story):
    """Client keys admitted by one server."""

    place = "FarmState.clients"
    floods = 10

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        return self.apply(self._entry(author, number, admitted=True), author)

    def _entry(self, author: bytes, number: int, *, admitted: bool) -> ClientKey:
        node_id = author[-2:] + number.to_bytes(6)
        return ClientKey(node_id, f"c{author[-1]}-{number}", bytes(32), (Scope.WEIGHTS,), admitted=admitted)

    def rows(self, author: bytes) -> int:
        return sum(each.admitted and each.admitted_by == author for each in self.state.clients.values())

    def release(self, author: bytes) -> None:
        self.apply(self._entry(author, 0, admitted=False), Z)


class Exclusions(Story):
    """Leaves excluded by one operator."""

    place = "Weights.excluded"
    floods = 10

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        return self.apply(Exclusion(hash_of(f"{author.hex()} {number}"), excluded=True), author)

    def rows(self, author: bytes) -> int:
        return sum(by == author for by in self.state.weights.excluded_by.values())

    def release(self, author: bytes) -> None:
        self.apply(Exclusion(hash_of(f"{author.hex()} 0"), excluded=False), Z)


class Costs(Story):
    """Cost factors set by one operator."""

    place = "Weights.costs"
    floods = 10

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        return self.apply(CostFactor(hash_of(f"{author.hex()} {number}"), 2), author)

    def rows(self, author: bytes) -> int:
        return sum(by == author for by in self.state.weights.costs_by.values())

    def release(self, author: bytes) -> None:
        self.apply(CostFactor(hash_of(f"{author.hex()} 0"), 1), Z)


class PipelineFactors(Story):
    """Factors set by one pipeline."""

    place = "Weights.factors"
    floods = 10

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        return self.apply(Factors(self.index, "formula", {hash_of(f"{author.hex()} {number}"): 1.1}), author)

    def rows(self, author: bytes) -> int:
        return sum(each.author == author for each in self.state.weights.factors.values())

    def release(self, author: bytes) -> None:
        del author
        self.pass_time(11 * 60_000)


class Producers(Story):
    """Producers of one user at one node."""

    place = "KafkaClients.producers"
    floods = 40

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        return self.apply(ProducerStart(f"p{number}", principal=principal_hash(CLUSTER_ID, author.hex())), Z)

    def rows(self, author: bytes) -> int:
        user = principal_hash(CLUSTER_ID, author.hex())
        return sum(
            each.principal == user and self.state.kafka.producer(at, self.state.log_time_ms) is not None
            for at, each in self.state.kafka.producers.items()
        )

    def release(self, author: bytes) -> None:
        del author
        self.pass_time(PRODUCER_EXPIRY_MS + PERIOD_MS)


class ProducersOfNode(Producers):
    """Producers started by one hostile node, for invented users."""

    place = "KafkaClients.producers"

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        return self.apply(ProducerStart(f"p{number}", principal=principal_hash(CLUSTER_ID, str(number))), author)

    @property
    def table(self) -> Table:
        return replace(super().table, share=1024)

    def rows(self, author: bytes) -> int:
        return sum(
            each.node_id == author and self.state.kafka.producer(at, self.state.log_time_ms) is not None
            for at, each in self.state.kafka.producers.items()
        )


class Groups(Story):
    """Consumer groups of one user."""

    place = "KafkaClients.groups"
    floods = 10

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        user = principal_hash(CLUSTER_ID, author.hex())
        return self.apply(GroupOffset(f"{author.hex()} {number}", 0, principal=user), Z)

    def rows(self, author: bytes) -> int:
        names = (name for name in self.state.kafka.groups if name.startswith(author.hex()))
        return sum(self.state.kafka.group(name, self.state.log_time_ms) is not None for name in names)

    def release(self, author: bytes) -> None:
        del author
        self.pass_time(GROUP_EXPIRY_MS + PERIOD_MS)


class GroupsOfNode(Groups):
    """Consumer groups written by one hostile node, for invented users."""

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        user = principal_hash(CLUSTER_ID, str(number))
        return self.apply(GroupOffset(f"{author.hex()} {number}", 0, principal=user), author)

    @property
    def table(self) -> Table:
        return replace(super().table, share=200)


class Skipped(Story):
    """Skipped copies of commands in the log, written by one node."""

    place = "KafkaClients.skipped"
    floods = SKIPPED_MAX

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        return self.apply(Foreign("copy", str(Produced(10**6 + number, 0, 0))), author)

    def rows(self, author: bytes) -> int:
        return self.state.kafka.skipped_of.count(author.hex())

    def release(self, author: bytes) -> None:
        """Do nothing: each further row of the author replaces its oldest one."""


class Sessions(Story):
    """Sessions started by one node."""

    place = "Farm.sessions"
    floods = 2000

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        return self.apply(Foreign("request", f"session{number}-{self.index}-1"), author)

    def rows(self, author: bytes) -> int:
        return self.farm.sessions.count(f"~{author.hex()}-")

    def release(self, author: bytes) -> None:
        del author
        self.pass_time(3_600_000 + 2 * PERIOD_MS)
        self.apply(Foreign("request", f"other-{self.index}-1"), Z)


class ReqidRows(Story):
    """Updates by ØMQ Raft signed by one node."""

    place = "Farm.reqids"
    floods = 100

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        reqid = (self.state.log_time_ms // 1000).to_bytes(4) + author[-2:] + number.to_bytes(6)
        return self.apply(Foreign("update", request_text(reqid)), author)

    def rows(self, author: bytes) -> int:
        return len(self.farm.reqids._tables[True]._of_author.get(author, ()))

    def release(self, author: bytes) -> None:
        self.pass_time((OLDEST_S + 60) * 1000)
        self.submit(author, 10**6)


STORIES: tuple[type[Story], ...] = (
    Servers,
    Masters,
    Admitted,
    Clients,
    Exclusions,
    Costs,
    PipelineFactors,
    Producers,
    ProducersOfNode,
    Groups,
    GroupsOfNode,
    Skipped,
    Sessions,
    ReqidRows,
)


@pytest.fixture
def masters() -> Masters:
    return Masters()


def test_masters_of_two_servers_leave_place_for_third(masters: Masters) -> None:
    for author in (X, Y):
        for number in range(8):
            masters.submit(author, number)
    masters.pass_time(PERIOD_MS)
    masters.submit(Z, 0)
    assert masters.rows(Z) == 1


def test_masters_kept_when_later_servers_report_others(masters: Masters) -> None:
    for number in range(declared_table("FarmState.masters").share):
        masters.submit(Z, number)
    masters.pass_time(PERIOD_MS)
    for author in (X, Y):
        for number in range(8):
            masters.submit(author, number)
    assert masters.rows(Z) == 4


@pytest.mark.parametrize("kind", STORIES, ids=lambda kind: kind.__name__)
def test_author_with_full_share_does_not_affect_others(kind: type[Story]) -> None:
    story = kind()
    # Given: Y has a row, and X submits more than its share
    story.first(Y)
    assert story.rows(Y) == 1
    changes = [story.submit(X, number) for number in range(story.table.share + kind.floods)]
    held = story.rows(X)
    # Then: X has its share, or more in an elastic table with room; Y keeps its row, and may add another
    is_elastic = kind in {Masters, Skipped}
    assert held == story.table.share or (is_elastic and story.table.share < held < story.table.most)
    assert story.rows(Y) == 1
    story.submit(Y, 1)
    story.submit(Z, 0) if kind is Servers else None
    assert story.rows(Y) == (1 if story.table.share == 1 else 2)
    # And each refusal has a reason
    refused = [each for per in changes for each in per if isinstance(each, CommandRefused | AdmissionRefused)]
    assert all(each.reason for each in refused)
    # When: the declared rule releases a row
    story.release(X)
    after = story.rows(X)
    # Then: X gets a row
    assert after < held or Release.REPLACED in story.table.releases
    story.submit(X, 10**6 + 1)
    assert story.rows(X) > 0
    assert objection_to_state(story.state, PERIOD_MS) is None


REFUSING = (Admitted, Clients, Exclusions, Costs, PipelineFactors, Groups, GroupsOfNode)


@pytest.mark.parametrize("kind", REFUSING, ids=lambda kind: kind.__name__)
def test_full_share_refused_with_its_limit(kind: type[Story]) -> None:
    story = kind()
    changes = [story.submit(X, number) for number in range(story.table.share + 1)]
    refused = [each for each in changes[-1] if isinstance(each, CommandRefused | AdmissionRefused)]
    assert len(refused) == 1
    assert str(story.table.share) in refused[0].reason
    assert not any(isinstance(each, CommandRefused | AdmissionRefused) for per in changes[:-1] for each in per)


@pytest.mark.parametrize(
    ("kind", "limit", "value"),
    [
        (Exclusions, "bridge.core.log.weights.EXCLUSIONS_MAX", 1024),
        (Clients, "bridge.core.membership.client_keys.CLIENTS_OF_SERVER_MAX", 256),
        (Admitted, "bridge.core.membership.admission.ADMITTED_OF_LEADER_MAX", 1024),
        (Groups, "bridge.core.state.kafka_clients.GROUPS_MAX", 400),
    ],
    ids=["exclusions", "clients", "admitted", "groups"],
)
def test_removed_share_is_detected(kind: type[Story], limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a larger limit, `test_author_with_full_share_does_not_affect_others` fails."""
    monkeypatch.setattr(limit, value)
    with pytest.raises(AssertionError):
        test_author_with_full_share_does_not_affect_others(kind)


def test_author_numbers_have_one_row_per_author() -> None:
    story = Exclusions()
    former = {(10**6 + number).to_bytes(8): AuthorNumbers(number) for number in range(1, NUMBERED_MAX)}
    story.farm.state = replace(story.state, numbers=former)
    for number in range(5):
        story.submit(X, number)
    story.submit(Y, 0)
    assert len(story.state.numbers) == NUMBERED_MAX
    assert {X, Y} <= story.state.numbers.keys()


def test_voter_clocks_have_one_row_per_voter() -> None:
    story = Servers()
    story.farm.state = replace(story.state, clocks=VoterClocks(0, ((1, 2),)))
    for author in (X, Y, Z):
        for number in range(3):
            story.submit(author, number)
    assert set(story.state.clocks.readings) == {1, 2}
    story.farm.configure(story.index + 1, 1, ((2, 3),))
    assert set(story.state.clocks.readings) == {2}


def test_voters_keep_reports_in_full_table() -> None:
    story = Servers()
    story.farm.state = replace(story.state, clocks=VoterClocks(0, ((1, 2),)))
    for author in (X, Y, *FOUNDERS[2 : SERVERS_MAX + 10]):
        story.submit(author, 0)
    assert len(story.state.servers) == SERVERS_MAX
    assert story.rows(X)
    assert story.rows(Y)


def test_evicted_identities_dropped_from_full_table() -> None:
    story = Admitted()
    out = {number: replace(story.state.admitted[1], node_id=number.to_bytes(8)) for number in range(101, 1025)}
    evicted = {number: replace(each, standing=type(each.standing).EVICTED) for number, each in out.items()}
    story.farm.state = replace(story.state, admitted={**story.state.admitted, **evicted}, removed=(101, 102))
    story.submit(X, 0)
    assert story.rows(X) == 1
    assert 101 not in story.state.admitted
    assert story.state.removed == (102,)
    assert max(story.state.admitted) == 1025
