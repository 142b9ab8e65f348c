"""Each number of the state has a range, an author, a step and an end. A recovery resets all numbers of each kind."""

import pytest
from msgspec import Struct
from msgspec.structs import replace

from bridge.core.farm.log_time_correction import _moved_back
from bridge.core.log.feature_level import BOUNDS_LEVEL
from bridge.core.state.farm_state import FarmState
from bridge.core.state.numbers import NUMBERS, NumberKind, UndeclaredNumberError, declared, numbers_in, with_numbers
from bridge.core.state.recovery import FIRST_TERM, UNKNOWN_TERM, Reset, recovered
from bridge.node.raft.farm_content import objection_to_state
from bridge.wire.log.snapshot import FarmSnapshot, decode_farm_at_once, encode_farm
from consensus.sessions import SessionTable
from tests.effort import each_case
from tests.spec.filled_state import filled_instance, places_of

PERIOD_MS = 30_000
SURVIVOR = bytes(8)
FAR_TERM, FAR_MS, FAR_INDEX = 2**31 - 1, 4_000_000_000_000, 2**52
LAST_INDEX = 100
LOG_TIME_MS = 1_767_225_600_000


def state_with(changes: dict[str, float] | None = None) -> FarmState:
    """Return a state with all tables filled; each number outside `changes` has its least value."""
    given = changes or {}
    state: FarmState = filled_instance(FarmState, lambda place: given.get(place, declared(place).least))
    return state


def undeclared_places(cls: type) -> list[str]:
    return [place for place in places_of(cls) if place not in NUMBERS]


def test_state_numbers_all_declared() -> None:
    assert undeclared_places(FarmState) == [], "declare these in bridge/core/state/numbers.py"


def test_declarations_all_name_state_numbers() -> None:
    assert set(NUMBERS) - set(places_of(FarmState)) == set()


class _Quota(Struct, frozen=True):
    """A table that a developer may add."""

    used: int = 0


class _NextState(FarmState, frozen=True):
    quotas: tuple[_Quota, ...] = ()


def test_undeclared_number_is_detected() -> None:
    assert "_Quota.used" in undeclared_places(_NextState)
    with pytest.raises(UndeclaredNumberError, match=r"_Quota\.used"):
        with_numbers(_Quota(), lambda _, value: value)


@each_case("place", NUMBERS)
def test_declarations_have_author_and_end(place: str) -> None:
    number = NUMBERS[place]
    assert number.least < number.most
    assert number.moved_by
    assert number.at_end


@each_case("place", NUMBERS)
def test_number_at_range_ends_is_stored_and_loaded(place: str) -> None:
    number = NUMBERS[place]
    for value in (number.least, number.most):
        state = state_with({place: value} | ({"AuthorNumbers.highest": value} if place.endswith("report") else {}))
        assert objection_to_state(state, PERIOD_MS) is None
        snapshot = FarmSnapshot(state, PERIOD_MS, SessionTable().dump())
        assert decode_farm_at_once(encode_farm(snapshot)).farm == state


@each_case("place", NUMBERS)
def test_number_out_of_range_refused(place: str) -> None:
    number = NUMBERS[place]
    for value in (number.least - 1, number.most + max(1, number.most // 2)):
        assert objection_to_state(state_with({place: value}), PERIOD_MS) is not None


def test_removed_range_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a wider range the state is accepted, so `test_number_out_of_range_refused` would fail."""
    wide = replace(NUMBERS["Rekeying.era"], most=2**70)
    monkeypatch.setitem(NUMBERS, "Rekeying.era", wide)
    assert objection_to_state(state_with({"Rekeying.era": 2**40}), PERIOD_MS) is None


def far_state() -> FarmState:
    """Return a state whose resettable numbers are far beyond the start of the new cluster."""
    values: dict[NumberKind, float] = {
        NumberKind.TERM: FAR_TERM,
        NumberKind.CLIENT_TERM: FAR_TERM,
        NumberKind.INDEX: FAR_INDEX,
        NumberKind.NEXT_INDEX: FAR_INDEX,
        NumberKind.LOG_TIME: FAR_MS,
        NumberKind.CLOCK: FAR_MS,
        NumberKind.SECOND: 2**32 - 1,
        NumberKind.SECOND_MS: FAR_MS,
        NumberKind.ERA: 2**32 - 1,
        NumberKind.RAFT_ID: 1,
    }
    state: FarmState = filled_instance(FarmState, lambda place: values.get(declared(place).kind, declared(place).least))
    return replace(state, applied_index=LAST_INDEX)


def numbers_of(reset: Reset) -> list[tuple[str, NumberKind, float]]:
    state = recovered(far_state(), SURVIVOR, reset)
    assert state.servers, "the report of the server itself is kept"
    return [(place, declared(place).kind, value) for place, value in numbers_in(state)]


def test_recovery_with_terms_reset_resets_all_terms() -> None:
    left = [
        (place, value)
        for place, kind, value in numbers_of(Reset(term=True))
        if (kind is NumberKind.TERM and value > FIRST_TERM)
        or (kind is NumberKind.CLIENT_TERM and value != UNKNOWN_TERM)
    ]
    assert left == []


def test_recovery_with_time_reset_limits_all_times() -> None:
    times = {NumberKind.LOG_TIME, NumberKind.CLOCK}
    left = [
        (place, value)
        for place, kind, value in numbers_of(Reset(log_time_ms=LOG_TIME_MS))
        if kind in times and value > LOG_TIME_MS
    ]
    assert left == []


def test_recovery_with_seconds_reset_resets_all_seconds() -> None:
    seconds = {NumberKind.SECOND, NumberKind.SECOND_MS}
    assert [place for place, kind, value in numbers_of(Reset(second=True)) if kind in seconds and value > 0] == []


def test_recovery_with_eras_reset_resets_all_eras() -> None:
    assert [place for place, kind, value in numbers_of(Reset(era=True)) if kind is NumberKind.ERA and value > 0] == []


def test_recovery_limits_positions_to_end_of_log() -> None:
    ends = {NumberKind.INDEX: LAST_INDEX, NumberKind.NEXT_INDEX: LAST_INDEX + 1}
    left = [(place, value) for place, kind, value in numbers_of(Reset()) if kind in ends and value > ends[kind]]
    # The key of this table is a producer's id, the index of its first entry. A log never has an id beyond its end.
    assert [place for place, _ in left] == ["KafkaClients.producers.key"]


def test_recovery_without_reset_keeps_numbers() -> None:
    kept = {place: value for place, _, value in numbers_of(Reset())}
    assert kept["NotedOffset.leader_epoch"] == FAR_TERM
    assert kept["FarmState.log_time_ms"] == FAR_MS
    assert kept["Rekeying.era"] == 2**32 - 1


@pytest.mark.parametrize("level", [BOUNDS_LEVEL - 1, BOUNDS_LEVEL])
def test_log_time_correction_moves_all_log_times(level: int) -> None:
    before = replace(far_state(), level=level)
    after_it = _moved_back(before, 1_000)
    unmoved = {
        place
        for (place, old), (_, new) in zip(numbers_in(before), numbers_in(after_it), strict=True)
        if new != old - 1_000 * (declared(place).kind is NumberKind.LOG_TIME)
    }
    assert unmoved == (set() if level == BOUNDS_LEVEL else {"Producer.used_ms", "NotedOffset.noted_ms"})
