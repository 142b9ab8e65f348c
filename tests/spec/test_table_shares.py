"""Every table of the state has a share for one author, leaves the other authors' rows alone, and becomes free again.

The walk over the fields of the state finds a table that no one has declared; the stories below show for each declared
one that its module keeps the declaration (`bridge.core.state.tables`).
"""

import types
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import pytest

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
from bridge.core.state.bounds import objection_to_state
from bridge.core.state.farm_state import SERVERS_MAX, FarmState
from bridge.core.state.kafka_clients import GROUP_EXPIRY_MS, PRODUCER_EXPIRY_MS, SKIPPED_MAX, Produced, principal_hash
from bridge.core.state.numbers import declared
from bridge.core.state.reqids import OLDEST_S, request_text
from bridge.core.state.tables import TABLES, Release, Table, UndeclaredTableError, declared_table, tables_in
from tests.spec.filled_state import filled

BASE_MS = 1_700_000_000_000
PERIOD_MS = 30_000
FOUNDERS = tuple(number.to_bytes(8) for number in range(1, 101))
X, Y, Z = FOUNDERS[:3]
CLUSTER_ID = bytes(16)
LIMITS = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"


# -- the walk ----------------------------------------------------------------------------------------------------------


def tables_of(cls: type, found: dict[str, None] | None = None) -> Collection[str]:
    """The places of all tables in a class, and in the classes that its fields name."""
    found = {} if found is None else found
    hints = get_type_hints(cls)
    for each in fields(cls):
        _note_tables(hints[each.name], f"{cls.__name__}.{each.name}", found)
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
    elif is_dataclass(hint):
        assert isinstance(hint, type)
        tables_of(hint, found)


def tables_beside_the_state(farm: Farm) -> list[str]:
    """What the state machine has besides its state and its tuning."""
    return [f"Farm.{name}" for name, value in vars(farm).items() if not is_dataclass(value)]


def undeclared(cls: type = FarmState, farm: Farm | None = None) -> list[str]:
    places = [*tables_of(cls), *tables_beside_the_state(farm or Farm(BASE_MS))]
    return [place for place in places if place not in TABLES]


def test_every_table_of_the_state_is_declared() -> None:
    assert undeclared() == [], "declare these in bridge/core/state/tables.py, and add a story here"


def test_every_declaration_names_a_table_of_the_state() -> None:
    assert set(TABLES) - {*tables_of(FarmState), *tables_beside_the_state(Farm(BASE_MS))} == set()


@dataclass(frozen=True, slots=True)
class _NextState(FarmState):
    """The state of a later version."""

    notes: Mapping[str, tuple[str, ...]] | None = None


class _NextFarm(Farm):
    """The state machine of a later version."""

    def __init__(self) -> None:
        super().__init__(BASE_MS)
        self.votes: dict[int, int] = {}


def test_a_table_without_a_declaration_is_found() -> None:
    assert {"_NextState.notes", "_NextState.notes.value"} <= set(undeclared(_NextState))
    with pytest.raises(
        UndeclaredTableError, match=r"_NextState\.notes is a table of the state without a declared share"
    ):
        declared_table("_NextState.notes")
    assert undeclared(farm=_NextFarm()) == ["Farm.votes"]


@pytest.mark.parametrize("place", TABLES)
def test_every_table_has_a_share_and_a_release(place: str) -> None:
    table = TABLES[place]
    assert 0 < table.share <= table.most
    assert table.releases
    assert table.how
    if table.share == table.most:
        assert Release.WITH_ROW in table.releases or Release.REPLACED in table.releases, "one author can fill it"


@pytest.mark.parametrize("place", [place for place, table in TABLES.items() if table.is_shared])
def test_operators_can_look_up_each_share(place: str) -> None:
    table = TABLES[place]
    row = f"| `{place}` | {table.author} | {table.share:,} | {table.most:,} | {table.how} |"
    assert row in LIMITS.read_text(), f"add to docs/reference/limits.md:\n{row}"


@pytest.mark.parametrize("place", [place for place in TABLES if place.partition(".")[0] != "Farm"])
def test_a_table_beyond_its_limit_is_an_objection(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state: FarmState = filled(FarmState, lambda at: declared(at).least)
    assert (place, 1) in set(tables_in(state))
    monkeypatch.setitem(TABLES, place, replace(TABLES[place], most=0))
    assert TABLES[place].words in (objection_to_state(state, PERIOD_MS) or "")


def test_a_story_is_told_of_every_table_with_several_authors() -> None:
    told = {story.place for story in STORIES} | NUMBERED_AND_CLOCKS
    assert {place for place, table in TABLES.items() if table.is_shared} == told


NUMBERED_AND_CLOCKS = {"FarmState.numbers", "VoterClocks.readings"}
"""With one row for each author by their type; `test_..._one_row` below."""


# -- the stories -------------------------------------------------------------------------------------------------------


class Story(ABC):
    """A farm, and one kind of entry that adds rows to one table."""

    place: ClassVar[str]
    floods: ClassVar[int] = 0
    """So many more entries than the share has rows."""

    def __init__(self) -> None:
        """A farm at the level of shares."""
        self.farm = Farm(BASE_MS, founders=FOUNDERS)
        self.farm.state = replace(self.farm.state, level=BOUNDS_LEVEL, clocks=VoterClocks())
        self.index = 100

    @property
    def state(self) -> FarmState:
        """The state of now."""
        return self.farm.state

    @property
    def table(self) -> Table:
        """The declaration that the story is about."""
        return declared_table(self.place)

    def apply(self, record: Record, author: bytes | None) -> tuple[Change, ...]:
        """One more entry."""
        self.index += 1
        proof = None if author is None else Author(author, self.index)
        return self.farm.apply(self.index, 1, ProvenRecord(record, proof))

    def pass_time(self, duration_ms: int) -> None:
        """Clock entries, one a period: a longer step would not count as silence."""
        end_ms = self.state.log_time_ms + duration_ms
        step_ms = PERIOD_MS if duration_ms <= 4 * 3600 * 1000 else duration_ms // 64
        while self.state.log_time_ms < end_ms:
            self.apply(Clock(min(end_ms, self.state.log_time_ms + step_ms), 100), FOUNDERS[99])

    @abstractmethod
    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """An entry that adds the row `number` of this author."""

    @abstractmethod
    def rows(self, author: bytes) -> int:
        """The rows of the author."""

    @abstractmethod
    def release(self, author: bytes) -> None:
        """Let the declared rule free a place of the author."""

    def first(self, author: bytes) -> None:
        """One row of another author, before the flood."""
        self.submit(author, 0)


class Servers(Story):
    """One row for each server."""

    place = "FarmState.servers"
    floods = 3

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        server_id = FOUNDERS.index(author) + 1
        return self.apply(
            Report("farm", self.state.log_time_ms + number, server_id, RouterStatus(attached=False)), author
        )

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        return (FOUNDERS.index(author) + 1) in self.state.servers

    def release(self, author: bytes) -> None:
        """See `Story`."""
        del author
        self.pass_time(self.farm.tuning.forget_after_ms + 2 * PERIOD_MS)


class Masters(Story):
    """Masters that one server reports."""

    place = "FarmState.masters"
    floods = 8

    def __init__(self) -> None:
        """See `Story`."""
        super().__init__()
        self.reported: dict[bytes, list[str]] = {}

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
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
        """See `Story`."""
        return sum(name.startswith(author.hex()) for name in self.state.masters)

    def release(self, author: bytes) -> None:
        """See `Story`."""
        self.reported[author] = self.reported[author][:1]
        self._report(author)


class Admitted(Story):
    """Identities that one leader admits."""

    place = "FarmState.admitted"
    floods = 40

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        node_id = author[-2:] + number.to_bytes(6)
        given = next_raft_id(self.state.admitted, node_id)
        return self.apply(Admission(node_id, f"r{author[-1]}-{number}", bytes(32), given), author)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        return sum(by == author and self.state.admitted[at].is_member for at, by in self.state.admitted_by.items())

    def release(self, author: bytes) -> None:
        """See `Story`."""
        del author
        self.pass_time(31 * 60_000)


class Clients(Story):
    """Client keys that one server admits."""

    place = "FarmState.clients"
    floods = 10

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        return self.apply(self._entry(author, number, admitted=True), author)

    def _entry(self, author: bytes, number: int, *, admitted: bool) -> ClientKey:
        node_id = author[-2:] + number.to_bytes(6)
        return ClientKey(node_id, f"c{author[-1]}-{number}", bytes(32), (Scope.WEIGHTS,), admitted=admitted)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        return sum(each.admitted and each.admitted_by == author for each in self.state.clients.values())

    def release(self, author: bytes) -> None:
        """See `Story`."""
        self.apply(self._entry(author, 0, admitted=False), Z)


class Exclusions(Story):
    """Leaves that one operator excludes."""

    place = "Weights.excluded"
    floods = 10

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        return self.apply(Exclusion(hash_of(f"{author.hex()} {number}"), excluded=True), author)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        return sum(by == author for by in self.state.weights.excluded_by.values())

    def release(self, author: bytes) -> None:
        """See `Story`."""
        self.apply(Exclusion(hash_of(f"{author.hex()} 0"), excluded=False), Z)


class Costs(Story):
    """Leaves to which one operator gives a factor."""

    place = "Weights.costs"
    floods = 10

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        return self.apply(CostFactor(hash_of(f"{author.hex()} {number}"), 2), author)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        return sum(by == author for by in self.state.weights.costs_by.values())

    def release(self, author: bytes) -> None:
        """See `Story`."""
        self.apply(CostFactor(hash_of(f"{author.hex()} 0"), 1), Z)


class PipelineFactors(Story):
    """Leaves to which one pipeline gives a factor."""

    place = "Weights.factors"
    floods = 10

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        return self.apply(Factors(self.index, "formula", {hash_of(f"{author.hex()} {number}"): 1.1}), author)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        return sum(each.author == author for each in self.state.weights.factors.values())

    def release(self, author: bytes) -> None:
        """See `Story`."""
        del author
        self.pass_time(11 * 60_000)


class Producers(Story):
    """Producers of one user, all at one node."""

    place = "KafkaClients.producers"
    floods = 40

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        return self.apply(ProducerStart(f"p{number}", principal=principal_hash(CLUSTER_ID, author.hex())), Z)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        user = principal_hash(CLUSTER_ID, author.hex())
        return sum(
            each.principal == user and self.state.kafka.producer(at, self.state.log_time_ms) is not None
            for at, each in self.state.kafka.producers.items()
        )

    def release(self, author: bytes) -> None:
        """See `Story`."""
        del author
        self.pass_time(PRODUCER_EXPIRY_MS + PERIOD_MS)


class ProducersOfNode(Producers):
    """Producers that one hostile node begins, for users that it invents."""

    place = "KafkaClients.producers"

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        return self.apply(ProducerStart(f"p{number}", principal=principal_hash(CLUSTER_ID, str(number))), author)

    @property
    def table(self) -> Table:
        """See `Story`."""
        return replace(super().table, share=1024)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        return sum(
            each.node_id == author and self.state.kafka.producer(at, self.state.log_time_ms) is not None
            for at, each in self.state.kafka.producers.items()
        )


class Groups(Story):
    """Consumer groups of one user."""

    place = "KafkaClients.groups"
    floods = 10

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        user = principal_hash(CLUSTER_ID, author.hex())
        return self.apply(GroupOffset(f"{author.hex()} {number}", 0, principal=user), Z)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        names = (name for name in self.state.kafka.groups if name.startswith(author.hex()))
        return sum(self.state.kafka.group(name, self.state.log_time_ms) is not None for name in names)

    def release(self, author: bytes) -> None:
        """See `Story`."""
        del author
        self.pass_time(GROUP_EXPIRY_MS + PERIOD_MS)


class GroupsOfNode(Groups):
    """Consumer groups that one hostile node writes, for users that it invents."""

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        user = principal_hash(CLUSTER_ID, str(number))
        return self.apply(GroupOffset(f"{author.hex()} {number}", 0, principal=user), author)

    @property
    def table(self) -> Table:
        """See `Story`."""
        return replace(super().table, share=200)


class Skipped(Story):
    """Copies that one node has in the log."""

    place = "KafkaClients.skipped"
    floods = SKIPPED_MAX

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        return self.apply(Foreign("copy", str(Produced(10**6 + number, 0, 0))), author)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        return self.state.kafka.skipped_of.count(author.hex())

    def release(self, author: bytes) -> None:
        """Nothing: each further row of the author takes the places of its oldest."""


class Sessions(Story):
    """Sessions that one node begins."""

    place = "Farm.sessions"
    floods = 2000

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        return self.apply(Foreign("request", f"session{number}-{self.index}-1"), author)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        return self.farm.sessions.count(f"~{author.hex()}-")

    def release(self, author: bytes) -> None:
        """See `Story`."""
        del author
        self.pass_time(3_600_000 + 2 * PERIOD_MS)
        self.apply(Foreign("request", f"other-{self.index}-1"), Z)


class ReqidRows(Story):
    """Updates by ØMQ Raft that one node signs."""

    place = "Farm.reqids"
    floods = 100

    def submit(self, author: bytes, number: int) -> tuple[Change, ...]:
        """See `Story`."""
        reqid = (self.state.log_time_ms // 1000).to_bytes(4) + author[-2:] + number.to_bytes(6)
        return self.apply(Foreign("update", request_text(reqid)), author)

    def rows(self, author: bytes) -> int:
        """See `Story`."""
        return len(self.farm.reqids.of_author(author))

    def release(self, author: bytes) -> None:
        """See `Story`."""
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
    """Return the story of masters that servers report."""
    return Masters()


def test_two_servers_leave_a_place_for_a_master_of_a_third(masters: Masters) -> None:
    for author in (X, Y):
        for number in range(8):
            masters.submit(author, number)
    masters.pass_time(PERIOD_MS)
    masters.submit(Z, 0)
    assert masters.rows(Z) == 1


def test_masters_of_a_server_stay_when_two_later_ones_report_others(masters: Masters) -> None:
    for number in range(declared_table("FarmState.masters").share):
        masters.submit(Z, number)
    masters.pass_time(PERIOD_MS)
    for author in (X, Y):
        for number in range(8):
            masters.submit(author, number)
    assert masters.rows(Z) == 4


@pytest.mark.parametrize("kind", STORIES, ids=lambda kind: kind.__name__)
def test_an_author_that_fills_its_share_leaves_the_others_alone(kind: type[Story]) -> None:
    story = kind()
    # Given: Y has a row, and X submits more than its share
    story.first(Y)
    assert story.rows(Y) == 1
    changes = [story.submit(X, number) for number in range(story.table.share + kind.floods)]
    held = story.rows(X)
    # Then: X has its share and no more, unless the table has room; Y has its row, and gets another place
    is_elastic = kind in {Masters, Skipped}
    assert held == story.table.share or (is_elastic and story.table.share < held < story.table.most)
    assert story.rows(Y) == 1
    story.submit(Y, 1)
    story.submit(Z, 0) if kind is Servers else None
    assert story.rows(Y) == (1 if story.table.share == 1 else 2)
    # And what was refused was refused with a reason
    refused = [each for per in changes for each in per if isinstance(each, CommandRefused | AdmissionRefused)]
    assert all(each.reason for each in refused)
    # When: the declared rule frees a place
    story.release(X)
    after = story.rows(X)
    # Then: X gets one
    assert after < held or Release.REPLACED in story.table.releases
    story.submit(X, 10**6 + 1)
    assert story.rows(X) > 0
    assert objection_to_state(story.state, PERIOD_MS) is None


REFUSING = (Admitted, Clients, Exclusions, Costs, PipelineFactors, Groups, GroupsOfNode)


@pytest.mark.parametrize("kind", REFUSING, ids=lambda kind: kind.__name__)
def test_a_full_share_is_refused_by_its_limit(kind: type[Story]) -> None:
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
def test_a_table_whose_share_is_removed_fails_the_story(
    kind: type[Story], limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The story above finds a share that is missing."""
    monkeypatch.setattr(limit, value)
    with pytest.raises(AssertionError):
        test_an_author_that_fills_its_share_leaves_the_others_alone(kind)


def test_each_author_has_one_row_of_numbers() -> None:
    story = Exclusions()
    former = {(10**6 + number).to_bytes(8): AuthorNumbers(number) for number in range(1, NUMBERED_MAX)}
    story.farm.state = replace(story.state, numbers=former)
    for number in range(5):
        story.submit(X, number)
    story.submit(Y, 0)
    assert len(story.state.numbers) == NUMBERED_MAX
    assert {X, Y} <= story.state.numbers.keys()


def test_each_voter_has_one_row_of_clocks() -> None:
    story = Servers()
    story.farm.state = replace(story.state, clocks=VoterClocks(0, ((1, 2),)))
    for author in (X, Y, Z):
        for number in range(3):
            story.submit(author, number)
    assert set(story.state.clocks.readings) == {1, 2}
    story.farm.configure(story.index + 1, 1, ((2, 3),))
    assert set(story.state.clocks.readings) == {2}


def test_voters_keep_their_reports_in_a_full_table() -> None:
    story = Servers()
    story.farm.state = replace(story.state, clocks=VoterClocks(0, ((1, 2),)))
    for author in (X, Y, *FOUNDERS[2 : SERVERS_MAX + 10]):
        story.submit(author, 0)
    assert len(story.state.servers) == SERVERS_MAX
    assert story.rows(X)
    assert story.rows(Y)


def test_identities_that_are_out_give_way_in_a_full_table() -> None:
    story = Admitted()
    out = {number: replace(story.state.admitted[1], node_id=number.to_bytes(8)) for number in range(101, 1025)}
    evicted = {number: replace(each, standing=type(each.standing).EVICTED) for number, each in out.items()}
    story.farm.state = replace(story.state, admitted={**story.state.admitted, **evicted}, removed=(101, 102))
    story.submit(X, 0)
    assert story.rows(X) == 1
    assert 101 not in story.state.admitted
    assert story.state.removed == (102,)
    assert max(story.state.admitted) == 1025
