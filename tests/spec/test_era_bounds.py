"""Eras of the farm's keys, and evictions after the last era.

From feature level BOUNDS_LEVEL on, only the next era is accepted; older logs replay with any later era.
"""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from bridge.core.farm.state_machine import Change
from bridge.core.log.feature_level import BOUNDS_LEVEL, SUPPORTED_LEVEL
from bridge.core.log.records import Eviction, KeyReplacement
from bridge.core.membership.admission import Standing
from bridge.core.membership.eviction import LAST_ERA, EvictionRefused, KeysNotReplaced, NewEra, Rekeying, ServerEvicted
from gossip.core.keyring import CLOCK_LIMIT, ERA_LIMIT, HEAD_START, ClockBound, DatedKey, Keyring, KeyringError
from gossip.node.key_manager import KeyManager
from tests.authored import AuthoredFarm
from tests.effort import each_case

A, B, C = (bytes([number]) * 8 for number in (1, 2, 3))
BASE_MS = 1_767_225_600_000
OUT_OF_RANGE = (0, CLOCK_LIMIT - 1, CLOCK_LIMIT, 2**60, 2**63 - 1, 2**64 - 1)


def farm(level: int = SUPPORTED_LEVEL, era: int = 0) -> AuthoredFarm:
    """Return a farm created by A, B and C."""
    made = AuthoredFarm(BASE_MS, founders=(A, B, C))
    made.state = replace(made.state, level=level, rekeying=Rekeying(era))
    return made


def kinds(changes: tuple[Change, ...]) -> list[type]:
    return [type(each) for each in changes]


@pytest.mark.parametrize("era", [2, 5, 2**31, LAST_ERA])
def test_era_beyond_next_replaces_no_keys(era: int) -> None:
    story = farm()
    assert kinds(story.apply(1, 1, KeyReplacement(era, ()))) == [KeysNotReplaced]
    assert kinds(story.apply(2, 1, Eviction(C, era, ()))) == [EvictionRefused]
    assert story.state.rekeying == Rekeying()
    assert kinds(story.apply(3, 1, Eviction(C, 1, ()))) == [ServerEvicted]
    assert kinds(story.apply(4, 1, KeyReplacement(2, ()))) == [NewEra]


def test_old_log_replays_with_any_later_era() -> None:
    story = farm(level=BOUNDS_LEVEL - 1)
    assert kinds(story.apply(1, 1, KeyReplacement(LAST_ERA, ()))) == [NewEra]
    assert story.state.rekeying.era == LAST_ERA
    assert kinds(story.apply(2, 1, Eviction(C, LAST_ERA, ()))) == [EvictionRefused]


@pytest.mark.parametrize("era", [1, 2, LAST_ERA])
def test_eviction_after_last_era_keeps_keys(era: int) -> None:
    story = farm(era=LAST_ERA)
    assert story.apply(1, 1, Eviction(C, era, ((A, b"box"),)))[0] == ServerEvicted(3, C, LAST_ERA, keys_replaced=False)
    assert story.state.admitted[3].standing is Standing.EVICTED
    assert story.state.rekeying == Rekeying(LAST_ERA)


def test_eviction_after_last_era_names_remedy() -> None:
    _, kept = farm(era=LAST_ERA).apply(1, 1, Eviction(C, LAST_ERA, ()))
    assert isinstance(kept, KeysNotReplaced)
    assert "--reset era" in kept.reason


def test_key_replacement_after_last_era_names_remedy() -> None:
    (kept,) = farm(era=LAST_ERA).apply(1, 1, KeyReplacement(LAST_ERA, ()))
    assert isinstance(kept, KeysNotReplaced)
    assert "--reset era" in kept.reason


@each_case("used_at", OUT_OF_RANGE)
def test_time_of_use_out_of_range_leaves_usable_keyring(used_at: int) -> None:
    latest = ClockBound(BASE_MS).at(0)
    for before in (Keyring.of(b"1" * 32), Keyring.of(b"1" * 32, (b"2" * 32,), (b"3" * 32,), CLOCK_LIMIT - 1)):
        after = before.rekeyed(b"9" * 32, 1, used_at, latest)
        assert after.is_sound()
        assert (after.primary, after.era) == (b"9" * 32, 1)
        assert after.clock <= latest
        undated = before.rekeyed(b"9" * 32, 1, used_at)
        assert undated.install(os.urandom(32)).is_sound(), "the keyring must stay sound if the time of day is not known"


def test_keyrings_with_different_clamped_times_merge() -> None:
    rings = [
        Keyring.of(b"1" * 32, (), (), epoch).rekeyed(b"9" * 32, 1, 2**60, ClockBound(BASE_MS + epoch).at(0))
        for epoch in (1, 7, 2**40, CLOCK_LIMIT - 1)
    ]
    merged = rings[0].merge(rings[1]).merge(rings[2]).merge(rings[3])
    assert merged.is_sound()
    assert merged == rings[3].merge(rings[2]).merge(rings[1]).merge(rings[0])
    assert merged.clock <= ClockBound(BASE_MS + CLOCK_LIMIT).at(0)


@pytest.mark.parametrize("era", [0, 1, ERA_LIMIT, 2**53])
def test_era_out_of_range_rejected(era: int) -> None:
    with pytest.raises(KeyringError):
        Keyring.of(b"1" * 32, era=1).rekeyed(b"9" * 32, era, 5)


async def test_keyring_clock_ahead_of_time_of_day_refuses_changes() -> None:
    changes: list[Keyring] = []

    async def change_keyring(keyring: Keyring) -> None:
        changes.append(keyring)

    ring = Keyring.of(b"1" * 32, (), (), ClockBound(BASE_MS).at(0) + 2**30)
    group: Any = SimpleNamespace(keyring=ring, latest_clock=ClockBound(BASE_MS).at(0), change_keyring=change_keyring)
    with pytest.raises(KeyringError, match="begin a new era, which replaces all keys"):
        await KeyManager(group).install()
    assert changes == []


def test_keyring_at_clock_limit_refuses_changes() -> None:
    ring = Keyring.of(b"1" * 32, (b"2" * 32,), (), CLOCK_LIMIT - 1)
    for change, key in ((ring.install, b"3" * 32), (ring.use, b"2" * 32), (ring.remove, b"2" * 32)):
        with pytest.raises(KeyringError, match="begin a new era, which replaces all keys"):
            change(key)


@pytest.mark.parametrize("time", [CLOCK_LIMIT, 2**60, 2**64 - 1])
def test_repaired_keyring_keeps_keys_with_corrected_times(time: int) -> None:
    first, second = b"1" * 32, b"2" * 32
    bad = Keyring((DatedKey(time, first, retired=True), DatedKey(time, second)), second, time, 3)
    assert not bad.is_sound()
    fixed = bad.repaired()
    assert fixed.is_sound()
    assert (fixed.open_keys, fixed.retired, fixed.era) == (frozenset({second}), (first,), 3)
    assert fixed.clock == HEAD_START
    assert fixed.repaired() == fixed
