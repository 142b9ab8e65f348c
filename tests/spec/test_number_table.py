"""Every number of the state has a range, an author, a step and an end, and a recovery resets each kind everywhere."""

from dataclasses import dataclass, replace

import pytest

from bridge.core.farm.log_time_correction import _moved_back
from bridge.core.log.feature_level import BOUNDS_LEVEL
from bridge.core.state.bounds import objection_to_state
from bridge.core.state.farm_state import FarmState
from bridge.core.state.numbers import NUMBERS, NumberKind, UndeclaredNumberError, declared, numbers_in, with_numbers
from bridge.core.state.recovery import FIRST_TERM, UNKNOWN_TERM, Reset, recovered
from bridge.wire.log.snapshot import FarmSnapshot, decode_farm_at_once, encode_farm
from consensus.sessions import SessionTable
from tests.spec.filled_state import filled, places_of

PERIOD_MS = 30_000
SURVIVOR = bytes(8)
POISON_TERM, POISON_MS, POISON_INDEX = 2**31 - 1, 4_000_000_000_000, 2**52
LAST_INDEX = 100
LOG_TIME_MS = 1_767_225_600_000


def state_with(changes: dict[str, float] | None = None) -> FarmState:
    """All tables filled, each number at its least value but for these."""
    given = changes or {}
    state: FarmState = filled(FarmState, lambda place: given.get(place, declared(place).least))
    return state


def undeclared(cls: type) -> list[str]:
    return [place for place in places_of(cls) if place not in NUMBERS]


def test_every_number_of_the_state_is_declared() -> None:
    assert undeclared(FarmState) == [], "declare these in bridge/core/state/numbers.py"


def test_every_declaration_names_a_number_of_the_state() -> None:
    assert set(NUMBERS) - set(places_of(FarmState)) == set()


@dataclass(frozen=True, slots=True)
class _Quota:
    """As someone may add it."""

    used: int = 0


@dataclass(frozen=True, slots=True)
class _NextState(FarmState):
    """The state of a later version."""

    quotas: tuple[_Quota, ...] = ()


def test_a_number_without_a_declaration_is_found() -> None:
    assert "_Quota.used" in undeclared(_NextState)
    with pytest.raises(UndeclaredNumberError, match=r"_Quota\.used"):
        with_numbers(_Quota(), lambda _, value: value)


@pytest.mark.parametrize("place", NUMBERS)
def test_every_declaration_has_an_author_and_an_end(place: str) -> None:
    number = NUMBERS[place]
    assert number.least < number.most
    assert number.moved_by
    assert number.at_end


@pytest.mark.parametrize("place", NUMBERS)
def test_a_number_within_its_range_is_stored_and_loads(place: str) -> None:
    number = NUMBERS[place]
    for value in (number.least, number.most):
        state = state_with({place: value} | ({"AuthorNumbers.highest": value} if place.endswith("report") else {}))
        assert objection_to_state(state, PERIOD_MS) is None
        snapshot = FarmSnapshot(state, PERIOD_MS, SessionTable().dump())
        assert decode_farm_at_once(encode_farm(snapshot)).farm == state


@pytest.mark.parametrize("place", NUMBERS)
def test_a_number_out_of_its_range_is_an_objection(place: str) -> None:
    number = NUMBERS[place]
    for value in (number.least - 1, number.most + max(1, number.most // 2)):
        assert objection_to_state(state_with({place: value}), PERIOD_MS) is not None


def test_a_number_whose_range_is_removed_is_no_objection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above finds a range that is missing."""
    wide = replace(NUMBERS["Rekeying.era"], most=2**70)
    monkeypatch.setitem(NUMBERS, "Rekeying.era", wide)
    assert objection_to_state(state_with({"Rekeying.era": 2**40}), PERIOD_MS) is None


def poisoned() -> FarmState:
    """Each number that a recovery resets lies far beyond where the new cluster begins."""
    values: dict[NumberKind, float] = {
        NumberKind.TERM: POISON_TERM,
        NumberKind.CLIENT_TERM: POISON_TERM,
        NumberKind.INDEX: POISON_INDEX,
        NumberKind.NEXT_INDEX: POISON_INDEX,
        NumberKind.LOG_TIME: POISON_MS,
        NumberKind.CLOCK: POISON_MS,
        NumberKind.SECOND: 2**32 - 1,
        NumberKind.SECOND_MS: POISON_MS,
        NumberKind.ERA: 2**32 - 1,
        NumberKind.RAFT_ID: 1,
    }
    state: FarmState = filled(FarmState, lambda place: values.get(declared(place).kind, declared(place).least))
    return replace(state, applied_index=LAST_INDEX)


def after(reset: Reset) -> list[tuple[str, NumberKind, float]]:
    state = recovered(poisoned(), SURVIVOR, reset)
    assert state.servers, "its own report is kept"
    return [(place, declared(place).kind, value) for place, value in numbers_in(state)]


def test_recovery_with_terms_reset_leaves_no_old_term() -> None:
    left = [
        (place, value)
        for place, kind, value in after(Reset(term=True))
        if (kind is NumberKind.TERM and value > FIRST_TERM)
        or (kind is NumberKind.CLIENT_TERM and value != UNKNOWN_TERM)
    ]
    assert left == []


def test_recovery_with_time_reset_leaves_no_later_time() -> None:
    times = {NumberKind.LOG_TIME, NumberKind.CLOCK}
    left = [
        (place, value)
        for place, kind, value in after(Reset(log_time_ms=LOG_TIME_MS))
        if kind in times and value > LOG_TIME_MS
    ]
    assert left == []


def test_recovery_with_seconds_reset_leaves_no_second() -> None:
    seconds = {NumberKind.SECOND, NumberKind.SECOND_MS}
    assert [place for place, kind, value in after(Reset(second=True)) if kind in seconds and value > 0] == []


def test_recovery_with_eras_reset_leaves_no_era() -> None:
    assert [place for place, kind, value in after(Reset(era=True)) if kind is NumberKind.ERA and value > 0] == []


def test_recovery_leaves_no_position_after_the_end_of_the_log() -> None:
    ends = {NumberKind.INDEX: LAST_INDEX, NumberKind.NEXT_INDEX: LAST_INDEX + 1}
    left = [(place, value) for place, kind, value in after(Reset()) if kind in ends and value > ends[kind]]
    # The id of a producer is a key: it is the index of the entry that began it, so no log has a later one.
    assert [place for place, _ in left] == ["KafkaClients.producers.key"]


def test_recovery_without_a_reset_keeps_the_numbers() -> None:
    kept = {place: value for place, _, value in after(Reset())}
    assert kept["NotedOffset.leader_epoch"] == POISON_TERM
    assert kept["FarmState.log_time_ms"] == POISON_MS
    assert kept["Rekeying.era"] == 2**32 - 1


@pytest.mark.parametrize("level", [BOUNDS_LEVEL - 1, BOUNDS_LEVEL])
def test_a_correction_of_log_time_moves_every_log_time(level: int) -> None:
    before = replace(poisoned(), level=level)
    after_it = _moved_back(before, 1_000)
    unmoved = {
        place
        for (place, old), (_, new) in zip(numbers_in(before), numbers_in(after_it), strict=True)
        if new != old - 1_000 * (declared(place).kind is NumberKind.LOG_TIME)
    }
    assert unmoved == (set() if level == BOUNDS_LEVEL else {"Producer.used_ms", "NotedOffset.noted_ms"})
